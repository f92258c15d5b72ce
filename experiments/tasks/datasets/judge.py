"""A language model that judges answers: greedy, a few tokens, the full cache."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import kvjax
from experiments.tasks.chat import encode_plain, frame

VARIABLE = "KVJAX_JUDGE"


class Judge(Protocol):
    """What grades answers that no rule can: its name goes into every result row."""

    @property
    def name(self) -> str: ...
    def answer(self, prompt: str) -> str: ...


@dataclass(frozen=True, eq=False)
class ModelJudge:
    """A model of this library; `new_tokens` tokens of its greedy answer are read."""

    lm: Any
    new_tokens: int = 10

    @property
    def name(self) -> str:
        return f"judge {self.lm.name}"

    def answer(self, prompt: str) -> str:
        """The model's words on a user's prompt."""
        before, after = frame(self.lm)
        policy = kvjax.methods.full()
        cache = kvjax.compress(kvjax.prefill(self.lm, encode_plain(self.lm, before + prompt)), policy)
        heard = kvjax.extend(self.lm, cache, [encode_plain(self.lm, after)], policy)
        out = kvjax.decode(self.lm, heard.cache, policy, max_new_tokens=self.new_tokens, stop=self.lm.stop_ids)
        return self.lm.decode([int(token) for token in out.tokens[0][: int(out.lengths[0])]])


def judge_named(without: str) -> ModelJudge:
    """The model that KVJAX_JUDGE names. Raises ValueError where it names none; `without` says what does without one."""
    if not os.environ.get(VARIABLE):
        raise ValueError(f"no judge: set {VARIABLE} to a model (a name or a folder, as --model takes). {without}")
    return _loaded(os.environ[VARIABLE])


@cache
def _loaded(name: str) -> ModelJudge:
    import models

    return ModelJudge(models.load(name))
