"""H2O and TOVA as published: cut after the prompt and after every token, on the toy model."""

from dataclasses import dataclass, field

import numpy as np
import pytest

import kvjax
from tests.conftest import ids_of
from tests.methods.simulation import decodes_as, prefilled, prompt_arrays
from tests.reference import h2o, tova

BUDGET = 24


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return prompt_arrays(lm, prompt)


@pytest.mark.parametrize("recent", [12, 6])
def test_h2o(lm, pre, layers, recent):
    policy = kvjax.methods.h2o(budget=BUDGET, recent_share=recent / BUDGET)
    rules = prefilled(layers, lambda layer, head: h2o.Decoding(BUDGET - recent, recent))
    decodes_as(lm, pre, policy, layers, rules, ids_of(64, 3))


@dataclass
class OneSet:
    """What all heads of a layer hold; the last of them to show its row decides."""

    protect_last: bool
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    rows: list = field(default_factory=list)

    def prefill(self, a):
        self.held = np.arange(a.shape[-1])
        self._see(a[:, -1])

    def step(self, a, t):
        if not self.rows:
            self.now = np.append(self.held, t)
        self._see(a)

    def _see(self, row):
        self.rows.append(row)
        if len(self.rows) == 2:
            held = self.held if len(row[0]) == len(self.held) else self.now
            self.held = held[tova.kept(np.concatenate(self.rows), BUDGET, protect_last=self.protect_last)]
            self.rows = []


@pytest.mark.parametrize("protect_last", [False, True])
def test_tova(lm, pre, layers, protect_last):
    of_layer = [OneSet(protect_last) for _ in layers]
    rules = prefilled(layers, lambda layer, head: of_layer[layer])
    policy = kvjax.methods.tova(budget=BUDGET, protect_last=protect_last)
    decodes_as(lm, pre, policy, layers, rules, ids_of(64, 3))
