"""Greedy parity with transformers on a real model: the same tokens, near-ties listed."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import kvjax
from experiments.bench import conditions
from experiments.bench.beside import cell, peers

QUESTIONS = (
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper.",
    "Explain in two sentences why the sky is blue.",
    "List five animals that live in the sea.",
    "How do I boil an egg?",
)
#: Two logits closer than this are a tie: either token is right.
TIE = 1e-3
RECORD = Path(__file__).parents[2] / "tests" / "data" / "smollm2_greedy.json"


def divergence(ours: list[int], theirs: list[int], gaps: list[float]) -> dict[str, Any] | None:
    """Where two greedy runs part, and how close our two likeliest tokens were there; None if they never do."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            return {"token": i, "ours": a, "theirs": b, "gap": gaps[i], "tie": gaps[i] <= TIE}
    return None


def greedy(lm: Any, ids: list[int], new: int) -> tuple[list[int], list[float]]:
    """Tokens of the full cache, and the gap between the two largest logits at each."""
    out = kvjax.generate(lm, ids, kvjax.methods.full(), max_new_tokens=new, stop=(), return_logits=True)
    top = np.sort(np.asarray(out.logits[0]), -1)[:, -2:]
    return out.tokens[0].tolist(), (top[:, 1] - top[:, 0]).tolist()


def prompts(lm: Any) -> list[list[int]]:
    return [lm.encode([{"role": "user", "content": question}]) for question in QUESTIONS]


def parity(lm: Any, new: int = 64, record: Path = RECORD) -> dict[str, Any]:
    """Compare `new` greedy tokens on five prompts; what transformers said is written to `record`, for the tests.

    Raises:
        OSError: no interpreter with transformers is there.
    """
    rows = prompts(lm)
    theirs = peers(
        lm, [cell(None, 1.0)], [{"context": ids, "fed": []} for ids in rows], dtype="float32", rounds=0, new=new
    )  # fmt: skip
    if "missing" in theirs:
        raise OSError(theirs["missing"])
    tokens = [run["tokens"] for run in theirs["cells"]["transformers, full cache"]]
    found = [divergence(*_split(greedy(lm, ids, new), want)) for ids, want in zip(rows, tokens, strict=True)]
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({"model": lm.name, "versions": theirs["versions"], "prompts": rows, "tokens": tokens}))
    return conditions("parity", "float32", f"{len(rows)} prompts, {new} greedy tokens") | {
        "peers": theirs["versions"],
        "divergences": found,
        "ratios": {"prompts with equal tokens": found.count(None), "of which ties": sum(bool(f and f["tie"]) for f in found)},
    }


def _split(ours: tuple[list[int], list[float]], theirs: list[int]):
    return ours[0], theirs, ours[1]
