"""The real small model: parity with transformers' tokens, the README's ten lines, row = solo on real text."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvjax
import models
from experiments.bench.parity import RECORD, divergence, greedy
from kvjax.evidence import RawKeys

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def smollm2():
    return models.load("smollm2-135m")


def test_greedy_tokens_are_those_of_transformers(smollm2):
    """64 tokens on five prompts; two logits within 1e-3 count as a tie and are listed by `kvjax bench parity`."""
    known = json.loads(RECORD.read_text())
    for ids, want in zip(known["prompts"], known["tokens"], strict=True):
        tokens, gaps = greedy(smollm2, ids, len(want))
        parted = divergence(tokens, want, gaps)
        assert parted is None or parted["tie"], parted


def test_the_ten_lines_of_the_readme_run():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    numbers = [int(line) for line in done.stdout.splitlines() if line.isdecimal()]
    assert len(numbers) == 2 and all(4e6 < n < 12e6 for n in numbers)
    kept = re.findall(r"^\[[\d\s]+\]$", done.stdout, re.M)
    assert len(kept) == 2 and kept[0] != kept[1]


def test_the_lines_of_the_first_page_run():
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.S)[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() and 20e6 < int(done.stdout.split()[-1]) < 200e6


def test_row_is_solo_on_real_text(smollm2):
    text = (ROOT / "README.md").read_text()
    prompts = [smollm2.encode(text)[:n] for n in (900, 30, 211, 1500, 64)]
    policy = kvjax.methods.adakv(budget=0.25, window=16)
    batch = kvjax.compress(kvjax.prefill(smollm2, prompts, needs=policy), policy)
    together = kvjax.decode(smollm2, batch, policy, max_new_tokens=24, stop=())
    for r, ids in enumerate(prompts):
        cache = kvjax.compress(kvjax.prefill(smollm2, ids, needs=policy), policy, pool_budget=400)
        for layer in range(30):
            for h in range(3):
                np.testing.assert_array_equal(batch.kept(layer)[r][h], cache.kept(layer)[0][h])
        alone = kvjax.decode(smollm2, cache, policy, max_new_tokens=24, stop=(), pool_budget=400)
        np.testing.assert_array_equal(together.tokens[r], alone.tokens[0])


def test_strings_and_chats_generate_text(smollm2):
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    out = kvjax.generate(smollm2, [chat, "The capital of France is"], kvjax.methods.full(), max_new_tokens=10)
    assert "Paris" in smollm2.decode(out.tokens[0]) and "Paris" in smollm2.decode(out.tokens[1])


def test_coupled_codes_hold_the_first_token_as_well_as_others(smollm2):
    """Attention rests on it: |x - x̂|² / |x|² of its keys and values, by codebooks that come with the library."""
    policy = kvjax.methods.coupled_quantization()
    pre = kvjax.prefill(smollm2, smollm2.encode((ROOT / "README.md").read_text())[:64], needs=policy)
    cache = kvjax.compress(pre, policy)
    lost = np.zeros((30, 2, 64))
    for layer in range(30):
        slots = cache.start[layer][..., None] + np.arange(64)
        got = policy.encode.at(layer).take(cache, layer, slots, np.float32)
        exact = pre.rows[0].evidence[layer].of(RawKeys()), pre.rows[0].v[layer]
        for side, (x, y) in enumerate(zip(exact, got, strict=True)):
            x, y = (np.asarray(a)[0, :, :64] for a in (x, y))
            lost[layer, side] = (((x - y) ** 2).sum(-1) / (x**2).sum(-1)).mean(0)
    assert (lost[..., 0].mean(0) < lost[..., 1:].mean((0, 2))).all()
