"""`kvjax bench decode | first-token | retrieval | overlap | prefill | sparse-prefill | restore | sweep | long | memory`.

Ratios against the peers come from one run. Single kernels are in `bench_kernels`, what the model answers beside the peers in
`bench_answers`.
"""

from pathlib import Path
from typing import Annotated

import typer

from experiments.bench.beside import PRESSES
from experiments.commands import bench_answers, bench_kernels
from experiments.commands.bench_output import Rounds, measuring, model_and_text, show
from experiments.commands.capacity import capacity
from experiments.commands.plan import plan
from experiments.console import Dtype, JsonFile, ModelName, TextFile, err
from experiments.policies import parse_budget, policy_of

app = typer.Typer(help="Measure speed and agreement with the peers; one benchmark at a time.", rich_markup_mode=None)
app.command("parity")(bench_answers.parity)
app.command("peer-scores")(bench_answers.peer_scores)
app.command("plan")(plan)
app.command("capacity")(capacity)
for command in ("attention", "quantised", "linear", "growth", "scores", "gather", "gpu", "step"):
    app.command(command)(getattr(bench_kernels, command))
app.command("compile")(bench_kernels.compile_step)

Context = Annotated[int, typer.Option("--context", min=1, help="Tokens of context.")]
PolicySpec = Annotated[str, typer.Option("--policy", help="NAME[:key=value,...].")]
Gguf = Annotated[
    Path | None, typer.Option("--gguf", help="The model as GGUF, for llama.cpp and OpenVINO; default: where it is known.")
]


@app.command("decode")
def decode(
    model: ModelName = "smollm2-135m",
    context: Context = 8064,
    policy: PolicySpec = "snapkv",
    budget: Annotated[str | None, typer.Option(help="256 slots per KV head, or 0.1 of the prompt; default: 0.1.")] = None,
    new: Annotated[int, typer.Option(min=2, help="Tokens decoded in a round.")] = 24,
    rounds: Rounds = 3,
    text: TextFile = None,
    dtype: Dtype = "float32",
    gguf: Gguf = None,
    json_file: JsonFile = None,
) -> None:
    """ms per token: full cache against compressed, ours against transformers, kvpress, llama.cpp and OpenVINO."""
    from experiments.bench.decode import decode as bench

    named = policy_of(policy, budget, usual=0.1)
    lm, ids = model_and_text(model, dtype, context, text)
    with measuring("decode", 4 * (rounds + 1) + 2) as done:
        result = bench(lm, ids, named, rounds=rounds, new=new, gguf=gguf, done=done)
    show(result, json_file)


