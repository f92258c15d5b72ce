"""`kvjax bench attention | quantised | linear | growth | scores | gather | gpu | compile | step`: single kernels, and the step."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands.bench_output import Rounds, measuring, show
from experiments.console import Dtype, JsonFile, ModelName
from experiments.policies import policy_of

Impl = Annotated[str | None, typer.Option(help="Implementation; default: the library's choice.")]
Shapes = Annotated[str, typer.Option(help="A part of the names of the shapes; default: all.")]
ModelShape = Annotated[str, typer.Option("--model", help="llama3-8b, llama3-70b, mistral-7b, qwen3-8b, or as elsewhere.")]
Small = Annotated[bool, typer.Option("--small", help="Only shapes that a CPU takes, one layer each.")]


def attention(
    shapes: Shapes = "", impl: Impl = None, rounds: Rounds = 50, dtype: Dtype = "float32", json_file: JsonFile = None
) -> None:
    """Ragged attention, dense attention of the same shape, a plain sum over the same bytes, and PyTorch's where it is installed."""
    from experiments.bench import STREAK, runs
    from experiments.bench.attention import attention as bench
    from experiments.bench.operands import named
    from kvjax.kernels.ragged_attention.shapes import ALL

    found = named(ALL, shapes)
    with measuring("attention", 3 * len(found) * runs(rounds, STREAK) + 1) as done:
        result = bench(found, dtype, rounds, impl=impl, done=done)
    show(result, json_file)


def quantised(
    slots: Annotated[int, typer.Option(min=1, help="Slots of a KV head.")] = 16384,
    heads: Annotated[int, typer.Option(min=1, help="KV heads.")] = 8,
    dimension: Annotated[int, typer.Option(min=16, help="Of a head.")] = 128,
    groups: Annotated[str, typer.Option(help="Comma-separated query heads of a KV head.")] = "1,4",
    group: Annotated[int, typer.Option(min=4, help="Numbers that share a step.")] = 32,
    along: Annotated[str, typer.Option(help="Groups of keys: token or channel.")] = "token",
    layers: Annotated[int, typer.Option(min=1, help="Layers in a program.")] = 4,
    same: Annotated[bool, typer.Option("--same", help="Layers read the same slots: of few, arithmetic is left.")] = False,
    dtype: Dtype = "float32",
    impl: Impl = None, rounds: Rounds = 20, json_file: JsonFile = None,
) -> None:  # fmt: skip
    """One decode attention over codes of 8, 4 and 2 bits, beside ours over bfloat16 and float32."""
    from experiments.bench import STREAK, runs
    from experiments.bench.quantised import pieces
    from experiments.bench.quantised import quantised as bench

    if along not in ("token", "channel"):
        raise ValueError(f"--along: keys are coded along tokens or channels; got {along!r}")
    many = _tokens(groups, "--groups", "such as 1,4")
    with measuring("quantised", len(many) * pieces() * runs(rounds, STREAK)) as done:
        result = bench(
            slots, heads, dimension, groups=many, group=group, along=along, layers=layers, same=same, rounds=rounds, dtype=dtype,
            impl=impl, done=done,
        )  # fmt: skip
    show(result, json_file)


def linear(
    model: ModelName = "smollm2-135m",
    rows: Annotated[str, typer.Option(help="Comma-separated batch sizes.")] = "1,2,4,8,16",
    impls: Annotated[str, typer.Option(help="Comma-separated implementations.")] = "native,xla",
    rounds: Rounds = 15, dtype: Dtype = "float32", json_file: JsonFile = None,
) -> None:  # fmt: skip
    """All projections of a model for a few rows, beside a plain sum of the weights."""
    import models
    from experiments.bench import STREAK, runs
    from experiments.bench.linear import linear as bench

    sizes, names = [int(n) for n in rows.split(",")], impls.split(",")
    lm = models.load(model, dtype=dtype)
    with measuring("linear", len(sizes) * (len(names) + 1) * runs(rounds, STREAK)) as done:
        result = bench(lm, sizes, rounds, impls=names, done=done)
    show(result, json_file)


def growth(impl: Impl = None, rounds: Rounds = 20, dtype: Dtype = "float32", json_file: JsonFile = None) -> None:
    """Ragged attention by slots in use, equal and skewed 32:1, and the line through its times."""
    from experiments.bench import STREAK, runs
    from experiments.bench.growth import USED
    from experiments.bench.growth import growth as bench

    with measuring("growth", 2 * len(USED) * runs(rounds, STREAK)) as done:
        result = bench(dtype, rounds, impl=impl, done=done)
    show(result, json_file)


