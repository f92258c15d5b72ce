"""RULER's thirteen tasks (Hsieh et al., 2024, arXiv 2404.06654), with the settings of the benchmark's scripts/synthetic.yaml.

`Answering(task)` puts one in a sweep. The length of a prompt counts everything: chat template, context, question, the
answer's opening and the tokens to generate.
"""

from pathlib import Path

from experiments.tasks.dataset_files import datasets_folder
from experiments.tasks.generated import Generated
from experiments.tasks.ruler.common_words import CommonWords
from experiments.tasks.ruler.documents import hotpotqa, squad
from experiments.tasks.ruler.frequent_words import FrequentWords
from experiments.tasks.ruler.haystacks import Essay, Needles, Noise
from experiments.tasks.ruler.kinds import UUIDS
from experiments.tasks.ruler.niah import Niah
from experiments.tasks.ruler.qa import QuestionAnswering
from experiments.tasks.ruler.variables import VariableTracking


def tasks(folder: Path | None = None) -> tuple[Generated, ...]:
    """The thirteen tasks; `folder` (default: `datasets_folder()`) holds the two official question-answering files."""
    files = folder or datasets_folder()
    return (
        Niah("niah_single_1", Noise()),
        Niah("niah_single_2", Essay()),
        Niah("niah_single_3", Essay(), values=UUIDS),
        Niah("niah_multikey_1", Essay(), n_keys=4),
        Niah("niah_multikey_2", Needles()),
        Niah("niah_multikey_3", Needles(), keys=UUIDS, values=UUIDS),
        Niah("niah_multivalue", Essay(), n_values=4),
        Niah("niah_multiquery", Essay(), n_queries=4),
        VariableTracking("vt"),
        CommonWords("cwe"),
        FrequentWords("fwe"),
        QuestionAnswering("qa_1", files / "dev-v2.0.json", squad),
        QuestionAnswering("qa_2", files / "hotpot_dev_distractor_v1.json", hotpotqa),
    )
