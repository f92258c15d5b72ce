"""The one place where a name on the command line becomes a task."""

from experiments.sweep import Task
from experiments.tasks import (
    conversation,
    countdown,
    counting,
    gsm8k,
    intents,
    keyvalue,
    math_exact,
    needle,
    niah,
    paraphrase,
    ppl,
    recall,
    ruler,
)
from experiments.tasks.answering import Answering, AnsweringInParts
from experiments.tasks.datasets import (
    aime,
    infinitebench,
    longbench,
    longbench_e,
    longbench_v2,
    longmemeval,
    longproc,
    needlebench,
    scbench,
    zeroscrolls,
)  # fmt: skip
from experiments.tasks.protocol import KVPRESS, OFFICIAL
from experiments.tasks.sampled import SampledAnswering

_GENERATED = (
    needle, *ruler.tasks(), niah.GRID, niah.MULTI, keyvalue.KEY_VALUE, paraphrase.PARAPHRASE, paraphrase.LITERAL, recall.RECALL,
    intents.INTENTS, gsm8k.GSM8K, math_exact.MATH,
)  # fmt: skip
_BENCHMARKS = (longbench, longbench_e, longbench_v2, infinitebench)
_DATASETS = [task for made in _BENCHMARKS for protocol in (OFFICIAL, KVPRESS) for task in made.tasks(protocol=protocol)]
_OWN_RULES = [task for made in (longmemeval, longproc, needlebench, zeroscrolls) for task in made.tasks()]
_IN_PARTS = (*_OWN_RULES, countdown.COUNTDOWN, counting.COUNTING, counting.GIVEN)

TASKS: dict[str, Task] = {task.NAME: task for task in map(Answering, (*_GENERATED, *_DATASETS))}
TASKS |= {task.NAME: task for task in map(AnsweringInParts, _IN_PARTS)}
TASKS |= {task.NAME: task for task in map(SampledAnswering, aime.tasks())}
TASKS |= {task.NAME: task for task in (ppl, conversation.CONVERSATION, *scbench.tasks())}

#: What --help and errors say; the benchmarks' tasks are too many to list.
KNOWN = ", ".join(
    [name for name in TASKS if "/" not in name]
    + sorted({f"{a}/TASK/{c}" for a, _, c in (name.split("/") for name in TASKS if "/" in name)})
)


def parse_tasks(names: str, question: str) -> tuple[tuple[Task, str], ...]:
    """`"needle,ppl"` and a question mode -> (task, mode) pairs; a task without a question runs once.

    Raises:
        ValueError: an unknown task or question mode, a task that cannot be asked in that mode.
    """
    if question not in ("unseen", "seen", "both"):
        raise ValueError(f"--question {question!r} is none of unseen, seen, both")
    pairs = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in TASKS:
            raise ValueError(f"unknown task {name!r}; known: {KNOWN}")
        modes = [mode for mode in TASKS[name].MODES if mode == question or question == "both" or mode == "-"]
        if not modes:
            known = " or ".join(TASKS[name].MODES)
            raise ValueError(f"{name} compresses with the question {known}: --question says {question}")
        pairs += [(TASKS[name], mode) for mode in modes]
    if not pairs:
        raise ValueError("--tasks is empty: give at least one value")
    return tuple(dict.fromkeys(pairs))
