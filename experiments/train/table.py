"""The tables of docs/add_a_gate.md: what `kvjax train` made of the small model.

They are made from experiments/results/train_METHOD_smollm2.json (`experiments.train.record`).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.train.record import RESULTS
from experiments.train.served import DECODING, learned_less
from experiments.verdicts import verdict

BEGIN, END = "<!-- gates: python -m experiments.docs -->", "<!-- end of gates -->"
#: What each gate is compared with, and the texts, in the table's order.
OTHERS = ("untrained", "streaming_llm", "snapkv")
TEXTS = tuple(f"{text}{kind}" for text in ("held-out", "essays", "passkeys") for kind in ("", DECODING))


def table() -> str:
    """Two tables: the runs, and what the gates are worth where they are served."""
    found = {path.name.split("_smollm2")[0].removeprefix("train_"): json.loads(path.read_text()) for path in files()}
    runs = [
        "| gate | steps of tokens | minutes of a core | loss before | after | KB | comes with the library |",
        "| --- | --- | --: | --- | --- | --: | --- |",
    ]
    runs += [run_line(name, x) for name, x in found.items()]
    heads = ["| gate | text | n | slots | full | trained | " + " | ".join(f"against {other}" for other in OTHERS) + " |"]
    heads += ["| --- | --- | --: | --: | --- | --- | --- | --- | --- |"]
    served = [line for name, x in found.items() for line in served_lines(name, x)]
    special = ["| gate | text | beside | it | trained less it |", "| --- | --- | --- | --- | --- |"]
    special += [line for name, x in found.items() for line in special_lines(name, x)]
    return "\n".join(
        [*runs, "", *heads, *served, "", *special, *[f"\n{ranks(x['heads'])}" for x in found.values() if "heads" in x]]
    )


def files() -> list[Path]:
    """The recorded runs of gates for the small model."""
    return sorted(RESULTS.glob("train_*_smollm2.json"))


def run_line(name: str, found: Mapping[str, Any]) -> str:
    """A run."""
    mine = found[name]
    facts, (before, after) = mine["artefact"], (mine["held_out"][at]["loss"] for at in ("before", "after"))
    how = facts["settings"]
    size = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in facts["tables"].values())
    ships = "yes" if found["shipped"].startswith("kvjax/") else "no"
    minutes = f"{found['minutes']:g}" if "minutes" in found else "-"
    told = (f"{how['steps']} of {how['length']}", minutes, f"{before:.4g}", f"{after:.4g}", f"{size / 1000:.4g}")
    return f"| `{name}` | " + " | ".join([*told, ships]) + " |"


def served_lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """What its gate is worth on each text: nats a token, and how much more it loses than others, with 95% intervals."""
    served, lines = found["served"], []
    for text in (text for text in TEXTS if text in served["nats"]):
        nats = served["nats"][text]
        told = [f"{np.mean(nats[at]):.3f}" for at in ("full", "learned")]
        told += [less_than(nats, other) for other in OTHERS]
        slots = served.get("slots", 64)
        lines.append(f"| `{name}` | {text} | {len(nats['learned'])} | {slots} | " + " | ".join(told) + " |")
    return lines


def special_lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """What a gate alone is compared with: its teacher, other choices of heads."""
    lines = []
    for text, nats in ((text, x) for text, x in found["served"]["nats"].items() if text in TEXTS):
        for other in (x for x in nats if x not in ("full", "learned", *OTHERS)):
            said = other.replace("shuffled", "as many heads at random,")
            lines.append(f"| `{name}` | {text} | {said} | {np.mean(nats[other]):.3f} | {less_than(nats, other)} |")
    return lines


def ranks(heads: Mapping[str, Any]) -> str:
    """How alike α and CompressKV's scores rank the heads."""
    return (
        f"α and CompressKV's retrieval score (`python -m experiments.train.retrieval_heads`) rank the {heads['heads']} heads with\n"
        f"Spearman's ρ = {heads['spearman']:.2f} (p = {heads['p_value']:.0e}); {heads['shared']:.0%} of the full heads are among "
        "as many of the highest scores."
    )


def less_than(nats: Mapping[str, Sequence[float]], other: str) -> str:
    """What the trained gate loses more than another; bold where the interval is below 0: the gate is better.

    Where the interval tells neither, the texts that would (`experiments.verdicts`).
    """
    less = learned_less({name: nats[name] for name in ("learned", other)})[other]
    said = f"{less.mean:+.3f} [{less.low:.3f}, {less.high:.3f}]"
    if less.high < 0:
        return f"**{said}**"
    found = verdict([-x for x in nats["learned"]], [-x for x in nats[other]], "nats")
    return f"{said}, n = {found.needed}" if found.needed else said
