"""An ablation as markdown: the paper's table beside ours, then every ordering of the paper with the verdict on it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.compare import Pair, Prompt, Worths, kind, mean_of_prompts, pairs, worths
from experiments.full_cache import MB, OF_HALF, half_nbytes
from experiments.markdown_table import table
from experiments.report.tables import table_nbytes
from experiments.report.words import difference, estimate
from experiments.rows import Row
from experiments.stats import average
from experiments.verdicts import OUTCOMES


def markdown(ablation: Ablation, variants: Sequence[Variant], rows: Sequence[Row]) -> str:
    """The page, without its title's mark: title, table, orderings, note."""
    found = pairs(variants, rows)
    lines = [f"**{ablation.title}** ({ablation.source})", "", *_table(variants, rows), "", BYTES, ""]
    if found:
        lines += [counted(found), "", *_orderings(found), ""]
    return "\n".join(lines + ([ablation.note, ""] if ablation.note else []))


#: Says what the columns of bytes are.
BYTES = (
    f"MB: 10^6 bytes allocated for the prompt, with positions and rounding; {OF_HALF}: the device's bytes as a share of keys and "
    "values of all tokens in 16-bit numbers; tables: codebooks and the like, once a model. "
    "a / b: length by length, where they differ. Intervals: 95%; of a difference paired over prompts."
)


def counted(found: Sequence[Pair]) -> str:
    """How many orderings had each outcome, task by task, in a sentence each."""
    said = []
    for task in dict.fromkeys(pair.task for pair in found):
        words = Counter(pair.verdict.word for pair in found if pair.task == task)
        said.append(f"{task}: {', '.join(f'{words[word]} {word}' for word in OUTCOMES)} of {words.total()} orderings of the paper.")
    return " ".join(said)


def _table(variants: Sequence[Variant], rows: Sequence[Row]) -> list[str]:
    columns = list(dict.fromkeys(name for variant in variants for name in variant.paper))
    found = worths(rows)
    published = {variant.label: variant.published for variant in variants if variant.published is not None}
    heads = ["variant", *(f"paper: {name}" for name in columns), *(["paper's rank"] if published else [])]
    heads += [part for task in found for part in (_title(task), *(["our rank"] if published else []))]
    heads += ["device MB", OF_HALF, "host MB", "tables MB"]
    papers = {variant.label: variant.paper for variant in variants}
    if any("full" in by_label for by_label in found.values()):
        papers = {"full": {}} | papers
    body = [
        [label, *(f"{paper[name]:g}" if name in paper else "-" for name in columns)]
        + ([_rank(label, published)] if published else [])
        + _ours(label, published, found)
        + _bytes([row for row in rows if row["policy"] == label])
        for label, paper in papers.items()
    ]
    return table(heads, body, texts=1)


def _title(task: str) -> str:
    return "ours: ppl, nats/token" if kind(task) == "nats" else f"ours: {task}, %"


def _ours(label: str, published: Mapping[str, float], found: Worths) -> list[str]:
    """Our numbers, each with its rank among the variants that the paper ranks, where it ranks any."""
    cells = []
    for task, by_label in found.items():
        means = {other: _mean(by_label[other]) for other in published if other in by_label}
        cells += [_value(by_label[label], kind(task)) if label in by_label else "-", *([_rank(label, means)] if published else [])]
    return cells


def _value(by_prompt: Mapping[Prompt, float], unit: str) -> str:
    e = mean_of_prompts(by_prompt, unit)
    return f"{estimate(e, unit)} n={e.count}"


def _bytes(rows: Sequence[Row]) -> list[str]:
    """Device MB, their share, host MB, MB of tables; one of each length, where there are several."""
    lengths = sorted({row["length"] for row in rows})
    cells = [_bytes_of([row for row in rows if row["length"] == length]) for length in lengths]
    if not rows:
        return ["-"] * 4
    return [" / ".join(of_length) if len(set(of_length)) > 1 else of_length[0] for of_length in zip(*cells, strict=True)]


def _bytes_of(rows: Sequence[Row]) -> list[str]:
    mean = {name: math.fsum(row[name] for row in rows) / len(rows) for name in ("allocated_bytes", "host_bytes")}
    half = math.fsum(map(half_nbytes, rows)) / len(rows)
    tables = table_nbytes(rows)
    return [
        f"{mean['allocated_bytes'] / MB:.2f}",
        f"{100 * mean['allocated_bytes'] / half:.0f}%",
        f"{mean['host_bytes'] / MB:.2f}",
        "-" if tables is None else f"{tables / MB:.2f}",
    ]


def _mean(by_prompt: Mapping[tuple, float]) -> float:
    return math.fsum(by_prompt.values()) / len(by_prompt)


def _rank(label: str, means: Mapping[str, float]) -> str:
    return f"{1 + sum(other > means[label] for other in means.values())}" if label in means else "-"


def _orderings(found: Sequence[Pair]) -> list[str]:
    heads = ["task", "better in the paper", "than", "paper", "ours", "n", "verdict"]
    return table(heads, [_ordering(pair) for pair in found], texts=3)


def _ordering(pair: Pair) -> list[str]:
    e = pair.verdict.difference
    ours = difference(e, kind(pair.task)) if math.isfinite(e.high) else difference(average([e.mean]), kind(pair.task))
    return [pair.task, pair.better, pair.worse, f"{pair.published:+.2f}", ours, f"{e.count}", pair.verdict.said]
