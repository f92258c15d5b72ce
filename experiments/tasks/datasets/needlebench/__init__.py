"""NeedleBench v2: needles in essays at every depth, and chains of relations (Li et al., 2024, arXiv 2407.11963).

    single            one fact at one of 11 depths; is its keyword in the answer?
    parallel          a fact at each of 11 depths, all asked for; the share of the keywords
    multi_2 .. _5     as many relations of one family, spread from a depth on: who is the eldest?
    atc_2 .. _512     the ancestral trace challenge: nothing but shuffled relations, four types of questions in turn

Source: open-compass/opencompass, datasets/needlebench_v2/ and its configs; v1's score of single is in the row as v1_score. The
texts are in `needlebench.json`. Files, as published, in one folder: PaulGrahamEssays.jsonl, zh_finance.jsonl, needles.jsonl and
names.json. Prompt i has depth 10 (i mod 11) and the benchmark's repeat i // 11 (of seed 0). `length` is the benchmark's length,
of which 500 tokens (Chinese: 200) are kept free. We differ: tokens are the model's, where the benchmark counts GPT-4's; the facts
of parallel are drawn from the seed, where the benchmark leaves them to chance; an answer has at most 128 tokens (single), 512
(parallel) or 1024 (the chains), where the benchmark leaves that to the model's settings (4096 in its example).
"""

from pathlib import Path

from experiments.tasks.dataset_files import datasets_folder
from experiments.tasks.datasets.needlebench.chains import Chain, TraceChallenge
from experiments.tasks.datasets.needlebench.facts import Parallel, Single
from experiments.tasks.datasets.needlebench.task import NeedleBench


def tasks(folder: Path | None = None) -> tuple[NeedleBench, ...]:
    """All tasks in English and Chinese; `folder` (default: needlebench in `datasets_folder()`) holds the files."""
    files = folder or datasets_folder() / "needlebench"
    made: list[NeedleBench] = []
    for language in ("en", "zh"):
        made += [Single(files, language), Parallel(files, language)]
        made += [Chain(files, language, needles=count) for count in range(2, 6)]
        made += [TraceChallenge(files, language, needles=2**power) for power in range(1, 10)]
    return tuple(made)