def scores(
    shapes: Shapes = "", impl: Impl = None, rounds: Rounds = 20, small: Small = False, dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:  # fmt: skip
    """Scores from codes by look-up, beside the scores of dense keys."""
    _kernels(["codes"], impl=impl, rounds=rounds, small=small, dtype=dtype, shapes=shapes, json_file=json_file)


def gather(
    shapes: Shapes = "", impl: Impl = None, rounds: Rounds = 20, small: Small = False, dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:  # fmt: skip
    """Attention over listed slots, beside dense attention over all of them."""
    _kernels(["gather"], impl=impl, rounds=rounds, small=small, dtype=dtype, shapes=shapes, json_file=json_file)


def gpu(
    impl: Annotated[str, typer.Option(help="triton, mosaic (ragged only, 16 bits) or xla.")] = "triton",
    kernels: Annotated[str, typer.Option(help="Comma-separated: ragged, gather, codes.")] = "ragged,gather,codes",
    shapes: Shapes = "", small: Small = False, rounds: Rounds = 30, dtype: Dtype = "bfloat16", json_file: JsonFile = None,
) -> None:  # fmt: skip
    """Every GPU kernel: error against float64, share of the copy bandwidth, beside dense attention."""
    _kernels(kernels.split(","), impl=impl, rounds=rounds, small=small, dtype=dtype, shapes=shapes, json_file=json_file)


def _kernels(kinds: list[str], *, json_file: Path | None, rounds: int, dtype: str, **how: object) -> None:
    """Measure and show; a kernel that is wrong ends the command with 1."""
    from experiments.bench.kernels import kernels as bench

    with measuring("kernels", None) as done:
        result = bench(dtype, rounds, kinds=kinds, done=done, **how)
    show(result, json_file)
    if not all(cell["right"] for cell in result["cells"].values()):
        raise typer.Exit(1)


def compile_step(
    model: ModelShape = "llama3-8b",
    length: Annotated[int, typer.Option(min=1, help="Tokens of context.")] = 4096,
    policy: Annotated[str, typer.Option(help="NAME[:key=value,...].")] = "snapkv",
    budget: Annotated[str | None, typer.Option(help="512 slots per KV head, or 0.1 of the prompt; default: 0.25.")] = None,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Seconds to compile a decode step of the whole model from shapes, and to read it from the persistent cache."""
    from experiments.bench.compiling import compiling as bench
    from experiments.bench.model_shapes import decoder_of

    named = policy_of(policy, budget, usual=0.25)
    with measuring("compile", 2) as done:
        result = bench(decoder_of(model), named.policy, length, dtype=dtype, done=done)
    show(result, json_file)


def step(
    model: ModelShape = "llama3-8b",
    contexts: Annotated[str, typer.Option(help="Comma-separated tokens of context.")] = "131072,229376",
    policy: Annotated[str, typer.Option(help="Comma-separated NAME[:key=value,...].")] = "snapkv",
    budgets: Annotated[str, typer.Option(help="Comma-separated: 512 slots per KV head, or 0.1 of the context.")] = "0.5,0.1",
    new: Annotated[int, typer.Option(min=1, help="Tokens decoded in a round.")] = 16,
    rounds: Rounds = 5, dtype: Dtype = "bfloat16", json_file: JsonFile = None,
) -> None:  # fmt: skip
    """ms per token of a whole model of random weights on random caches, without a prefill: full beside compressed."""
    from experiments.bench.model_shapes import decoder_of
    from experiments.bench.step import cells
    from experiments.bench.step import step as bench
    from experiments.plan_words import grid

    decoder, tokens, named = decoder_of(model), _tokens(contexts), grid(policy, budgets)
    with measuring("step", len(cells(named, tokens)) * (rounds + 1)) as done:
        result = bench(decoder, named, tokens, dtype=dtype, rounds=rounds, new=new, done=done)
    show(result, json_file)


def _tokens(text: str, option: str = "--contexts", such: str = "of tokens such as 131072,229376") -> list[int]:
    """`"1024,2048"` -> [1024, 2048], each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"{option}: {text!r} is not a list of positive numbers {such}")
    return list(dict.fromkeys(map(int, parts)))