@app.command("first-token")
def first_token(
    model: ModelName = "smollm2-135m",
    context: Context = 1016,
    policies: Annotated[str, typer.Option(help="Comma-separated.")] = "snapkv,knorm,expected_attention,adakv,streaming_llm",
    budgets: Annotated[str, typer.Option(help="Comma-separated: 256 slots per KV head, or 0.25 of the prompt.")] = "0.25",
    rounds: Rounds = 5,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """ms of compress and of the first token, beside a later one, where nothing has to be compiled any more."""
    from experiments.bench.first_token import first_token as bench
    from experiments.plan_words import grid

    cells = grid(policies, budgets)
    lm, ids = model_and_text(model, dtype, context, text)
    with measuring("first-token", len(cells) * rounds) as done:
        result = bench(lm, ids, cells, rounds=rounds, done=done)
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


@app.command("overlap")
def overlap(
    width: Annotated[int, typer.Option(min=64, help="Of a random model of four layers.")] = 2048,
    context: Context = 384,
    slow: Annotated[float, typer.Option(min=0, max=1e4, help="Milliseconds that a reading takes longer.")] = 20.0,
    new: Annotated[int, typer.Option(min=2, help="Tokens decoded in a round.")] = 8,
    rounds: Rounds = 5,
    json_file: JsonFile = None,
) -> None:
    """ms per step over host rows that are slow to read, begun ahead or read when waited for."""
    from experiments.bench.overlap import CELLS, METHODS
    from experiments.bench.overlap import overlap as bench

    with measuring("overlap", len(CELLS) * len(METHODS) * (rounds + 1)) as done:
        result = bench(width, context, slow=slow / 1e3, rounds=rounds, new=new, done=done)
    show(result, json_file)


@app.command("prefill")
def prefill(
    model: ModelName = "smollm2-135m",
    context: Context = 2048,
    rounds: Rounds = 3,
    text: TextFile = None,
    dtype: Dtype = "float32",
    gguf: Gguf = None,
    json_file: JsonFile = None,
) -> None:
    """Seconds to read a prompt, ours against transformers, llama.cpp and OpenVINO."""
    from experiments.bench.prefill import prefill as bench

    lm, ids = model_and_text(model, dtype, context, text)
    with measuring("prefill", 4 * (rounds + 1) + 2) as done:
        result = bench(lm, ids, rounds=rounds, gguf=gguf, done=done)
    show(result, json_file)


@app.command("sparse-prefill")
def sparse_prefill(
    model: ModelName = "smollm2-135m",
    context: Context = 8064,
    artefact: Annotated[
        str | None, typer.Option(help="Folder of an artefact of `kvjax calibrate minference`, or a built-in one's name.")
    ] = None,
    fixed: Annotated[bool, typer.Option(help="Also two patterns that all heads share.")] = True,
    rounds: Rounds = 3,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Seconds to read a prompt with MInference's patterns, and what they miss, beside exact attention."""
    from experiments.bench.sparse_prefill import sparse_prefill as bench
    from kvjax.artefacts.artefact import resolve
    from kvjax.prefill import AShape, MInference

    lm, ids = model_and_text(model, dtype, context, text)
    shared = {"vertical-slash (1000, 6096)": MInference(), "A-shape (100, 800)": MInference(AShape(100, 800))}
    patterns = shared if fixed else {}
    if artefact is not None:
        patterns = patterns | {"a pattern a head": MInference.of(resolve(artefact, "minference", lm))}
    if not patterns:
        raise typer.BadParameter("--no-fixed leaves no pattern to compare: give --artefact too")
    with measuring("sparse-prefill", (1 + len(patterns)) * (rounds + 1) + len(patterns)) as done:
        result = bench(lm, ids, patterns, rounds=rounds, done=done)
    show(result, json_file)


@app.command("restore")
def restore(
    model: ModelName = "smollm2-135m",
    context: Context = 4096,
    policy: PolicySpec = "kivi:bits=4",
    budget: Annotated[str | None, typer.Option(help="512 slots per KV head, or 0.1 of the prompt; default: all.")] = None,
    rounds: Rounds = 3,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Seconds to the first token: a conversation read from its file, in four bits, beside a fresh prefill."""
    from experiments.bench.restore import restore as bench

    named = policy_of(policy, budget, usual=1.0)
    lm, ids = model_and_text(model, dtype, context, text)
    with measuring("restore", 3 * (rounds + 1)) as done:
        result = bench(lm, ids, named.policy, rounds=rounds, done=done)
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
    from experiments.commands.tasks import parse_tasks
    from experiments.plan_words import grid

    cells, timed = grid(policies, budgets), grid(policies, beside)
    if any(isinstance(cell.budget, int) for cell in (*cells, *timed)):
        raise ValueError("kvjax bench sweep takes shares (0.5), because kvpress does")
    asked = {task.NAME: task for task, _ in parse_tasks(tasks, "unseen")}
    lm, ids = model_and_text(model, dtype, None, text)
    found = {name: list(task.examples(lm, context, prompts, 0, haystack=ids, mode="unseen")) for name, task in asked.items()}
    with measuring("sweep", len(asked) * (prompts * len(cells) + 1)) as done:
        result = bench(lm, found, asked, cells=cells, beside=timed, whole=whole, done=done)
    show(result, json_file)


@app.command("long")
def long_decode(
    tokens: Annotated[int, typer.Option(min=2, help="Tokens decoded.")] = 20_480,
    block: Annotated[int, typer.Option(min=1, help="Tokens decoded in turns.")] = 1024,
    budget: Annotated[int, typer.Option(min=64, help="Slots a KV head, for all that time.")] = 512,
    context: Context = 1024,
    policies: Annotated[str, typer.Option(help="Comma-separated; default: all that hold a budget while decoding.")] = "",
    json_file: JsonFile = None,
) -> None:
    """20,000 tokens at a budget that stays: bytes, positions, and what ranking costs beside StreamingLLM. `--json` resumes."""
    from experiments.bench import long_decode as bench

    names = [name for name in policies.split(",") if name] or bench.methods()
    with measuring("long", len(names) * (tokens // block)) as done:
        result = bench.long_decode(
            names, model=bench.MODEL, budget=budget, prompt=context, tokens=tokens // block * block, block=block,
            path=json_file, done=done,
        )  # fmt: skip
    show(result, json_file)


@app.command("memory")
def memory(
    model: ModelName = "smollm2-135m",
    context: Context = 4096,
    policy: PolicySpec = "adakv",
    budget: Annotated[str | None, typer.Option(help="512 slots per KV head, or 0.1 of the prompt; default: 512.")] = None,
    new: Annotated[int, typer.Option(min=1, help="Tokens decoded at the end.")] = 16,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Bytes: every live buffer after compression, and the peak of the process."""
    from experiments.bench.memory import memory as bench

    named = policy_of(policy, budget, usual=512)
    lm, ids = model_and_text(model, dtype, context, text)
    show(bench(lm, ids, named, new=new), json_file)
