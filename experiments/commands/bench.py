"""`kvjax bench attention | decode | retrieval | prefill | sweep | memory | plan | gpu`: times with their conditions.

Ratios against the peers come from one run. What the model answers beside the peers is in `bench_answers`.
"""

from typing import Annotated

import typer

from experiments.bench.beside import PRESSES
from experiments.commands import bench_answers
from experiments.commands.bench_output import measuring, model_and_text, show
from experiments.commands.plan import plan
from experiments.console import Dtype, JsonFile, ModelName, TextFile, err
from experiments.policies import parse_budget, parse_policy

app = typer.Typer(help="Measure speed and agreement with the peers; one benchmark at a time.", rich_markup_mode=None)
app.command("parity")(bench_answers.parity)
app.command("scores")(bench_answers.scores)
app.command("plan")(plan)

Context = Annotated[int, typer.Option("--context", min=1, help="Tokens of context.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Counted rounds; medians are reported.")]


@app.command("attention")
def attention(
    shape: Annotated[str, typer.Option(help="A named shape of the ragged attention kernel.")] = "llama skewed",
    impl: Annotated[str | None, typer.Option(help="Implementation; default: the library's choice.")] = None,
    rounds: Rounds = 50,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Ragged attention, dense attention of the same shape, and a plain sum over the same bytes."""
    from experiments.bench.attention import attention as bench
    from experiments.bench.attention import shape_of

    found = shape_of(shape)
    with measuring("attention", 3 * (rounds + 1)) as done:
        result = bench(found, dtype, rounds, impl=impl, done=done)
    show(result, json_file)


@app.command("decode")
def decode(
    model: ModelName = "smollm2-135m",
    context: Context = 8064,
    policy: Annotated[str, typer.Option(help="NAME[:key=value,...].")] = "snapkv",
    budget: Annotated[str, typer.Option(help="256 slots per KV head, or 0.1 of the prompt.")] = "0.1",
    new: Annotated[int, typer.Option(min=2, help="Tokens decoded in a round.")] = 24,
    rounds: Rounds = 3,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """ms per token: full cache against compressed, ours against transformers and kvpress."""
    from experiments.bench.decode import decode as bench

    named = parse_policy(policy, parse_budget(budget))
    lm, ids = model_and_text(model, dtype, context, text)
    with measuring("decode", 4 * (rounds + 1) + 1) as done:
        result = bench(lm, ids, named, rounds=rounds, new=new, done=done)
    show(result, json_file)


@app.command("retrieval")
def retrieval(
    model: ModelName = "smollm2-135m",
    context: Context = 8064,
    budget: Annotated[str, typer.Option(help="Of heterocache: slots per KV head, or the share of the prompt.")] = "0.5",
    new: Annotated[int, typer.Option(min=2, help="Tokens decoded in a round.")] = 64,
    rounds: Rounds = 3,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """ms per token of methods that read from host memory while decoding, over a cache of random keys."""
    import models
    from experiments.bench.retrieval import cells
    from experiments.bench.retrieval import retrieval as bench

    share = parse_budget(budget)
    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
    with measuring("retrieval", len(cells(share)) * (rounds + 1)) as done:
        result = bench(lm, context, share, rounds=rounds, new=new, done=done)
    show(result, json_file)


@app.command("prefill")
def prefill(
    model: ModelName = "smollm2-135m",
    context: Context = 2048,
    rounds: Rounds = 3,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Seconds to read a prompt, ours against transformers."""
    from experiments.bench.prefill import prefill as bench

    lm, ids = model_and_text(model, dtype, context, text)
    with measuring("prefill", 2 * (rounds + 1) + 1) as done:
        result = bench(lm, ids, rounds=rounds, done=done)
    show(result, json_file)


@app.command("sweep")
def sweep(
    model: ModelName = "smollm2-135m",
    context: Context = 2048,
    policies: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(PRESSES),
    budgets: Annotated[str, typer.Option(help="Comma-separated shares kept.")] = "0.5,0.25,0.1,0.05,0.02",
    tasks: Annotated[str, typer.Option(help="Comma-separated tasks that are answered.")] = "needle,keyvalue",
    prompts: Annotated[int, typer.Option(min=1, help="Prompts a task that are timed.")] = 3,
    whole: Annotated[int, typer.Option(min=1, help="Prompts a task of the grid, extrapolated.")] = 30,
    beside: Annotated[str, typer.Option(help="Budgets the peers are timed at.")] = "0.25",
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """A grid of methods and budgets: one prefill a prompt, against kvpress's prefill for every cell."""
    from experiments.bench.sweep import sweep as bench
    from experiments.commands.sweep import grid
    from experiments.commands.tasks import parse_tasks

    cells, timed = grid(policies, budgets), grid(policies, beside)
    if any(isinstance(cell.budget, int) for cell in (*cells, *timed)):
        raise ValueError("kvjax bench sweep takes shares (0.5), because kvpress does")
    asked = {task.NAME: task for task, _ in parse_tasks(tasks, "unseen")}
    lm, ids = model_and_text(model, dtype, None, text)
    found = {name: list(task.examples(lm, context, prompts, 0, haystack=ids, mode="unseen")) for name, task in asked.items()}
    with measuring("sweep", len(asked) * (prompts * len(cells) + 1)) as done:
        result = bench(lm, found, asked, cells=cells, beside=timed, whole=whole, done=done)
    show(result, json_file)


@app.command("memory")
def memory(
    model: ModelName = "smollm2-135m",
    context: Context = 4096,
    policy: Annotated[str, typer.Option(help="NAME[:key=value,...].")] = "adakv",
    budget: Annotated[str, typer.Option(help="512 slots per KV head, or 0.1 of the prompt.")] = "512",
    new: Annotated[int, typer.Option(min=1, help="Tokens decoded at the end.")] = 16,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Bytes: every live buffer after compression, and the peak of the process."""
    from experiments.bench.memory import memory as bench

    named = parse_policy(policy, parse_budget(budget))
    lm, ids = model_and_text(model, dtype, context, text)
    show(bench(lm, ids, named, new=new), json_file)


@app.command("gpu")
def gpu(
    impl: Annotated[str, typer.Option(help="triton, mosaic (ragged only, 16 bits) or xla.")] = "triton",
    kernels: Annotated[str, typer.Option(help="Comma-separated: ragged, gather, codes.")] = "ragged,gather,codes",
    small: Annotated[bool, typer.Option("--small", help="Only shapes that a CPU takes.")] = False,
    rounds: Rounds = 30,
    dtype: Dtype = "bfloat16",
    json_file: JsonFile = None,
) -> None:
    """Every GPU kernel: error against float64, share of the copy bandwidth, beside dense attention."""
    from experiments.bench.gpu import gpu as bench

    with measuring("gpu", None) as done:
        result = bench(dtype, rounds, impl=impl, kernels=kernels.split(","), small=small, done=done)
    show(result, json_file)
    if not all(cell["right"] for cell in result["cells"].values()):
        raise typer.Exit(1)
