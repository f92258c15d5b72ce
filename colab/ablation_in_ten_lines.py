# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # An ablation in ten lines
# What does each part of a method bring? Swap one stage at a time, leave the rest, and measure. All variants share one prefill.
#
# The ten lines are the loop: for each stretch of text, prefill once, compress with every variant, and take the nats per token of
# what follows.

# %%
import importlib
import importlib.metadata
import pathlib
import subprocess
import sys

SOURCE = "kvjax"  # a clone of this repository, as seen from the working folder: on Colab /content/kvjax

# An installed kvjax has metadata; a folder of that name beside the notebook imports as an empty package and is none.
if not any(importlib.metadata.distributions(name="kvjax")):  # where kvjax is installed already, this cell does nothing
    source = pathlib.Path(SOURCE).resolve()
    if not (source / "constraints.txt").is_file():
        raise FileNotFoundError(f"{source} is no clone of kvjax: clone the repository there, or change SOURCE")
    tpu = any(pathlib.Path(chip).exists() for chip in ("/dev/accel0", "/dev/vfio/0"))
    extra = "[gpu]" if pathlib.Path("/dev/nvidiactl").exists() else "[tpu]" if tpu else ""
    command = [sys.executable, "-m", "pip", "install", "-q", "-c", f"{source}/constraints.txt", f"{source}{extra}"]
    subprocess.run(command, check=True)
    importlib.invalidate_caches()

# %%
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

import kvjax
import models
from experiments.tasks import ppl
from experiments.tasks.example import Example, Read
from kvjax.allocate import Adaptive, Pyramid
from kvjax.score import KeyDiff, WindowAttention
from kvjax.select import TopK

lm = models.load("smollm2-135m")
text = lm.encode("\n\n".join(topics[name] for name in ("with", "try", "class", "import")))
starts, length, after = (0, 700, 1400), 320, 64

# %%
snapkv = kvjax.methods.snapkv(budget=0.2)
variants = {
    "snapkv": snapkv,
    "− window kept": snapkv.replace(select=TopK()),
    "− smoothing": snapkv.replace(score=WindowAttention(window=32, pool=kvjax.score.NoPool())),
    "score by keys": snapkv.replace(score=KeyDiff()),
    "+ budgets by head": snapkv.replace(allocate=Adaptive(alpha=0.2)),
    "+ budgets by depth": snapkv.replace(allocate=Pyramid()),
    "all kept": kvjax.methods.full(),
}
nats = {name: [] for name in variants}
for start in starts:
    example = Example("ppl", "-", length, start, tuple(text[start : start + length]), (), (), tuple(text[start + length :][:after]))
    pre = kvjax.prefill(lm, list(example.context), needs=variants.values())
    rows = kvjax.stack([kvjax.compress(pre, policy) for policy in variants.values()])  # one batch: decoded together
    for name, measured in zip(variants, ppl.measure(lm, rows, snapkv, [Read(example, pre)] * len(variants))):
        nats[name].append(measured["nll"])

# %%
means = {name: np.mean(values) for name, values in nats.items()}
plt.figure(figsize=(7, 3.2))
plt.barh(list(means), list(means.values()), color=["#0072b2"] + ["#d55e00"] * 3 + ["#009e73"] * 2 + ["#999999"])
for values, y in zip(nats.values(), range(len(nats))):
    plt.plot(values, [y] * len(values), "k.", markersize=4)
plt.gca().invert_yaxis()
plt.xlabel("nats a token (a dot is one text)")
plt.tight_layout()
plt.show()

# %% [markdown]
# Three short texts are an illustration, not evidence. For that, the command line runs the same over tasks, budgets and many
# prompts with intervals: `kvjax sweep`, `kvjax report`, and `kvjax ablate` for the tables of the papers.
#
# Differences from the whole cache, text by text:

# %%
for name, values in nats.items():
    print(f"{name:20}", " ".join(f"{value - best:+.3f}" for value, best in zip(values, nats["all kept"])))
