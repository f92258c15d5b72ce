"""What a run of `kvjax train` on the small model did, and what its gate is worth where it is served: a file of experiments/results.

    python -m experiments.train.record --command "kvjax train METHOD ..." --trained FILE --run FOLDER.run --minutes 7.5
      --served FILE --served-command "python -m experiments.train.served ..." [--heads FILE] [--shipped FOLDER]

writes experiments/results/train_METHOD_smollm2.json, from which the table of docs/add_a_gate.md is made.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.console import out
from experiments.files import write_atomically

RESULTS = Path(__file__).parents[1] / "results"


def path_of(method: str) -> Path:
    """The file of a method's run."""
    return RESULTS / f"train_{method}_smollm2.json"


def record(
    command: str, trained: Mapping[str, Any], log: Sequence[str], minutes: float, served: Mapping[str, Any], served_command: str,
    heads: Mapping[str, Any] | None, shipped: str,
) -> str:  # fmt: skip
    """The file's text; a line for each step of the log.

    Args:
        trained: what `kvjax train --json` wrote.   log: lines of its log.jsonl.
        served: what `experiments.train.served --json` wrote, of this method among others.
        heads: what `experiments.train.retrieval_heads --json` wrote.
        shipped: where the artefact is in the library, or why it is not.

    Raises:
        ValueError: what was served is another artefact.
    """
    facts = {name: x for name, x in trained.items() if name not in ("out", "held_out")}
    mine = served[facts["method"]]
    nats = {name: x for name, x in mine.items() if name not in ("artefact", "slots")}
    if mine["artefact"] != facts["origin"]:
        raise ValueError(f"what was served is {mine['artefact']}, what was trained is {facts['origin']}: serve that one")
    told = {"command": served_command, "slots": mine["slots"], **{name: served.get(name, 0) for name in ("prompt", "new", "sinks")}}
    told |= {"nats": nats}
    body = ",\n".join(f"   {line}" for line in log)
    said = [
        f' "shipped": {json.dumps(shipped)},',
        f' "minutes": {minutes:g},',
        f' "{facts["method"]}": {{',
        f'  "command": {json.dumps(command)},',
        f'  "artefact": {json.dumps(facts)},',
        f'  "held_out": {json.dumps(trained["held_out"])},',
        f'  "log": [\n{body}\n  ]\n }},',
    ]
    beside = [f' "heads": {json.dumps(heads)},'] if heads else []
    lines = ["{", ' "model": "smollm2-135m",', *said, *beside, f' "served": {json.dumps(told)}', "}", ""]
    return "\n".join(lines)


def main(
    command: Annotated[str, typer.Option(help="The command that trained it.")],
    trained: Annotated[Path, typer.Option(help="What its --json wrote.")],
    run: Annotated[Path, typer.Option(help="Its folder of checkpoints.")],
    minutes: Annotated[float, typer.Option(help="Minutes of a core that it took (user and system).")],
    served: Annotated[Path, typer.Option(help="What `python -m experiments.train.served` wrote.")],
    served_command: Annotated[str, typer.Option(help="That command.")],
    heads: Annotated[Path | None, typer.Option(help="What `python -m experiments.train.retrieval_heads` wrote.")] = None,
    shipped: Annotated[str, typer.Option(help="Where the artefact is in the library, or why it is not.")] = "no",
) -> None:
    """Write the file."""
    facts, lines = json.loads(trained.read_text()), (run / "log.jsonl").read_text().splitlines()
    known = json.loads(heads.read_text()) if heads else None
    text = record(command, facts, lines, minutes, json.loads(served.read_text()), served_command, known, shipped)
    write_atomically(path_of(facts["method"]), text.encode())
    out.print(str(path_of(facts["method"])), markup=False)


if __name__ == "__main__":
    typer.run(main)
