"""Runs of training as a process of its own, to be killed: `python -m tests.train.child FOLDER [NAME ...]`.

Without a name TRIM-KV is trained into FOLDER; those of `GATES`, `OTHERS` or `WHOLE` (`tests.train.conftest`) one after another,
each into FOLDER/NAME. NAME@N waits before its step N, counted from 0, to be killed.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import models
from kvjax.train import Examples, train
from kvjax.train.batch import Batch
from models import llama
from tests.conftest import toy_config
from tests.train.conftest import GATES, OTHERS, TRIM, WHOLE, texts

STEPS, EVERY = 60, 2
#: Of each of several learners.
FEW = 12


@dataclass(frozen=True)
class Waiting(Examples):
    """The same examples, and minutes before batch `last`: without them a run of toys may be over before anybody kills it."""

    last: int = -1

    def batch(self, index: int) -> Batch:
        time.sleep(600 if index == self.last else 0)
        return super().batch(index)


def main(folder: str, *words: str) -> None:
    """Train, or go on, and write the weights beside the folder."""
    asked = [word.partition("@")[::2] for word in words]
    layers = 1 if {name for name, _ in asked} & set(GATES | OTHERS) else 2
    lm = models.random(llama.config(toy_config(num_hidden_layers=layers)), seed=0)
    learners, runs = GATES | OTHERS | WHOLE, [(TRIM, Path(folder), STEPS, "")]
    if asked:
        runs = [(learners[name], Path(folder) / name, FEW, last) for name, last in asked]
    found = []
    for learner, out, steps, last in runs:
        source = Waiting(texts(12), rows=2, parts=2, last=int(last or -1))
        found.append(train(lm, learner, source, steps=steps, folder=out, every=EVERY, resume=True).weights)
    np.savez(f"{folder}.npz", *map(np.asarray, jax.tree.leaves(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
