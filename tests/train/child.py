"""A run of training as a process of its own, to be killed: `python -m tests.train.child FOLDER`."""

import sys

import jax
import numpy as np

import models
from kvjax.train import Examples, train
from models import llama
from tests.conftest import toy_config
from tests.train.conftest import TRIM, texts

STEPS, EVERY = 60, 2


def main(folder: str) -> None:
    """Train, or go on, and write the weights beside the folder."""
    lm = models.random(llama.config(toy_config(num_hidden_layers=2)), seed=0)
    source = Examples(texts(12), rows=2, parts=2)
    trained = train(lm, TRIM, source, steps=STEPS, folder=folder, every=EVERY, resume=True)
    np.savez(f"{folder}.npz", *map(np.asarray, jax.tree.leaves(trained.weights)))


if __name__ == "__main__":
    main(sys.argv[1])
