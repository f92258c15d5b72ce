"""The first page of results: every ablation with how its orderings came out."""

import json
from collections import Counter
from pathlib import Path

from experiments.ablations import names
from experiments.ablations.compare import pairs
from experiments.ablations.run import find
from experiments.report import column
from experiments.result_pages import ablation, published
from experiments.result_pages.standing import clean
from experiments.rows import Row
from experiments.tasks.text import PACKAGE
from experiments.verdicts import FEWEST, MATTERS, OUTCOMES
from kvjax.artefacts.artefact import BUILT_IN

_RULES = f"""A published ordering **holds** or is **reversed** where the 95% interval of the difference, paired over prompts,
excludes zero; it is **bounded** where the interval holds zero and lies within ± {100 * MATTERS["share"]:g} points or
± {MATTERS["nats"]} nats a token; all else is **unresolved**, and so is everything below {FEWEST} prompts. Stretches of the essays
that share graded tokens count as one in intervals of nats. The rules are in `experiments/verdicts.py`; the pages say how many
prompts would settle what is unresolved. A row whose policy was calibrated on text that may be what it is measured on is not shown
(`experiments/leaks.py`)."""


def page() -> str:
    """docs/results/index.md."""
    others = "[Leaderboard](leaderboard.md). [Comparative study](study.md): bytes, times, quality and request rates of systems. "
    others += "[Decoding for long](long_decode.md): 20,480 tokens at a budget that stays. "
    others += "[Tasks](tasks.md): which of them the model does, with all of its cache and with half of it. "
    others += f"[What papers rank](papers.md) of each other's methods: {published.counts()}. "
    others += "Sweeps: [first](first.md), [bits a number](bits.md)."
    lines = ["# Results", "", _RULES, "", others, ""]
    lines += ["| ablation | task | prompts | " + " | ".join(OUTCOMES) + " | rows |"]
    lines += ["| --- | --- | --: |" + " --: |" * len(OUTCOMES) + " --- |"]
    return "\n".join([*lines, *(line for name in names() for line in _lines(name)), "", *_built_in(), ""])


def _built_in() -> list[str]:
    """What the artefacts that come with the library read, and where they may be measured."""
    heads = ["| model | method | read | split | prompts from the essays |", "| --- | --- | --- | --- | --- |"]
    return ["## Built-in artefacts", "", *heads, *map(_artefact, sorted(BUILT_IN.glob("*/*/header.json"))), "", _REFUSED]


def _artefact(path: Path) -> str:
    header = json.loads(path.read_text())
    data = header["data"]
    allowed = "refused" if PACKAGE in data["source"] else "measured"
    return f"| {header['model']['name']} | {header['method']} | {data['source']} | {data['split']} | {allowed} |"


_REFUSED = """One that is refused is made anew, apart from the essays, with `kvjax calibrate METHOD --model MODEL --out FOLDER`;
policies then take it as `METHOD:artefact=FOLDER`. `kvjax ablate` takes `--artefact FOLDER`, and calibrates first without it."""


def _tasks(rows: list[Row]) -> str:
    return ", ".join(dict.fromkeys(column(row) for row in rows))


def _lines(name: str) -> list[str]:
    made, rows = find(name), ablation.rows_of(name)
    link = f"[{made.title}]({name}.md), {ablation.table_of(made)}"
    if not rows:
        return [f"| {link} | - | - |" + " - |" * len(OUTCOMES) + " not measured |"]
    found = pairs(ablation.variants(made, rows[0]["model"], rows[0]["budget"]), rows)
    origin = "clean" if all(map(clean, rows)) else "changed tree"
    if not found:
        return [f"| {link} | {_tasks(rows)} | {max(row['prompt'] for row in rows) + 1} |" + " - |" * len(OUTCOMES) + f" {origin} |"]
    lines = []
    for task in dict.fromkeys(pair.task for pair in found):
        mine = [pair.verdict for pair in found if pair.task == task]
        words, most = Counter(v.word for v in mine), max(v.difference.count for v in mine)
        lines.append(f"| {link} | {task} | {most} | " + " | ".join(str(words[word]) for word in OUTCOMES) + f" | {origin} |")
    return lines
