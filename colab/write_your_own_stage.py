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
# # Write your own stage
# A policy is a chain: **score → allocate → select → merge → encode → retrieve**. Each link is a small frozen object with pure
# methods, and any link of yours works with all the others. Here we write a scorer.

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

import jax.numpy as jnp
import matplotlib.pyplot as plt
from flax import struct

import kvjax
import models
from kvjax.stage import Scorer


@struct.dataclass
class LargeValues(Scorer):
    """Keep the slots whose values are large: u = ||v||."""

    def score(self, view, seen):
        return jnp.linalg.norm(view.v.astype(jnp.float32), axis=-1)  # [batch, KV head, slot]; higher is kept first


lm = models.load("smollm2-135m")
ids = lm.encode(topics["with"])[:448]
pre = kvjax.prefill(lm, ids[:384])
mine = kvjax.Policy(score=LargeValues(), budget=0.25)
cache = kvjax.compress(pre, mine)
print("kept by layer 0, head 0:", cache.kept(layer=0)[0][0][:20], "...")

# %% [markdown]
# Is it any good? Feed the next 64 tokens of the text and see how surprised the model is after each way of compressing (nats a
# token; lower is better). `replace` swaps one stage of a published method.

# %%
def surprise(policy):
    """Mean -log p of the 63 tokens after the first one, given the compressed prompt."""
    logits = kvjax.extend(lm, kvjax.compress(pre, policy), ids[384:-1], policy, return_logits=True, pool_budget=1.0).logits[0]
    z = logits - jnp.max(logits, -1, keepdims=True)
    logp = z - jnp.log(jnp.exp(z).sum(-1, keepdims=True))
    return float(-jnp.take_along_axis(logp, jnp.asarray(ids[385:])[:, None], 1).mean())


snapkv = kvjax.methods.snapkv(budget=0.25)
results = {
    "all kept": surprise(kvjax.methods.full()),
    "snapkv": surprise(snapkv),
    "large values": surprise(mine),
    "large values\n+ recent 32": surprise(snapkv.replace(score=LargeValues())),
}
plt.figure(figsize=(7, 3))
plt.bar(list(results), list(results.values()), color=["#999999", "#0072b2", "#d55e00", "#e69f00"])
plt.ylabel("nats a token")
plt.title("a quarter of the prompt kept")
plt.show()

# %% [markdown]
# The scorer alone forgets the last tokens; SnapKV's selector keeps the last 32 whatever their score, which is most of the
# difference.
#
# A scorer that reads attention says so in `needs`, and only what is needed is recorded during the prefill. This one multiplies
# the attention of the last queries with the size of the values, since attention alone does not say how much a slot adds to the
# output.

# %%
@struct.dataclass
class AttentionTimesValues(Scorer):
    """u = a · ||v||, a the attention of the prompt's last queries as SnapKV measures it."""

    attention: kvjax.score.WindowAttention = kvjax.score.WindowAttention(window=32)

    @property
    def needs(self):
        return self.attention.needs

    def score(self, view, seen):
        return self.attention.score(view, seen) * jnp.linalg.norm(view.v.astype(jnp.float32), axis=-1)


budgets = [0.1, 0.25, 0.5]
for name, scorer in (("attention", snapkv.score), ("attention × values", AttentionTimesValues()), ("values", LargeValues())):
    plt.plot(budgets, [surprise(snapkv.replace(score=scorer, budget=b)) for b in budgets], "o-", label=name)
plt.axhline(results["all kept"], color="#999999", label="all kept")
plt.xlabel("share of the prompt kept")
plt.ylabel("nats a token")
plt.legend()
plt.show()

# %% [markdown]
# One prompt says little: `ablation_in_ten_lines` measures over several. The other stages are written the same way;
# `kvjax/stage.py` says what each has to define.
