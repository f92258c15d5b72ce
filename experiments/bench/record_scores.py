"""Recording what `peer_scores` reads: a step at a time, each written before the next, those already there left alone."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bench.beside import cell, interpreter, peers
from experiments.bench.peer_scores import GRADERS, NEW_TOKENS, RECORD, digest
from experiments.files import write_atomically
from experiments.tasks.chat import continuation, encode_plain
from experiments.tasks.keyvalue import KEY_VALUE
from experiments.tasks.text import Haystack

#: (task, length): prompts, and how many of them transformers answers.
PROMPTS = {("kv_lines", 1024): (10, 10), ("keyvalue", 1024): (6, 6), ("niah_essay", 1024): (50, 10), ("niah_essay", 2048): (20, 16)}
#: Prompts that transformers answers between two writes of the record.
AT_ONCE = 8
#: (task, length, mode): the file of raw/ with kvpress's verdicts; None where it has none: transformers' full cache alone.
SETS = {
    ("niah_essay", 1024, "unseen"): "q_agnostic.jsonl", ("niah_essay", 1024, "seen"): "q_aware.jsonl",
    ("niah_essay", 2048, "unseen"): "q_agnostic_2k.jsonl", ("kv_lines", 1024, "unseen"): None, ("keyvalue", 1024, "unseen"): None,
}  # fmt: skip
HOW = (
    "Made by `kvjax bench peer-scores --record FOLDER`. digest: of the token ids from `FOLDER/quality_peers.py --dump` (keyvalue: "
    "from our own task). tokens: greedy, transformers' full cache, the same ids (niah_essay: from the text in "
    "FOLDER/raw/probe.jsonl). score: of the full cache. verdicts: right or wrong, a character a prompt, by kvpress, from "
    "FOLDER/raw; METHOD/RATIO, the ratio is the share removed."
)


@dataclass(frozen=True)
class Script:
    """`quality_peers.py`, run in the peers' interpreter."""

    folder: Path
    model: str
    text: Path

    def prompts(self, task: str, length: int, count: int) -> list[dict[str, Any]]:
        """What `--dump` writes."""
        out = self.text.with_name("prompts.jsonl")
        words = ["--model", self.model, "--text", self.text, "--task", task, "--length", str(length), "--n", str(count)]
        quiet = os.environ | {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [interpreter(), self.folder / "quality_peers.py", *words, "--dump", out]
        done = subprocess.run(command, capture_output=True, text=True, env=quiet)
        if done.returncode:
            raise OSError(f"quality_peers.py failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        return _lines(out)


def record(lm: Any, folder: Path, text: Haystack, methods: Sequence[str], path: Path = RECORD) -> None:
    """Write the record for `methods`; a step whose result the file holds is skipped, so that a killed run goes on.

    Args:
        lm: the model.   folder: of quality_peers.py and raw/.   text: of the needles.   methods: names as kvpress's table has them.

    Raises:
        OSError: no interpreter with the peers, no quality_peers.py in `folder`, or one of them failed.
    """
    if interpreter() is None or not (folder / "quality_peers.py").is_file():
        raise OSError(f"--record needs a Python with the peers ($KVJAX_PEERS) and {folder / 'quality_peers.py'}; one is not there")
    empty = {"how": HOW, "model": lm.name, "text": text.source, "versions": {}, "prompts": {}, "sets": []}
    stored = json.loads(path.read_text()) if path.is_file() else empty
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "text.txt"
        file.write_text(text.text)
        script = Script(folder, lm.origin, file)
        for _ in _steps(lm, script, stored, methods):
            write_atomically(path, (json.dumps(stored) + "\n").encode())


def _steps(lm: Any, script: Script, stored: dict, methods: Sequence[str]) -> Iterable[None]:
    ids: dict[str, Sequence[dict]] = {}
    for (task, length), (count, _) in PROMPTS.items():
        name = f"{task}/{length}"
        ids[name] = _keyvalue(lm, length, count) if task == "keyvalue" else _dumped(lm, script.prompts(task, length, count))
        stored["prompts"].setdefault(name, [_without_text(prompt, task) for prompt in ids[name]])
    stored["sets"] = [_set(name, source, script.folder / "raw", methods) for name, source in SETS.items()]
    _grade(lm, stored["prompts"], script.folder / "raw")
    yield
    for (task, length), (_, answered) in PROMPTS.items():
        yield from _ask(lm, stored, task, ids[f"{task}/{length}"][:answered], stored["prompts"][f"{task}/{length}"])


def _ask(lm: Any, stored: dict, task: str, ids: Sequence[dict], said: list[dict]) -> Iterable[None]:
    """Put transformers' tokens and their score into those of `said` that have none, a few prompts a step."""
    todo = [i for i in range(len(ids)) if said[i]["tokens"] is None]
    for part in (todo[at : at + AT_ONCE] for at in range(0, len(todo), AT_ONCE)):
        tokens, stored["versions"] = _answers(lm, [ids[i] for i in part], NEW_TOKENS[task])
        for i, found in zip(part, tokens, strict=True):
            words = continuation(lm, ids[i]["prefix"], found)
            said[i] |= {"tokens": found, "score": float(GRADERS[task].grade(words, (said[i]["answer"],)))}
        yield


def _set(name: tuple[str, int, str], source: str | None, raw: Path, methods: Sequence[str]) -> dict[str, Any]:
    rows = _lines(raw / source) if source else []
    made = f"raw/{source}" if source else "transformers alone"
    return {**dict(zip(("task", "length", "mode"), name, strict=True)), "source": made, "verdicts": _verdicts(rows, methods)}


def _grade(lm: Any, prompts: dict[str, list[dict]], raw: Path) -> None:
    """Put the full cache's recorded verdicts, and answers where their text is recorded, where there are none yet."""
    for (task, length, _), source in SETS.items():
        for said, row in zip(prompts[f"{task}/{length}"], _lines(raw / source) if source else (), strict=False):
            said["score"] = float(row["full"]) if said["score"] is None else said["score"]
    for row in _lines(raw / "probe.jsonl"):
        said = dict(enumerate(prompts.get(f"{row['task']}/{row['length']}", ()))).get(row["i"])
        if said is not None and said["tokens"] is None:
            said["tokens"] = encode_plain(lm, row["full_text"])[: NEW_TOKENS[row["task"]]]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _dumped(lm: Any, rows: Sequence[dict]) -> list[dict[str, Any]]:
    """The peers' prompts as we split them; the context's ids are the peers' own, the short rest is encoded here too."""

    def ids(text: str) -> list[int]:
        return encode_plain(lm, text)

    rests = [(ids(row["question"]), ids(row["tail"] + row["answer_prefix"])) for row in rows]
    rooms = [len(ids(" " + row["answer"])) for row in rows]
    return [_prompt(row["context_ids"], *rest, row["answer"], room) for row, rest, room in zip(rows, rests, rooms, strict=True)]


def _keyvalue(lm: Any, length: int, count: int) -> list[dict[str, Any]]:
    made = KEY_VALUE.examples(lm, length, count, 0, haystack=(), mode="unseen")
    return [_prompt(x.context, x.question, x.prefix, x.references[0], x.new_tokens) for x in made]


def _prompt(context: Sequence[int], question: Sequence[int], prefix: Sequence[int], answer: str, room: int) -> dict[str, Any]:
    parts = {"context": list(context), "question": list(question), "prefix": list(prefix)}
    ids = [i for part in parts.values() for i in part]
    return parts | {"digest": digest(ids), "answer": answer, "answer_tokens": room, "tokens": None, "score": None}


def _answers(lm: Any, found: Sequence[dict], new: int) -> tuple[list[list[int]], dict[str, str]]:
    """Transformers' greedy tokens after each prompt, and the peers' versions."""
    asked = [{"context": x["context"], "fed": x["question"] + x["prefix"]} for x in found]
    theirs = peers(lm, [cell(None, 1.0)], asked, dtype="float32", rounds=0, new=new)
    if "missing" in theirs:
        raise OSError(theirs["missing"])
    return [run["tokens"] for run in next(iter(theirs["cells"].values()))], theirs["versions"]


def _without_text(prompt: dict[str, Any], task: str) -> dict[str, Any]:
    """The essays' ids stay out of the record."""
    return {name: value for name, value in prompt.items() if task == "kv_lines" or name not in ("context", "question", "prefix")}


def _verdicts(rows: Sequence[dict], methods: Sequence[str]) -> dict[str, str]:
    names = [name for name in (rows[0]["res"] if rows else ()) if name.partition("/")[0] in methods]
    return {name: "".join(str(int(row["res"][name])) for row in rows) for name in names}
