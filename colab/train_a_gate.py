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
# # Training a gate
# Some methods learn what to keep: DuoAttention a number for each head, TRIM-KV a small network that says of each token how long it
# is worth keeping. Here both are trained on a tiny model in a few minutes on a CPU; `kvjax train` trains them for real ones.

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
import matplotlib.pyplot as plt
import numpy as np

import kvjax
from experiments.train.data import marked
from experiments.train.random_model import random_model
from experiments.train.recalled import hits
from kvjax.artefacts import retrofitted
from kvjax.train import Examples, artefact_of, train, untrained
from kvjax.train.learners import DuoAttention, StochasticKVRouting, TrimKV

blank = random_model("random:layers=3,width=64,heads=4,hidden=128,vocab=80")
texts = marked.examples(blank, "train", count=8000, length=16, seed=0)
fresh = marked.examples(blank, "held-out", count=128, length=16, seed=0)
print(texts[0].ids)

# %% [markdown]
# **The task.** A text is eight pairs of a key and a value, one token each (the ids below 64), then four questions: a key, and the
# value that belongs to it. Half of the pairs are noise: their keys (4 to 7) are never asked for. The model begins at random, so it
# is first taught to answer, all its weights trained.

# %%
usual = StochasticKVRouting(share=0.0, rate=3e-3, warmup=20, remat=False)  # no layer reads another: training as usual
run = train(blank, usual, Examples(tuple(texts), rows=64), steps=120)
facts = {"data": {"source": "experiments.train.data.marked"}, "run": {"steps": 120, "seed": 0}}
lm = retrofitted(blank, artefact_of(blank, usual, run.weights, **facts))


def curves(log, names, axis):
    """What a run said at every step."""
    for name in names:
        axis.plot([line["step"] for line in log], [line[name] for line in log], label=name)
    axis.set(xlabel="step")
    axis.legend()


def right(policy):
    """The share of held-out answers that are right behind a prompt that the policy cut."""
    return np.mean(hits(lm, fresh, policy)[0])


figure, axis = plt.subplots(figsize=(5, 2.8))
curves(run.log, ["loss", "accuracy"], axis)
plt.show()

# %% [markdown]
# **DuoAttention.** Every head's attention is mixed, α parts of it as it is and 1 - α parts of a stream that sees the first token
# and the last three alone. Each α begins at 1, costs something, and is taught to leave what the model says as it was. Heads whose α
# stays high have something to remember.

# %%
sizes = dict(sinks=1, recent=3)
learner = DuoAttention(**sizes, weight=0.5)
duo = train(lm, learner, Examples(tuple(texts), rows=32), steps=150)
heads = artefact_of(lm, learner, duo.weights, **facts)

figure, (left, middle) = plt.subplots(1, 2, figsize=(9, 2.8))
curves(duo.log, ["error", "l1"], left)
image = middle.imshow(duo.weights["alpha"], vmin=0, vmax=1, cmap="viridis")
middle.set(title="α", xlabel="KV head", ylabel="layer", xticks=range(4), yticks=range(3))
figure.colorbar(image)
plt.show()

# %% [markdown]
# Served, the heads of the lowest α stream, here half of them. As many heads drawn at random show what the choice is worth.

# %%
learned = kvjax.methods.duo_attention(artefact=heads, **sizes, sparsity=0.5)
flags = np.asarray(learned.allocate.pattern)
shuffled = np.random.default_rng(0).permutation(flags.ravel()).reshape(flags.shape)
print(f"{'all heads are full':26} {right(kvjax.methods.full()):.1%} right")
print(f"{'half of them, as learned':26} {right(learned):.1%}")
print(f"{'half of them, at random':26} {right(kvjax.methods.duo_attention(shuffled, **sizes)):.1%}")

# %% [markdown]
# **TRIM-KV.** A gate reads each token and says how fast each head forgets it. While it is trained a forgotten token fades from
# attention; more than four tokens alive in a head (the budget) cost something; and the model is to answer as one that forgets
# nothing. A gate can learn which pairs are noise: it is never told.

# %%
learner = TrimKV(budget=4, hidden=16, bias=6.0, rate=3e-2, warmup=10)
trim = train(lm, learner, Examples(tuple(texts), rows=32), steps=300)

figure, (left, middle) = plt.subplots(1, 2, figsize=(9, 2.8))
curves(trim.log, ["capacity", "kept"], left)
curves(trim.log, ["kl"], middle)
plt.show()

# %% [markdown]
# Served with four slots a head for a prompt of eight pairs. How many of the pairs that stay are those that may be asked for, and
# how many answers are right, the cache being cut while the questions are read, too?

# %%
prompts = [list(x.ids[:8]) for x in fresh]


def wanted(policy):
    """Of the pairs that stay, the share whose keys may be asked for, by layer."""
    cache = kvjax.compress(kvjax.prefill(lm, prompts, needs=policy), policy)
    held = [[prompts[row][at] for row, kept in enumerate(cache.kept(layer)) for head in kept for at in head] for layer in range(3)]
    return [np.mean(np.array(pairs) // 8 < 4) for pairs in held]


gates = {"learned": trim.weights, "untrained": untrained(lm, learner)}
for name, weights in gates.items():
    policy = kvjax.methods.trim_kv(weights, budget=4, buffer=1)
    by_layer = ", ".join(f"{share:.1%}" for share in wanted(policy))
    print(f"{name:10} {right(policy):.1%} right; of what stays may be asked for, by layer: {by_layer}")

# %% [markdown]
# With a real model it is one command, whose artefact the method takes by its folder:
#
#     kvjax train duo_attention --model MODEL --out out/duo
#     kvjax generate --model MODEL --policy duo_attention:artefact=out/duo --prompt-file FILE
#
# `docs/add_a_gate.md` says what each method is taught, and how to write a learner of your own.
