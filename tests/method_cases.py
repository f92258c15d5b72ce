"""How the shared suite runs each method on the toy model: an entry for those that `budget=` alone does not describe."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

import kvjax
from kvjax.head_rules import Rule
from tests.artefacts import toy

#: Tokens of the prompt that budgets are meant for; layers and KV heads of the toy model.
PROMPT, SHAPE = 90, (3, 2)
#: DuoAttention's full heads.
ONE_FULL = np.array([[False, False], [False, True], [False, False]])


@dataclass(frozen=True)
class MethodCase:
    """One method.

    Attributes:
        build: a policy whose heads hold `budget` slots of the prompt on average, or as few as it can.
        keeps_all: whether it keeps every token, or as many as it likes, whatever the budget.
        unbounded: heads (layer, head) that take a slot for every decoded token although others are cut.
        held: slots of a head after so many decoded tokens, less those after the prompt, where cuts go below the budget.
    """

    build: Callable[[int | float], kvjax.Policy]
    keeps_all: bool = False
    unbounded: tuple[tuple[int, int], ...] = ()
    held: Callable[[int], int] | None = None

    def grown(self, policy: kvjax.Policy, new: int) -> np.ndarray:
        """Slots each head [l, 1, h] holds more after `new` decoded tokens."""
        if self.held is not None:
            return np.full((SHAPE[0], 1, SHAPE[1]), self.held(new))
        grows = np.full(SHAPE, self.keeps_all or not policy.when.decoding)
        for head in self.unbounded:
            grows[head] = True
        return new * grows[:, None].astype(int)


def _without_budget(make: Callable[[], kvjax.Policy]) -> MethodCase:
    return MethodCase(build=lambda budget: make(), keeps_all=True)


def _small(make: Callable[..., kvjax.Policy], **arguments) -> MethodCase:
    return MethodCase(build=lambda budget: make(budget=budget, **arguments))


def _compresskv(budget: int | float) -> kvjax.Policy:
    small = {"window": 4, "floor": 5} if budget >= 5 else {"window": 0, "floor": 1}
    return kvjax.methods.compresskv(budget=budget, artefact=toy("compresskv"), heads=2, **small)


def _duo_attention(budget: int | float) -> kvjax.Policy:
    """One full head; the five others share what it leaves of the total."""
    mean = budget if isinstance(budget, int) else int(PROMPT * budget)
    slots = max(1, (6 * mean - PROMPT) // 5)
    return kvjax.methods.duo_attention(ONE_FULL, sinks=min(4, slots - 1), recent=slots - min(4, slots - 1))


def _simlayerkv(budget: int | float) -> kvjax.Policy:
    """Every layer lazy: both ends together hold the budget."""
    slots = budget if isinstance(budget, int) else max(1, int(PROMPT * budget))
    sinks = min(4, slots - 1)
    return kvjax.methods.simlayerkv(threshold=-1.0, sinks=sinks, recent=slots - sinks + 1)


@cache
def retention_gate(seed: int = 0) -> dict:
    """Weights of a TRIM-KV gate for the toy model, far from those before training: β from nothing to almost 1."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    up = {"kernel": 0.3 * draw(3, 64, 24), "bias": 0.1 * draw(3, 24)}
    return {"up": up, "down": {"kernel": 0.5 * draw(3, 24, 2), "bias": 2 + 0.1 * draw(3, 2)}}


@cache
def deep_retention_gate() -> dict:
    """Weights of a DBTrimKV gate for the toy model, one last projection for all layers."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    up, across = ({"kernel": 0.3 * draw(3, n, 24), "bias": 0.1 * draw(3, 24)} for n in (64, 24))
    return {"up": up, "across": across, "down": {"kernel": draw(24, 2), "bias": 2 + 0.1 * draw(2)}}


@cache
def retaining_gate() -> dict:
    """Weights of a Locret gate for the toy model: four query heads, two of keys and values, each of 16."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return {"up": {"kernel": 0.2 * draw(3, 128, 24)}, "down": {"kernel": 0.3 * draw(3, 24, 2)}}


