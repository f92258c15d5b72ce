"""Check a golden folder: one line a model and cell, a count at the end, non-zero exit on a failure."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import jax

import kvjax
import models
from tests.golden.check_model import check_decode, check_prefill, rows_of
from tests.golden.check_press import check_cell
from tests.golden.folder import GoldenModel, discover
from tests.golden.policies import covered, policy_for
from tests.golden.result import FAIL, NOT_COVERED, PASS, Result


def check(model: GoldenModel) -> Iterator[Result]:
    """Results of one model, one at a time. Every prompt is prefilled once, recording what its cells will read."""
    ref = model.reference()
    ids, cells = rows_of(ref["input_ids"]), model.cells()
    policies = {cell.label: policy_for(cell, len(ids[0])) for cell in cells if covered(cell)}
    lm = models.load(str(model.path), dtype="float32")
    pre = kvjax.prefill(lm, ids, needs=[kvjax.methods.full(), *policies.values()], all_logits=True)
    yield from check_prefill(model.name, pre, ref)
    yield check_decode(model.name, lm, pre, ref)
    for cell in cells:
        if cell.label in policies:
            yield check_cell(model.name, lm, pre, cell=cell, policy=policies[cell.label])
        else:
            yield Result(model.name, cell.label, NOT_COVERED, cell.spec.get("cls", "no manifest entry"))


def _guarded(model: GoldenModel) -> Iterator[Result]:
    """The results, and what stopped them as a failure of its own."""
    try:
        yield from check(model)
    except Exception as error:
        yield Result(model.name, "stopped", FAIL, f"{type(error).__name__}: {error}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder in the golden format")
    parser.add_argument("--only", metavar="MODEL", help="check one model folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if everything that is covered passes, 1 if something fails, 2 if there is nothing to check."""
    arguments = _arguments(argv)
    try:
        found = [m for m in discover(arguments.folder) if arguments.only in (None, m.name)]
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    if not found:
        print(f"no model {arguments.only!r} in {arguments.folder}", file=sys.stderr)
        return 2
    results = []
    for model in found:
        for result in _guarded(model):
            print(result.line(), flush=True)
            results.append(result)
        jax.clear_caches()  # a model's programs fill a fifth of the 65,530 memory maps that Linux grants a process
    count = Counter(result.status for result in results)
    print(f"{count[PASS]} passed, {count[FAIL]} failed, {count[NOT_COVERED]} not covered")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 1 if count[FAIL] else 0


if __name__ == "__main__":
    sys.exit(main())
