"""`kvjax bench attention | decode | retrieval | prefill | sweep | memory | parity | gpu`: times with their conditions.

Ratios against the peers come from one run.
"""

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.console import Dtype, JsonFile, TextFile, err, out, progress, write_json
from experiments.policies import parse_budget, parse_policy
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import haystack

app = typer.Typer(help="Measure speed; one benchmark at a time.", rich_markup_mode=None)

Model = Annotated[str, typer.Option("--model", help="Hugging Face folder or id, a .gguf file, or smollm2-135m.")]
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
    with _measuring("attention", 3 * (rounds + 1)) as done:
        result = bench(found, dtype, rounds, impl=impl, done=done)
    _show(result, json_file)


@app.command("decode")
def decode(
    model: Model = "smollm2-135m",
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
    lm, ids = _model_and_text(model, dtype, context, text)
    with _measuring("decode", 4 * (rounds + 1) + 1) as done:
        result = bench(lm, ids, named, rounds=rounds, new=new, done=done)
    _show(result, json_file)


@app.command("retrieval")
def retrieval(
    model: Model = "smollm2-135m",
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
    with _measuring("retrieval", len(cells(share)) * (rounds + 1)) as done:
        result = bench(lm, context, share, rounds=rounds, new=new, done=done)
    _show(result, json_file)


@app.command("prefill")
def prefill(
    model: Model = "smollm2-135m",
    context: Context = 2048,
    rounds: Rounds = 3,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Seconds to read a prompt, ours against transformers."""
    from experiments.bench.prefill import prefill as bench

    lm, ids = _model_and_text(model, dtype, context, text)
    with _measuring("prefill", 2 * (rounds + 1) + 1) as done:
        result = bench(lm, ids, rounds=rounds, done=done)
    _show(result, json_file)


@app.command("sweep")
def sweep(
    model: Model = "smollm2-135m",
    context: Context = 1024,
    policies: Annotated[str, typer.Option(help="Comma-separated.")] = "snapkv,knorm,keydiff,expected_attention,adakv",
    budgets: Annotated[str, typer.Option(help="Comma-separated shares kept.")] = "0.5,0.25,0.1,0.05",
    prompts: Annotated[int, typer.Option(min=1, help="Needle prompts.")] = 3,
    text: TextFile = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """A grid of methods and budgets: one prefill a prompt, against kvpress's prefill for every cell."""
    from experiments.bench.sweep import sweep as bench
    from experiments.commands.sweep import grid
    from experiments.tasks import needle

    cells = grid(policies, budgets)
    if any(isinstance(cell.budget, int) for cell in cells):
        raise ValueError("kvjax bench sweep takes shares (0.5), because kvpress does")
    lm, ids = _model_and_text(model, dtype, None, text)
    found = list(needle.examples(lm, context, prompts, 0, haystack=ids, mode="unseen"))
    with _measuring("sweep", prompts * len(cells) + 1) as done:
        result = bench(lm, found, cells, done=done)
    _show(result, json_file)


@app.command("memory")
def memory(
    model: Model = "smollm2-135m",
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
    lm, ids = _model_and_text(model, dtype, context, text)
    _show(bench(lm, ids, named, new=new), json_file)


@app.command("parity")
def parity(
    model: Model = "smollm2-135m",
    new: Annotated[int, typer.Option(min=1, help="Greedy tokens compared on each prompt.")] = 64,
    json_file: JsonFile = None,
) -> None:
    """The same greedy tokens as transformers on five prompts; near-ties are listed."""
    import models
    from experiments.bench.parity import parity as bench

    result = bench(models.load(model), new)
    _show(result, json_file)
    wrong = [found for found in result["divergences"] if found and not found["tie"]]
    if wrong:
        raise typer.Exit(1)


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

    with _measuring("gpu", None) as done:
        result = bench(dtype, rounds, impl=impl, kernels=kernels.split(","), small=small, done=done)
    _show(result, json_file)
    if not all(cell["right"] for cell in result["cells"].values()):
        raise typer.Exit(1)


def _model_and_text(model: str, dtype: str, context: int | None, text: Path | None) -> tuple[Any, list[int]]:
    """The model and the first `context` tokens of the haystack (all of them for None)."""
    import models

    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
        ids = encode_plain(lm, haystack(text).text)
    if context is not None and context > min(len(ids), lm.decoder.max_positions):
        limit = min(len(ids), lm.decoder.max_positions)
        raise ValueError(f"--context {context} is beyond the {limit} tokens that the text and the model have")
    return lm, ids[:context]


@contextmanager
def _measuring(name: str, steps: int | None):
    from experiments.bench import alone

    with alone(), progress() as bar:
        line = bar.add_task(name, total=steps)
        done: Callable[[int], None] = lambda count: bar.advance(line, count)  # noqa: E731
        yield done


def _show(result: dict[str, Any], json_file: Path | None) -> None:
    """Conditions, then every figure on a line of its own."""
    out.print(f"{result['bench']}: {result['shape']}; {result['dtype']}", markup=False)
    out.print(f"on {result['machine']}; commit {result['commit'] or 'none'}; {result['versions']}", markup=False)
    for field in ("seconds", "ms_per_token"):
        for name, value in result.get(field, {}).items():
            unit, scale = ("ms", 1e3) if field == "seconds" and value["median"] < 1 else ("s", 1.0)
            unit, scale = ("ms/token", 1.0) if field == "ms_per_token" else (unit, scale)
            words = f"{scale * value['median']:.2f} {unit} (min {scale * value['min']:.2f}, n={value['count']})"
            out.print(f"  {name}: {words}", markup=False)
    seconds = ("kvjax_seconds_by_prompt", "kvpress_seconds_by_prompt")
    for field in ("device", "copy_gb_per_s", "allocated_bytes", "gb_per_s", *seconds, "kept_share"):
        if field in result:
            out.print(f"  {field}: {result[field]}", markup=False)
    for name, value in result.get("cells", {}).items():
        out.print(f"  {name}: {value}", markup=False)
    for name, value in result.get("memory", {}).items():
        out.print(f"  {name}: {value / 1e6:.2f} MB", markup=False)
    for found in filter(None, result.get("divergences", [])):
        out.print(f"  parted: {found}", markup=False)
    for name, value in result.get("ratios", {}).items():
        out.print(f"  ratio {name}: {value:.2f}", markup=False)
    if "peers" in result:
        out.print(f"  peers: {result['peers']}", markup=False)
    write_json(json_file, result)
