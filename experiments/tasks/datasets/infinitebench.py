"""InfiniteBench's 12 tasks (Zhang et al., 2024, "∞Bench", arXiv 2402.13718).

Source: OpenBMB/InfiniteBench, src/eval_utils.py, compute_scores.py and the prompts for open models in prompt.py
(yarn_mistral_templates, without a chat template); NVIDIA/kvpress, evaluation/benchmarks/infinite_bench. The texts are in
`infinitebench.json`. We differ: answers are greedy where the benchmark samples for some models. kvpress's graders end in
an error or a score of 0 for code_run, math_find, math_calc and longbook_sum_eng, since its copy of the data has numbers as
text; these are graded as the benchmark does, and code_debug as kvpress means it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.metrics import mentions, numbers, options
from experiments.tasks.datasets.metrics.qa_f1 import qa_f1, qa_f1_characters_zh
from experiments.tasks.datasets.metrics.rouge_lsum import rouge_lsum
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub
from experiments.tasks.datasets.task import DatasetTask, templates
from experiments.tasks.protocol import OFFICIAL, Asked, Asking, Rules

FOLDER = "hf://datasets/xinrongzhang2022/InfiniteBench/"
Grade = Callable[[str, Sequence[str]], float]


def best(metric: Callable[[str, str], float]) -> Grade:
    """The best score over the references."""
    return lambda answer, references: max((metric(answer, reference) for reference in references), default=0.0)


GRADES: dict[str, Grade] = {
    "passkey": numbers.first_digits,
    "number_string": numbers.first_digits,
    "kv_retrieval": mentions.has_word,
    "longdialogue_qa_eng": mentions.has_name,
    "longbook_sum_eng": best(rouge_lsum),
    "longbook_choice_eng": options.chosen_option,
    "longbook_qa_eng": best(qa_f1),
    "longbook_qa_chn": best(qa_f1_characters_zh),
    "math_find": numbers.first_number,
    "math_calc": numbers.leading_values,
    "code_run": numbers.last_integer,
    "code_debug": options.chosen_bug,
}
KVPRESS_GRADES: dict[str, Grade] = GRADES | {
    "longdialogue_qa_eng": mentions.has_any_name,
    "longbook_choice_eng": options.chosen_option_kvpress,
    "code_debug": options.chosen_bug_kvpress,
}
#: Tasks with four options.
CHOICES = ("longbook_choice_eng", "code_debug")
#: Tokens that kvpress adds to every answer.
MORE_TOKENS = 20


@dataclass(frozen=True)
class InfiniteBench(DatasetTask):
    """A task of InfiniteBench."""

    BENCHMARK: ClassVar[str] = "infinitebench"
    FIELDS: ClassVar[tuple[str, ...]] = ("context", "input", "answer")

    def __post_init__(self) -> None:
        if self.task not in GRADES:
            raise ValueError(f"infinitebench has no task {self.task!r}, only {', '.join(GRADES)}")

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.FIELDS, "options") if self.task in CHOICES else self.FIELDS

    def official(self) -> Rules:
        return Rules(self._whole, self._texts["new_tokens"], GRADES[self.task])

    def kvpress(self) -> Rules:
        return Rules(self._parts, self._texts["new_tokens"] + MORE_TOKENS, KVPRESS_GRADES[self.task])

    def references(self, row: Record) -> tuple[str, ...]:
        """As text; of a choice its text and letter, of math_calc one text of all values."""
        answer = row["answer"]
        if self.task == "math_calc":
            return (str(answer[0] if isinstance(answer[0], list) else answer),)
        answers = tuple(str(item) for item in (answer if isinstance(answer, list) else [answer]))
        if self.task in CHOICES and len(answers) == 1:
            return (*answers, "ABCD"[self._options(row).index(answers[0])])
        return answers

    def meta(self, row: Record) -> dict[str, Any]:
        return {}

    @property
    def _texts(self) -> dict[str, Any]:
        return templates("infinitebench")[self.task]

    def _whole(self, row: Record) -> Asked:
        return Asked(self._texts["whole"].format(**self._values(row)), chat=False)

    def _parts(self, row: Record) -> Asked:
        texts, values = self._texts, self._values(row)

        def without(part: str) -> str:
            return _without(texts[part].format(**values), texts.get(f"not_in_{part}", ""))

        return Asked(without("context"), without("question"), texts["prefix"])

    def _values(self, row: Record) -> dict[str, str]:
        """What the texts are filled with."""
        values = {"context": row["context"], "input": row["input"], "question": row["input"]}
        if self.task in CHOICES:
            values |= {f"OPTION_{x}": option for x, option in zip("ABCD", self._options(row), strict=True)}
        if self.task == "code_run":
            call = self._found(r"func_[0-9]+\(-?[0-9]+\)", row)
            values |= {"func_call": call, "func": call.split("(")[0]}
        if self.task == "math_find":
            values["prefix"] = f"What is {self._found('The .+ of', row).lower()[:-3]} in the following list?"
        return values

    def _options(self, row: Record) -> list[str]:
        answer, options = row["answer"], row["options"]
        right = answer if isinstance(answer, str) else answer[0]
        if len(options) != 4 or right not in options:
            raise ValueError(f"{self.NAME}: expected four options with the answer {right!r} among them, got {options}")
        return options

    def _found(self, pattern: str, row: Record) -> str:
        found = re.search(pattern, row["input"])
        if found is None:
            raise ValueError(f"{self.NAME}: expected an input with {pattern!r}, got {row['input']!r}")
        return found.group()


def tasks(folder: Path | None = None, protocol: Asking = OFFICIAL) -> tuple[InfiniteBench, ...]:
    """All tasks, from TASK.jsonl in `folder` (default: infinitebench in `datasets_folder()`), else from the hub."""
    files = folder or datasets_folder() / "infinitebench"

    def made(name: str) -> LocalOrHub:
        return LocalOrHub(Local(files / f"{name}.jsonl"), Hub(f"{FOLDER}{name}.jsonl"))

    return tuple(InfiniteBench(name, made(name), protocol) for name in GRADES)


def _without(text: str, words: str) -> str:
    return text.replace(words, "") if words else text
