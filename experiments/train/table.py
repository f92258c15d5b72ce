"""The tables of docs/add_a_gate.md: what `kvjax train` made of the small model.

They are made from experiments/results/train_METHOD_smollm2.json (`experiments.train.record`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.stats import Estimate
from experiments.train.record import RESULTS
from experiments.train.served import learned_less

BEGIN, END = "<!-- gates: python -m experiments.docs -->", "<!-- end of gates -->"
#: What each gate is compared with, and the texts, in the table's order.
OTHERS, TEXTS = ("untrained", "streaming_llm", "snapkv"), ("held-out", "essays", "passkeys")


def table() -> str:
    """Two tables: the runs, and what the gates are worth where they are served."""
    found = {path.name.split("_smollm2")[0].removeprefix("train_"): json.loads(path.read_text()) for path in files()}
    runs = [
        "| gate | steps of tokens | minutes | loss before | after | KB | comes with the library |",
        "| --- | --- | --: | --- | --- | --: | --- |",
    ]
    runs += [run_line(name, x) for name, x in found.items()]
    heads = ["| gate | text | n | slots | full | trained | " + " | ".join(f"against {other}" for other in OTHERS) + " |"]
    heads += ["| --- | --- | --: | --: | --- | --- | --- | --- | --- |"]
    served = [line for name, x in found.items() for line in served_lines(name, x)]
    return "\n".join([*runs, "", *heads, *served])


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
    told = (f"{how['steps']} of {how['length']}", f"{found['minutes']:g}", f"{before:.4g}", f"{after:.4g}", f"{size / 1000:.0f}")
    return f"| `{name}` | " + " | ".join([*told, ships]) + " |"


def served_lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """What its gate is worth on each text: nats a token, and how much more it loses than others, with 95% intervals."""
    served, lines = found["served"], []
    for text in (text for text in TEXTS if text in served["nats"]):
        nats = served["nats"][text]
        less = learned_less(nats)
        told = [f"{np.mean(nats[at]):.3f}" for at in ("full", "learned")]
        told += [interval(less[other]) for other in OTHERS]
        slots = served.get("slots", 64)
        lines.append(f"| `{name}` | {text} | {len(nats['learned'])} | {slots} | " + " | ".join(told) + " |")
    return lines


def interval(less: Estimate) -> str:
    """A difference; bold where its interval is below 0: the gate is better."""
    said = f"{less.mean:+.3f} [{less.low:.3f}, {less.high:.3f}]"
    return f"**{said}**" if less.high < 0 else said
