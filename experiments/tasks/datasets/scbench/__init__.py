"""SCBench's twelve tasks: one long context, several questions (Li et al., 2024, arXiv 2412.10319, ICLR 2025).

    scdq        the context is compressed once, and each question is answered from that cache, as if it were the only one
    multi_turn  the context is compressed with the first question; each later one follows the reference answer before it

Source: microsoft/MInference, scbench/eval_utils.py, run_scbench.py and compute_scores.py. The texts are in `scbench.json`.
`length` is max_seq_length: of a longer first prompt the middle is left out. We differ: a text label of many_shot is one label,
where the benchmark's loop takes it letter by letter; in multi_turn each turn of mf asks for its own number, where the chat
template's form asks for the last turn's; an empty system turn is not repeated.
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
