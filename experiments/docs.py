"""`python -m experiments.docs` writes docs/methods.md and the tables of README.md, docs/add_a_gate.md and docs/stages.md.

`kvjax results` writes the pages of docs/results.
"""

import sys
from pathlib import Path

from experiments import stage_tables
from experiments.commands.methods import bytes_text, every_method
from experiments.files import write_atomically
from experiments.method_kinds import KINDS, kind
from experiments.result_pages import board
from experiments.train import table as gates
from kvjax.catalogue import MethodInfo

ROOT = Path(__file__).parents[1]
DOCS, README = ROOT / "docs", ROOT / "README.md"
PAGE, GATES, STAGES = DOCS / "methods.md", DOCS / "add_a_gate.md", DOCS / "stages.md"
#: The lines of README.md between which the table of methods stands.
BEGIN, END = "<!-- methods: python -m experiments.docs -->", "<!-- end of methods -->"
#: The same of the first lines of the leaderboard, and how many there are.
BEGIN_BOARD, END_BOARD = "<!-- leaderboard: python -m experiments.docs -->", "<!-- end of leaderboard -->"
BEST = 6

_HEAD = """# Methods

Written by `python -m experiments.docs` from `kvjax.methods.info(name)`; `kvjax methods` prints the same. Bytes are of a slot of one
KV head of dimension 128 in bfloat16, its position and statistics included.
"""


def page() -> str:
    """docs/methods.md."""
    return "\n".join([_HEAD, *map(section, every_method())])


def section(info: MethodInfo) -> str:
    """One method."""
    stages = " · ".join(f"{slot} `{kind}`" for slot, kind in info.stages.items())
    arguments = ", ".join(name if default == "required" else f"{name}={default}" for name, default in info.parameters.items())
    lines = [
        f"## {info.name}", "", f"**{info.title}**", "", f"`kvjax.methods.{info.name}({arguments})`", "",
        f"{info.keeps[:1].upper()}{info.keeps[1:]}.", "",
        *([f"- Paper: {cited(info)}"] if info.paper or info.arxiv else []),
        f"- Acts: {info.acts}",
        f"- Stages: {stages}",
        *([f"- Reads: {', '.join(info.evidence)}"] if info.evidence else []),
        *([f"- Needs: {', '.join(info.requires)}"] if info.requires else []),
        *([f"- Bytes a slot: {bytes_text(info)}"] if info.slot_nbytes is not None else []),
        *([f"- Differs: {info.differs}"] if info.differs else []), "",
    ]  # fmt: skip
    return "\n".join(lines)


def cited(info: MethodInfo) -> str:
    """Title, number and year, as far as they are known."""
    known = [f"*{info.paper}*" if info.paper else "", link(info), str(info.year or "")]
    return ", ".join(part for part in known if part)


def link(info: MethodInfo) -> str:
    """The paper's number; nothing where there is none."""
    return "" if info.arxiv is None else f"arXiv {info.arxiv}"


def table() -> str:
    """README's table: the methods of each kind, with links; ¹ needs a calibration, ² a second pass over the prompt."""
    marks = {"calibration": "¹", "second pass": "²"}
    found = every_method()
    rows = []
    for which in KINDS:
        links = [
            f"[{x.name}](docs/methods.md#{x.name}){''.join(marks.get(r, '') for r in x.requires)}"
            for x in found
            if which == kind(x)
        ]
        rows.append(f"| {which} | {' · '.join(links)} |")
    return "\n".join([f"| {len(found)} methods | ¹ wants a calibration, ² a second pass over the prompt |", "| --- | --- |", *rows])


def with_table(text: str) -> str:
    """A README with the table of methods between its two marks."""
    return between(text, table(), BEGIN, END, of="README.md")


def with_board(text: str) -> str:
    """A README with the first lines of the leaderboard between theirs."""
    best = "\n".join(board.top(BEST)).replace("../methods.md", "docs/methods.md")
    return between(text, best, BEGIN_BOARD, END_BOARD, of="README.md")


def with_gates(text: str) -> str:
    """docs/add_a_gate.md with the tables of the gates that were trained for the small model."""
    return between(text, gates.table(), gates.BEGIN, gates.END, of="docs/add_a_gate.md")


def with_tables(text: str) -> str:
    """docs/stages.md with the built-in stages of every kind."""
    for mark in stage_tables.KINDS:
        begin, end = f"<!-- {mark}: python -m experiments.docs -->", f"<!-- end of {mark} -->"
        text = between(text, stage_tables.lines(mark), begin, end, of="docs/stages.md")
    return text


def between(text: str, new: str, begin: str, end: str, *, of: str) -> str:
    """The text with `new` between two marks.

    Raises:
        ValueError: the marks are not there, once each and in order.
    """
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end) or begin in rest or end in after:
        raise ValueError(f"{of} must hold {begin} and {end}, once each")
    return f"{before}{begin}\n\n{new}\n\n{end}{after}"


def main() -> int:
    """Write all four."""
    write_atomically(PAGE, page().encode())
    write_atomically(README, with_board(with_table(README.read_text())).encode())
    write_atomically(GATES, with_gates(GATES.read_text()).encode())
    write_atomically(STAGES, with_tables(STAGES.read_text()).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
