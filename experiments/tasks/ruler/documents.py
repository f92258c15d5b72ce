"""The question-answering sets that RULER takes documents from, read from their official files.

SQuAD 2.0's `dev-v2.0.json` (Rajpurkar et al., 2018) and HotpotQA's `hotpot_dev_distractor_v1.json` (Yang et al., 2018).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from experiments.provenance import digest


@dataclass(frozen=True)
class Question:
    """A question, its answers, the documents it needs, and documents like them; documents are numbers in a `Collection`."""

    text: str
    answers: tuple[str, ...]
    needed: tuple[int, ...]
    alike: tuple[int, ...] = ()


@dataclass(frozen=True)
class Collection:
    """All different documents, sorted, and all questions that have an answer; `digest` names the file in result rows."""

    documents: tuple[str, ...]
    questions: tuple[Question, ...]
    digest: str = ""


def squad(data: Any) -> Collection:
    """Paragraphs are documents; those of the same article are alike; impossible questions are left out."""
    articles = [[(part["context"], part["qas"]) for part in article["paragraphs"]] for article in data["data"]]
    documents, number = _numbered(text for article in articles for text, _ in article)
    questions = []
    for article in articles:
        group = list(dict.fromkeys(number[text] for text, _ in article))
        for text, asked in article:
            alike = tuple(other for other in group if other != number[text])
            possible = [qa for qa in asked if not qa["is_impossible"]]
            answers = [tuple(answer["text"] for answer in qa["answers"]) for qa in possible]
            made = zip(possible, answers, strict=True)
            questions += [Question(qa["question"], found, (number[text],), alike) for qa, found in made]
    return Collection(documents, tuple(questions))


def hotpotqa(data: Any) -> Collection:
    """A title and its sentences are a document; all ten documents of a question are needed, two of them for the answer."""
    groups = [[f"{title}\n{''.join(lines)}" for title, lines in entry["context"]] for entry in data]
    documents, number = _numbered(text for group in groups for text in group)
    questions = [
        Question(entry["question"], (entry["answer"],), tuple(dict.fromkeys(number[text] for text in group)))
        for entry, group in zip(data, groups, strict=True)
    ]
    return Collection(documents, tuple(questions))


@lru_cache(maxsize=2)
def read(file: Path, layout: Callable[[Any], Collection]) -> Collection:
    """The collection in an official file.

    Raises:
        FileNotFoundError: no such file. ValueError: it has another layout, or too little to ask about.
    """
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}: put the official {file.name} of {layout.__name__} there")
    try:
        written = file.read_bytes()
        found = replace(layout(json.loads(written)), digest=digest([written]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not have the layout of the official {layout.__name__} file: {error!r}") from error
    if not found.questions or len(found.documents) <= len(found.questions[0].needed):
        raise ValueError(f"{file} has {len(found.questions)} questions and {len(found.documents)} documents, too few")
    return found


def _numbered(texts: Any) -> tuple[tuple[str, ...], dict[str, int]]:
    documents = tuple(sorted(set(texts)))
    return documents, {text: i for i, text in enumerate(documents)}
