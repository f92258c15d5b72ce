"""What runs on several devices, in a process of its own that has so many: `python -m tests.sharding.on_devices CASE`.

A case is a function whose assertions hold; how many devices there are is fixed when JAX starts, so that no test process can ask.
"""

import importlib
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int32

import kvjax
import models
from kvjax.stage import Allocator
from models import llama
from tests.decode_loop import copies
from tests.sharding.toy import ids_of, toy_config

NEW = 8


@struct.dataclass
class Zipf(Allocator):
    """Budgets mean · H / (i + 1) / Σ 1/j of a layer's heads, the same head first in every layer: as uneven as heads get."""

    exact = False

    def __call__(self, ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        layers, rows, heads = ranking.scores.shape[:3]
        share = 1 / jnp.arange(1, heads + 1)
        slots = jnp.floor(mean_budget[:, None] * heads * share / share.sum())
        return jnp.broadcast_to(jnp.maximum(slots, 2), (layers, rows, heads)).astype(jnp.int32)


def toy(seed: int = 0, layers: int = 2, **changes) -> models.LanguageModel:
    """A model of four KV heads."""
    config = toy_config(num_hidden_layers=layers, num_key_value_heads=4, num_attention_heads=8, **changes)
    return models.random(llama.config(config), seed=seed)


def same(lm, cache, policy, mesh, *, within: float = 2e-5, extended: bool = False) -> kvjax.ShardedCache:
    """The sharded cache, after its tokens, lengths and logits were compared with those of one device."""
    over, sharded = models.shard(lm, mesh), kvjax.shard(cache, mesh)
    how = dict(max_new_tokens=NEW, return_logits=True, stop=())
    want, got = kvjax.decode(lm, cache, policy, **how), kvjax.decode(over, sharded, policy, **how)
    assert got.tokens.tolist() == want.tokens.tolist(), (got.tokens, want.tokens)
    assert np.abs(got.logits - np.asarray(want.logits)).max() <= within
    assert (sharded.held == cache.held).all()
    assert (sharded.lengths == cache.lengths).all() and (got.cache.lengths == want.cache.lengths).all()
    for layer in range(lm.decoder.layers):
        for mine, theirs in zip(sharded.kept(layer), cache.kept(layer), strict=True):
            assert [x.tolist() for x in mine] == [x.tolist() for x in theirs]
    if extended:
        fed = [ids_of(3 + 4 * row, 50 + row) for row in range(cache.start.shape[1])]
        want, got = (kvjax.extend(m, x.cache, fed, policy, return_logits=True) for m, x in ((lm, want), (over, got)))
        assert np.abs(got.logits - np.asarray(want.logits)).max() <= within
        assert (got.cache.lengths == want.cache.lengths).all()
    return sharded


def bytes_are_counted(sharded: kvjax.ShardedCache, mesh) -> None:
    """Every device holds what the cache says, and nothing of any other's pool."""
    named = dict(zip(range(mesh.size), mesh.devices.flat, strict=True))
    paths = [path[0].name for path, _ in jax.tree_util.tree_leaves_with_path(sharded.one)]
    for place, device in named.items():
        mine = [x.data for leaf in sharded.leaves for x in leaf.addressable_shards if x.device == device]
        counted = [x.nbytes for name, x in zip(paths, mine, strict=True) if name not in ("logits", "position", "steps", "made_by")]
        assert sum(counted) == sharded.nbytes_by_device[place] == sharded.here[place].nbytes
        assert {x.shape[0] for name, x in zip(paths, mine, strict=True) if name in ("k", "v", "pos")} == {sharded.slots}


def eight_devices() -> None:
    """Rows by two, heads by four: tokens, bytes, balance; and a second budget runs the programs of the first."""
    lm, mesh = toy(layers=4), kvjax.mesh(rows=2, heads=4)
    policy = kvjax.methods.snapkv(budget=40).replace(allocate=Zipf())
    pre = kvjax.prefill(lm, [ids_of(90 - 7 * row, row) for row in range(4)], needs=policy)
    cache = kvjax.compress(pre, policy)
    assert kvjax.cache.balance.imbalance(cache.lengths.sum((0, 1))) > 0.9  # were heads left where they are
    sharded = same(lm, cache, policy, mesh, extended=True)
    assert sharded.imbalance <= 0.10 and "8 devices" not in repr(sharded) and "2 x 4 devices" in repr(sharded)
    bytes_are_counted(sharded, mesh)
    assert sharded.nbytes_by_device[0] < cache.nbytes / 4
    weights = jax.tree.leaves(models.shard(lm, mesh).params)
    assert sum(x.addressable_shards[0].data.nbytes for x in weights) < 0.3 * lm.nbytes
    refused(lm, cache, policy, mesh)


def says(text: str, call) -> None:
    """The call is refused in these words."""
    try:
        call()
    except ValueError as error:
        assert text in str(error), (text, error)
    else:
        raise AssertionError(f"not refused: {text}")


def refused(lm, cache, policy, mesh) -> None:
    """Each refusal says what to do."""
    over, sharded = models.shard(lm, mesh), kvjax.shard(cache, mesh)
    says("does not divide 4 KV heads: use 1, 2, 4", lambda: kvjax.shard(cache, kvjax.mesh(heads=8)))
    says("does not divide 4 KV heads: use 1, 2, 4", lambda: models.shard(lm, kvjax.mesh(heads=8)))
    says("does not divide 4 rows: use 1, 2, 4", lambda: kvjax.shard(cache, kvjax.mesh(rows=8)))
    says("takes 16 devices", lambda: kvjax.mesh(rows=16))
    says("models.shard(lm, cache.mesh)", lambda: kvjax.decode(lm, sharded, policy))
    fed = [[1]] * 3 + [[1] * 956]  # behind 69 tokens, the others behind more
    says("1025 tokens would exceed the model's context of 1024", lambda: kvjax.extend(over, sharded, fed, policy))
    reads_some = policy.replace(retrieve=kvjax.retrieve.TopPages(token_budget=16, page_size=8))
    says("each head is read by itself", lambda: kvjax.decode(over, sharded, reads_some))


def sweep() -> None:
    """One prefill by weights of eight devices, several budgets and sizes of heads: no program is compiled twice."""
    lm, mesh = toy(layers=4), kvjax.mesh(rows=2, heads=4)
    over, policy = models.shard(lm, mesh), kvjax.methods.snapkv(budget=40).replace(allocate=Zipf())
    prompts = [ids_of(90 - 7 * row, row) for row in range(4)]
    pre, alone = (kvjax.prefill(m, prompts, needs=policy) for m in (over, lm))
    assert {x.data.shape[1] for x in pre.rows[0].k[0].addressable_shards} == {1}  # of four KV heads
    for budget in (40, 30, 20):
        mine = policy.replace(budget=budget)
        want = kvjax.decode(lm, kvjax.compress(alone, mine, pool_budget=40), mine, max_new_tokens=NEW, stop=(), pool_budget=40)
        cache = kvjax.shard(kvjax.compress(pre, mine, pool_budget=40), mesh)
        got = kvjax.decode(over, cache, mine, max_new_tokens=NEW, stop=(), pool_budget=40)
        assert got.tokens.tolist() == want.tokens.tolist()
    assert kvjax.decode.__globals__["sharded"]._loop_sharded._cache_size() == 1


def experiment() -> None:
    """`kvjax sweep` measures over two devices what it measures on one."""
    from experiments import sweep as engine
    from experiments.policies import parse_policy
    from experiments.rows import RowFile
    from experiments.tasks import needle, ppl
    from experiments.tasks.answering import Answering
    from experiments.tasks.text import Haystack
    from tests.experiments.conftest import TEXT, lines, made_talker

    lm, text = made_talker(), Haystack(TEXT, "toy")
    cells = tuple(parse_policy(*cell) for cell in [("keydiff", 40), ("snapkv:window=8", 0.25)])
    plan = engine.Plan(((Answering(needle), "unseen"), (ppl, "-")), (420,), cells, prompts=1)
    found = []
    for m in (lm, models.shard(lm, kvjax.mesh(heads=2))):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.jsonl"
            with RowFile(path, engine.identity(m, text)) as rows:
                assert engine.run(m, plan, text, rows) == plan.total == 6
            found.append(lines(path))
    for one, over in zip(*found, strict=True):
        same_fields = [name for name in ("task", "policy", "kept_slots", "allocated_bytes", "answer", "score") if name in one]
        assert [one[name] for name in same_fields] == [over[name] for name in same_fields]
        assert "nll" not in one or abs(one["nll"] - over["nll"]) < 1e-4


def in_place() -> None:
    """No device copies its pool: it goes in and comes out of the loop where it lies."""
    lm, mesh, policy = toy(), kvjax.mesh(rows=2, heads=4), kvjax.methods.snapkv(budget=40)
    cache = kvjax.compress(kvjax.prefill(lm, [ids_of(90, 0), ids_of(80, 1)], needs=policy), policy)
    module, lowered = importlib.import_module("kvjax.decode.sharded"), []
    run = module._loop_sharded

    def looked_at(*args, **how):
        lowered.append(run.lower(*args, **how))
        return run(*args, **how)

    module._loop_sharded = looked_at
    out = kvjax.decode(models.shard(lm, mesh), kvjax.shard(cache, mesh), policy, max_new_tokens=NEW, stop=(), pool_budget=8000)
    module._loop_sharded, slots = run, out.cache.slots
    program = lowered[0].compile()
    assert slots > 8000 and not copies(program, slots)
    assert program.memory_analysis().alias_size_in_bytes >= sum(x.nbytes for x in jax.tree.leaves(out.cache.one.pools))


def page() -> None:
    """The example of docs/sharding.md."""
    code = re.search(r"```python\n(.*?)```", Path("docs/sharding.md").read_text(), re.S)[1]
    scope = {"lm": toy(), "PROMPTS": [ids_of(90, 0), ids_of(70, 1)], "QUESTIONS": [ids_of(5, 2), ids_of(3, 3)]}
    exec(compile(code, "over.py", "exec"), scope)
    assert scope["out"].tokens.shape == (2, 8) and set(scope["cache"].nbytes_by_device) == set(range(8))


#: Policies that evict while decoding, that keep a retriever's state, that code slots in pages and keep exact ones beside.
ROWS = {
    "h2o": partial(kvjax.methods.h2o, budget=40),
    "quest": partial(kvjax.methods.quest, token_budget=32, page_size=8),
    "kivi": partial(kvjax.methods.kivi, key_group=8, value_group=16, residual=16),
}


def methods() -> None:
    """Rows of every kind of policy; heads of those that code what the prompt left, not of those that evict."""
    lm, rows, both = toy(), kvjax.mesh(rows=4), kvjax.mesh(rows=2, heads=4)
    over = models.shard(lm, rows)
    for name, build in ROWS.items():
        policy = build()
        pre = kvjax.prefill(lm, [ids_of(90 - 3 * row, row) for row in range(4)], needs=policy)
        alone = [kvjax.compress(kvjax.Prefilled(rows=(row,), needs=pre.needs, decoder=pre.decoder), policy) for row in pre.rows]
        want = kvjax.decode(lm, kvjax.stack(alone), policy, max_new_tokens=NEW, stop=())
        got = kvjax.decode(over, kvjax.shard(alone, rows), policy, max_new_tokens=NEW, stop=())
        assert got.tokens.tolist() == want.tokens.tolist() and (got.cache.lengths == want.cache.lengths).all(), name
        if name == "kivi":
            same(lm, kvjax.stack(alone), policy, both, within=1e-4)
        if name == "h2o":
            says("of all KV heads of a layer", partial(kvjax.shard, kvjax.stack(alone), both))
        if name == "quest":
            says("not cut into rows", partial(kvjax.shard, kvjax.stack(alone), rows))


def families() -> None:
    """Biases of every projection, norms of heads, a tied head, a vocabulary that does not divide; sampling."""
    qwen2 = toy(seed=1, attention_bias=True, tie_word_embeddings=True, vocab_size=130)
    policy, mesh = kvjax.methods.adakv(budget=40), kvjax.mesh(rows=2, heads=4)
    cache = kvjax.compress(kvjax.prefill(qwen2, [ids_of(80, 0), ids_of(70, 1)], needs=policy), policy)
    same(qwen2, cache, policy, mesh)
    how = dict(max_new_tokens=NEW, sampler=kvjax.Sample(temperature=1.0), key=jax.random.key(3), stop=())
    want = kvjax.decode(qwen2, cache, policy, **how)
    got = kvjax.decode(models.shard(qwen2, mesh), kvjax.shard(cache, mesh), policy, **how)
    assert got.tokens.tolist() == want.tokens.tolist()


def real_model() -> None:
    """SmolLM2-135M, its weights read onto six devices tensor by tensor: its three KV heads by three, rows by two."""
    lm, mesh = models.load("smollm2-135m"), kvjax.mesh(rows=2, heads=3)
    over = models.load("smollm2-135m", mesh=mesh)
    for x, y in zip(jax.tree.leaves(over.params), jax.tree.leaves(models.shard(lm, mesh).params), strict=True):
        assert x.sharding == y.sharding and (np.asarray(x) == np.asarray(y)).all()
    text = lm.encode(open("README.md").read())
    policy = kvjax.methods.adakv(budget=0.25, window=16)
    prompts = [text[at : at + n] for at, n in ((0, 300), (300, 200), (500, 240), (740, 260))]
    cache = kvjax.compress(kvjax.prefill(lm, prompts, needs=policy), policy)
    sharded = same(lm, cache, policy, mesh, within=2e-3)
    assert sharded.imbalance <= 0.10
    bytes_are_counted(sharded, mesh)


def process(index: str, port: str, rows: str, heads: str) -> None:
    """One of two processes of two devices each: weights, prompts and cache over all four, tokens those of one device."""
    jax.distributed.initialize(f"localhost:{port}", 2, int(index))
    assert len(jax.devices()) == 4 and len(jax.local_devices()) == 2
    lm, mesh = toy(), kvjax.mesh(rows=int(rows), heads=int(heads))
    over, policy = models.shard(lm, mesh), kvjax.methods.snapkv(budget=40).replace(allocate=Zipf())
    prompts = [ids_of(80 - 9 * row, row) for row in range(2)]
    caches = [kvjax.compress(kvjax.prefill(m, prompts, needs=policy), policy) for m in (lm, over)]
    how = dict(max_new_tokens=NEW, return_logits=True, stop=())
    want, sharded = kvjax.decode(lm, caches[0], policy, **how), kvjax.shard(caches[1], mesh)
    got = kvjax.decode(over, sharded, policy, **how)
    assert len(sharded.here) == 2 and (sharded.lengths == caches[0].lengths).all()
    assert got.tokens.tolist() == want.tokens.tolist()
    assert np.abs(got.logits - np.asarray(want.logits)).max() <= 2e-5
    fed = [ids_of(5, 8), ids_of(9, 9)]
    a, b = (kvjax.extend(m, x.cache, fed, policy, return_logits=True).logits for m, x in ((lm, want), (over, got)))
    assert np.abs(np.asarray(a) - b).max() <= 2e-5


CASES = {f.__name__: f for f in (eight_devices, sweep, experiment, page, in_place, methods, families, real_model, process)}

if __name__ == "__main__":
    # Programs that wait for each other's devices share this machine's few threads: one at a time.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    for case in sys.argv[1].split("+"):
        partial(CASES[case], *sys.argv[2:])()
