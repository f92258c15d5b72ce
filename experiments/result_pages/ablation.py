"""The page of an ablation: its tables from the committed rows; where there are none, the command that measures them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.ablations.ablation import Ablation, Setting, Variant
from experiments.ablations.page import markdown
from experiments.ablations.run import find
from experiments.result_pages.standing import repeated, said, shown
from experiments.rows import Row
from kvjax.artefacts.artefact import BUILT_IN, Artefact

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "experiments" / "results" / "ablations"


def page(name: str) -> str:
    """docs/results/NAME.md."""
    ablation, rows = find(name), rows_of(name)
    title = [f"# {ablation.title}, {table_of(ablation)}", ""]
    if not rows:
        return "\n".join([*title, *_unmeasured(name, ablation)])
    path = ROWS / f"{name}.jsonl"
    cells = [row for row in rows if row["policy"] != "full"]
    body = markdown(ablation, variants(ablation, cells[0]["model"], cells[0]["budget"]), rows)
    return "\n".join([*title, f"{_sizes_of(cells)}. {said(rows)}", "", body, *repeated(rows, path, ROOT), ""])


def _sizes_of(rows: Sequence[Row]) -> str:
    """Models, lengths and budgets of rows: `smollm2-135m (float32), 1024 and 2048 tokens, budget 0.25`."""

    def joined(words: Iterable[object]) -> str:
        *first, last = map(str, sorted(set(words)))
        return f"{', '.join(first)} and {last}" if first else last

    models = joined(f"{row['model']} ({row['dtype']})" for row in rows)
    return f"{models}, {joined(row['length'] for row in rows)} tokens, budget {joined(row['budget'] for row in rows)}"


def rows_of(name: str) -> list[Row]:
    """The committed rows of an ablation: of the full cache and of variants that it has."""
    rows = shown(ROWS / f"{name}.jsonl")
    if not rows:
        return []
    known = {variant.label for variant in variants(find(name), rows[0]["model"], find(name).budget)}
    found = [row for row in rows if row["policy"] in {"full", *known}]
    return found if len({row["policy"] for row in found} & known) > 1 else []


def variants(ablation: Ablation, model: str, budget: int | float) -> list[Variant]:
    """Labels and what the paper reports, for a model that artefacts are built in for; no policy is built."""
    return list(ablation.variants(Setting(*_sizes(model), budget, _none)))


def table_of(ablation: Ablation) -> str:
    """'arXiv 2508.02401, table 2 (Mistral-7B ...' → 'table 2'."""
    return ablation.source.split(", ", 1)[1].split(" (")[0]


def _sizes(model: str) -> list[int]:
    header = next(iter(sorted((BUILT_IN / model).glob("*/header.json"))))
    facts = json.loads(header.read_text())["model"]
    return [facts[name] for name in ("layers", "heads", "groups", "head_dim")]


def _none(method: str, **changes: object) -> Artefact:
    raise ValueError(f"a page of results builds no policy; asked for an artefact of {method} with {changes}")


def _unmeasured(name: str, ablation: Ablation) -> list[str]:
    return [
        f"{ablation.source}. No rows yet.", "", *([ablation.note, ""] if ablation.note else []),
        "```bash", f"kvjax ablate {name} --out experiments/results/ablations", "```", "",
    ]  # fmt: skip
