"""SCBench's twelve tasks: one long context, several questions (Li et al., 2024, arXiv 2412.10319, ICLR 2025).

    scdq        the context is compressed once, and each question is answered from that cache, as if it were the only one
    multi_turn  the context is compressed with the first question; each later one follows the reference answer before it

Source: microsoft/MInference, scbench/eval_utils.py, run_scbench.py and compute_scores.py. The texts are in `scbench.json`. Rows are
asked their first five turns, as by default there (max_turns): all of them where the file's first row has no more.
`length` is what the first prompt is cut to, its middle left out: of the benchmark's max_seq_length it keeps new_tokens · turns free
(in a task of two kinds half of both, rounded down), and 1000 more in scdq. Of 131,072 kv has 130,322 and 129,322 left.
We differ: a text label of many_shot is one label, where the benchmark's loop takes it letter by letter; in multi_turn each turn of
mf asks for its own number, where the chat template's form asks for the last turn's; an empty system turn is not repeated.
"""

from pathlib import Path

from experiments.tasks.dataset_files import datasets_folder
from experiments.tasks.datasets.scbench.task import MULTI_TURN, SCDQ, SCBench
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub
from experiments.tasks.datasets.task import templates

FOLDER = "hf://datasets/microsoft/SCBench/data/"


def tasks(folder: Path | None = None) -> tuple[SCBench, ...]:
    """All tasks in both modes, from scbench_TASK.jsonl in `folder` (default: scbench in `datasets_folder()`), else from the hub."""
    files = folder or datasets_folder() / "scbench"
    file = "scbench_{}.jsonl".format
    made = {name: LocalOrHub(Local(files / file(name)), Hub(FOLDER + file(name))) for name in templates("scbench")}
    return tuple(SCBench(name, source, protocol) for name, source in made.items() for protocol in (SCDQ, MULTI_TURN))
