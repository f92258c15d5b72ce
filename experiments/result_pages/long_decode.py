"""The page of decoding for long at a budget that stays."""

import json
from pathlib import Path

from experiments.bench.long_decode import methods, table
from experiments.markdown_table import table as lines_of

FILE = Path(__file__).parents[1] / "results" / "long_decode.json"
_HEADS = ("method", "slots of a head, at most", "cache kB, at most", "ms a token", "StreamingLLM in turns, ms", "ratio")
_ABOUT = """Methods that hold a budget while decoding, and need neither training nor calibration, decode for long on a random model;
it samples, so that the text does not repeat itself. After every block it is seen that the logits are numbers, that the next
position is that of the text, that every slot holds a token of the text and none twice, and that slots and bytes stay within
what the schedule bounds. Times are of blocks of the method and of StreamingLLM, which ranks nothing, in turns: what a ratio is
above 1 is the price of ranking and merging, on a model so small that a step is little else. A method that evicts every so many
tokens holds its budget and as many slots more, and a ratio below 1 is what it saves by evicting seldom; one that shares a budget
over layers holds more in some."""
_COMMAND = "kvjax bench long --json experiments/results/long_decode.json"


def page() -> str:
    """docs/results/long_decode.md."""
    found = json.loads(FILE.read_text())
    lines = ["# Decoding for long", "", _ABOUT, ""]
    asked, there = methods(), found["cells"]
    missing = [name for name in asked if name not in there]
    left = f"; not measured yet: {', '.join(missing)}" if missing else ""
    lines += [f"{found['shape']}, {found['dtype']}, on {found['machine']}: {len(there)} of {len(asked)} methods{left}.", ""]
    lines += lines_of(_HEADS, table(found), texts=1)
    return "\n".join([*lines, "", "```bash", _COMMAND, "```", ""])
