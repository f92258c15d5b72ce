"""The page of decoding for long at a budget that stays."""

import json
from pathlib import Path

from experiments.bench.long_decode import methods, table
from experiments.markdown_table import table as lines_of

FILE = Path(__file__).parents[1] / "results" / "long_decode.json"
_HEADS = (
    "method", "most slots of a head", "most kB", "kB at its bound", "ms a token", "StreamingLLM in turns, ms", "ratio",
)  # fmt: skip
_ABOUT = """Methods that hold a budget while decoding, and need neither training nor calibration, decode for long on a random model;
it samples, so that the text does not repeat itself. After every block it is seen that the logits are numbers, that the next
position is that of the text, that every slot holds a token of the text and none twice, and that slots and bytes stay within
what the schedule bounds. Slots and kB are the most that was seen after a block, when what evicts every so many tokens has just
done so; between it holds as many slots more, up to the kB of its bound. A method that shares a budget over layers holds more in
some. Times are of blocks of the method and of StreamingLLM, which ranks nothing, in turns: what a ratio is above 1 is the price
of ranking and merging, on a model so small that a step is little else; well below 1 it is what evicting seldom saves;
StreamingLLM beside itself shows what is chance."""
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
