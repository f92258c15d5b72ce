"""Runs of training as a process of its own, to be killed: `python -m tests.train.child FOLDER [NAME ...]`.

Without a name TRIM-KV is trained into FOLDER; those of `GATES`, `OTHERS` or `WHOLE` (`tests.train.conftest`) one after another,
each into FOLDER/NAME.
"""

import sys
from pathlib import Path

import jax
import numpy as np

import models
from kvjax.train import Examples, train
from models import llama
from tests.conftest import toy_config
from tests.train.conftest import GATES, OTHERS, TRIM, WHOLE, texts

STEPS, EVERY = 60, 2
#: Of each of several learners.
FEW = 12


def main(folder: str, *names: str) -> None:
    """Train, or go on, and write the weights beside the folder."""
    named = GATES | OTHERS | WHOLE
    runs = [(TRIM, Path(folder), STEPS)] if not names else [(named[name], Path(folder) / name, FEW) for name in names]
    lm = models.random(llama.config(toy_config(num_hidden_layers=1 if set(names) & set(GATES | OTHERS) else 2)), seed=0)
    source = Examples(texts(12), rows=2, parts=2)
    found = [train(lm, learner, source, steps=n, folder=out, every=EVERY, resume=True).weights for learner, out, n in runs]
    np.savez(f"{folder}.npz", *map(np.asarray, jax.tree.leaves(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