@cache
def eviction_gate() -> dict:
    """Weights of a DMS gate for the toy model: logits of both signs."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    alpha = {"kernel": 0.02 * draw(3, 64, 2), "bias": 0.05 + 0.01 * draw(3, 2)}
    return {"norm": {"scale": 1 + 0.1 * draw(3, 64)}, "alpha": alpha}


@cache
def surrogate_gate(hidden: int = 24) -> dict:
    """Weights of a KVzap gate for the toy model: the linear map where `hidden` is 0."""
    rng = np.random.default_rng(hidden)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    up = {"up": {"kernel": 0.3 * draw(3, 64, hidden), "bias": 0.1 * draw(3, hidden)}} if hidden else {}
    return up | {"down": {"kernel": 0.3 * draw(3, hidden or 64, 2), "bias": 0.1 * draw(3, 2)}}


@cache
def attention_gate() -> dict:
    """Weights of an Attention-Gate for the toy model, two parts of 8: as often sure as not."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    maps = {name: {"kernel": 0.3 * draw(3, 64, 16)} for name in ("q", "k", "v")}
    return {**maps, "out": {"kernel": 0.5 * draw(3, 16, 2), "bias": 0.1 * draw(3, 2)}}


def _attention_gate(budget: int | float) -> kvjax.Policy:
    """A threshold that leaves less than a prompt's budget; one that all are above where the budget is the prompt."""
    slots = budget if isinstance(budget, int) else int(PROMPT * budget)
    threshold, ends = -1.0 if slots >= PROMPT else 0.9, min(1, slots - 1)
    return kvjax.methods.attention_gate(attention_gate(), threshold=threshold, parts=2, sinks=ends)


def _by_threshold(make: Callable[..., kvjax.Policy], **arguments) -> MethodCase:
    """A threshold that a prompt's budget would not exceed; the window alone where one slot is asked for."""

    def build(budget: int | float) -> kvjax.Policy:
        slots = budget if isinstance(budget, int) else int(PROMPT * budget)
        keeps = -np.inf if slots >= PROMPT else 1.6
        return make(threshold=float(keeps), window=min(8, slots), decoding=False, **arguments)

    return MethodCase(build)


def _make_each_token_count(budget: int | float) -> kvjax.Policy:
    """Every decoded token is appended until the buffer is full."""
    return kvjax.methods.make_each_token_count(deep_retention_gate(), budget=budget, buffer=64)


def _dmc(budget: int | float) -> kvjax.Policy:
    """Every token goes into the first slot; none where the budget is the prompt."""
    slots = budget if isinstance(budget, int) else int(PROMPT * budget)
    return kvjax.methods.dmc(offset=1e4 if slots >= PROMPT else -1e4)


def _none(new: int) -> int:
    """Slots that decoded tokens take where all of them merge."""
    del new
    return 0


def _dms(budget: int | float) -> kvjax.Policy:
    """A threshold that leaves less than a prompt's budget; none is reached where the budget is the prompt."""
    slots = budget if isinstance(budget, int) else int(PROMPT * budget)
    never = np.inf if slots >= PROMPT else -8.0
    return kvjax.methods.dms(eviction_gate(), window=min(8, slots), threshold=float(never), decoding=False)


@cache
def convolution(slots: int) -> dict:
    """Weights of LoCoCo for the toy model."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return {"kernel": 0.2 * draw(3, slots, 32, 5), "bias": 0.1 * draw(3, slots), "gamma": np.full(3, 0.5, np.float32)}


@cache
def soft_tokens(tokens: int = 6, rank: int = 2) -> dict:
    """LookaheadKV's weights for the toy model, updates as large as what they update."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    maps = {"attention": {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64)}}
    maps["mlp"] = {"gate": (96, 64), "up": (96, 64), "down": (64, 96)}
    update = lambda o, i: {"down": draw(3, rank, i) * i**-0.5, "up": 0.3 * draw(3, o, rank)}  # noqa: E731
    layers = {part: {name: update(*shape) for name, shape in of.items()} for part, of in maps.items()}
    return {"tokens": draw(tokens, 64), "layers": layers}


