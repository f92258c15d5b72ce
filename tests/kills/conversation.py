"""A conversation that is saved after every answer, and goes on from its file where there is one."""

from pathlib import Path

import kvjax
import models

TURNS = ("The fox ", "jumps over ", "the dog ", "and asks ", "nobody.")


def policy() -> kvjax.Policy:
    """What the conversation is kept by."""
    return kvjax.methods.snapkv(budget=24, window=4)


def converse(argv: list[str]) -> int:
    """MODEL FOLDER: five questions, the cache saved in FOLDER/talk after each answer; its position says which were answered."""
    model, folder = argv
    lm, keep = models.load(model), policy()
    file = Path(folder) / "talk"
    cache = kvjax.load_cache(file, lm, keep) if file.exists() else None
    for number, turn in enumerate(TURNS):
        ids, upto = lm.encode(turn), positions(lm, number)
        if cache is not None and int(cache.position[0]) > upto:
            continue
        if cache is None:
            cache = kvjax.compress(kvjax.prefill(lm, [ids], needs=keep), keep, headroom=64)
        else:
            cache = kvjax.extend(lm, cache, [ids], keep).cache
        cache = kvjax.decode(lm, cache, keep, max_new_tokens=4, stop=()).cache
        kvjax.save_cache(cache, file, lm, keep)
    return 0


def positions(lm: models.LanguageModel, turns: int) -> int:
    """Where the conversation stands after so many turns, and before the next one's last token."""
    return sum(len(lm.encode(turn)) + 4 for turn in TURNS[:turns])