@cache
def side_maps(rank: int = 4, hidden: int = 12) -> dict:
    """LESS's maps for the toy model, of a mass like that of attention."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    of_keys = {"up": 0.3 * draw(3, 2, 16, hidden), "down": 0.3 * draw(3, 2, hidden, rank), "mix": 0.5 * draw(3, 2, rank, rank)}
    scales = {"scale": 1 + 0.2 * draw(3, 2, rank), "mix_scale": 0.5 + 0.2 * draw(3, 2, rank)}
    return {"q": {"up": 0.3 * draw(3, 2, 2, 16, hidden), "down": 0.3 * draw(3, 2, 2, hidden, rank)}, "k": of_keys | scales}


def _arkv(budget: int | float) -> kvjax.Policy:
    """A window that the budget holds."""
    slots = budget if isinstance(budget, int) else int(PROMPT * budget)
    return kvjax.methods.arkv(budget=slots, window=min(8, slots))


def arkv_held(new: int) -> int:
    """Slots above 40 after `new` tokens: at the 41st, 33 - 8 of the past 33 stay."""
    held = 40
    for _ in range(new):
        held = held + 1 if held < 40 else 8 + 33 * 3 // 4
    return held - 40


def _fastgen(budget: int | float) -> kvjax.Policy:
    """Heavy hitters and a window in every head, which together hold the budget; everything where it is the prompt's length."""
    slots = budget if isinstance(budget, int) else int(PROMPT * budget)
    rule = Rule(heavy=0.2, window=0.2) if slots > 6 else Rule()
    rules = (Rule(full=True) if slots >= PROMPT else rule,)
    return kvjax.methods.fastgen(rules=rules, sinks=min(4, slots), new=round((slots - 4) / 0.4) - PROMPT)


def _pyramid_infer(budget: int | float) -> kvjax.Policy:
    """As steep as it can be, after a whole prefill; its first layer keeps everything all the same."""
    whole = PROMPT <= (budget if isinstance(budget, int) else PROMPT * budget)
    return kvjax.methods.pyramid_infer(p=1.0 if whole else 0.0, recent=0.05, least=1, leave=False)


def _neural_garbage_collection(budget: int | float) -> kvjax.Policy:
    """Half of the blocks stay, or all where the budget is the prompt."""
    whole = PROMPT <= (budget if isinstance(budget, int) else PROMPT * budget)
    return kvjax.methods.neural_garbage_collection(share=1.0 if whole else 0.5, size=2, interval=16)


def _neural_garbage_collection_held(new: int) -> int:
    """Half of the blocks of two slots are left by every sixteenth token, rounded down."""
    held = PROMPT
    for step in range(1, new + 1):
        held = (held + 2) // 2 // 2 * 2 if step % 16 == 0 else held + 1
    return held - PROMPT


_methods = kvjax.methods
CASES = {
    "adakv": _small(_methods.adakv, window=8),
    "attention_gate": MethodCase(_attention_gate),
    "attention_matching": _small(_methods.attention_matching, queries=kvjax.evidence.WindowQueries(16)),
    "arkv": MethodCase(_arkv, held=arkv_held),
    "asymkv": _without_budget(partial(_methods.asymkv, key_layers=2, value_layers=1, group=8, residual=16)),
    "cake": _small(_methods.cake, window=8),
    "chunkkv": _small(_methods.chunkkv, window=8),
    "compresskv": MethodCase(_compresskv),
    "critical_adakv": _small(_methods.critical_adakv, window=8),
    "coupled_quantization": _without_budget(partial(_methods.coupled_quantization, artefact=toy("coupled_quantization"))),
    "criticalkv": _small(_methods.criticalkv, window=8),
    "dapq": _small(_methods.dapq, size=8, front=2, suffix=(5, 6, 7)),
    "defensive_kv": _small(_methods.defensive_kv, window=8),
    "dmc": MethodCase(_dmc, held=_none),
    "dms": MethodCase(_dms),
    "duo_attention": MethodCase(_duo_attention, unbounded=((1, 1),)),
    "fasa": _without_budget(partial(_methods.fasa, artefact=toy("fasa"), tokens=24)),
    "fastgen": MethodCase(_fastgen),
    "finch": _small(_methods.finch, window=8),
    "full": _without_budget(_methods.full),
    "gear": _without_budget(partial(_methods.gear, key_group=8, value_group=8, buffer=16)),
    "hcattention": _without_budget(partial(_methods.hcattention, artefact=toy("hcattention"))),
    "heterocache": _small(_methods.heterocache, artefact=toy("heterocache")),
    "infllm": _without_budget(partial(_methods.infllm, local=24, initial=4, block=8, top=2, representatives=2)),
    "infinigen": _without_budget(partial(_methods.infinigen, part=0.5, cap=0.3)),
    "kivi": _without_budget(partial(_methods.kivi, key_group=8, value_group=16, residual=16)),
    "kvquant": _without_budget(partial(_methods.kvquant, artefact=toy("kvquant"))),
    "kvtc": _without_budget(partial(_methods.kvtc, artefact=toy("kvtc"), ratio=2, recent=16)),
    "kvzap": _by_threshold(_methods.kvzap, gate=surrogate_gate()),
    "kvzip": _small(_methods.kvzip, chunk=32, first=(5, 6, 7), further=(8, 9)),
    "layer_defensive_kv": _small(_methods.layer_defensive_kv, window=8),
    "lazy_eviction": _small(_methods.lazy_eviction, window=4),
    "mpcache": _small(_methods.mpcache, large=16, small=8),
    "neural_garbage_collection": MethodCase(_neural_garbage_collection, keeps_all=True, held=_neural_garbage_collection_held),
    "omnikv": _without_budget(partial(_methods.omnikv, tokens=0.4, filters=(0,), waiting=1)),
    "less": _small(_methods.less, maps=side_maps()),
    "lococo": _small(_methods.lococo, weights=convolution(8), buffer=0),
    "lookahead_kv": _small(_methods.lookahead_kv, weights=soft_tokens()),
    "make_each_token_count": MethodCase(_make_each_token_count, held=int),
    "locret": _small(_methods.locret, gate=retaining_gate(), recent=8),
    "magicpig": _without_budget(partial(_methods.magicpig, bits=4, tables=20, local=12, dense=(0,))),
    "mikv": _without_budget(partial(_methods.mikv, group=8)),
    "minference": _without_budget(_methods.minference),
    "neo": _small(_methods.neo, longest=0),
    "pqcache": _without_budget(partial(_methods.pqcache, tokens=16, local=12, sinks=4, bits=4)),
    "pyramid_infer": MethodCase(_pyramid_infer, keeps_all=True, unbounded=tuple(np.ndindex(SHAPE))),
    "pyramid_keydiff": _small(_methods.pyramid_keydiff, window=8),
    "pyramidkv": _small(_methods.pyramidkv, window=8),
    "q4_persistent": _without_budget(partial(_methods.q4_persistent, group=8)),
    "qjl": _without_budget(partial(_methods.qjl, outliers=3, group=8, value_group=8, buffer=16)),
    "quest": _without_budget(_methods.quest),
    "random_attention": _small(_methods.random_attention, interval=4, recent=8),
    "rkv": _small(_methods.rkv, interval=4),
    "scissorhands": _small(_methods.scissorhands, window=32, drop=4),
    "shadowkv": _without_budget(partial(_methods.shadowkv, rank=12, tokens=24, outliers=2, local=1)),
    "simlayerkv": MethodCase(_simlayerkv),
    "sirllm": _small(_methods.sirllm, recent=8, turn=4, positions=kvjax.encode.Absolute()),
    "snapkv": _small(_methods.snapkv, window=8),
    "think": _without_budget(partial(_methods.think, recent=16, window=16)),
    "triattention": _small(_methods.triattention, interval=4),
    "turboquant": _without_budget(_methods.turboquant),
    "trim_kv": _small(_methods.trim_kv, gate=retention_gate(), buffer=1),
    "zipcache": _without_budget(partial(_methods.zipcache, interval=10)),
}


def case(name: str) -> MethodCase:
    """A method's entry, or that of one which takes a budget and nothing else."""
    return CASES.get(name) or _small(getattr(kvjax.methods, name))
