"""The prefix-cache simulator: the traces worked out by hand, slow simulations beside it, and what it promises."""

import json
import random
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from experiments.prefill_equivalents import HARDWARE, Call, Hardware, gamma, pte
from experiments.serving.prefix_cache import (
    LFU,
    LRU,
    Continuum,
    Costs,
    KVFlow,
    Machine,
    Oracle,
    Request,
    Rule,
    StepGraph,
    StepsToExecution,
    Tier,
    TimeToLive,
    Trace,
    files,
    simulate,
)
from experiments.serving.prefix_cache.agents import programs, workflow
from experiments.serving.prefix_cache.step_graph import Step
from experiments.serving.prefix_cache.time_to_live import Durations, time_to_live, utility
from experiments.serving.prefix_cache.trace import chain
from experiments.serving.prefix_cache.tree import Tree

RULES = (LRU, LFU, Oracle, StepsToExecution, KVFlow, lambda: TimeToLive(5.0), Continuum)
#: Prefilling a token takes a second, all else nothing.
SLOW = Costs(prefill=1, decode=0, read=0, bytes_per_token=1, gamma=0.01, gamma_16bit=0.04)


def loop(names: str, cycle: str) -> Trace:
    """One job that calls agents whose prompts are a block each, in a loop."""
    requests = [Request(0, "job", x, i, (x,), fixed=1, last=i == len(names) - 1) for i, x in enumerate(names)]
    graph = {x: Step((cycle[i - 1],)) for i, x in enumerate(cycle)}
    return Trace(tuple(requests), block=1, graph=StepGraph(graph))


def one_tier(tokens: int, costs: Costs = SLOW, running: int = 1) -> Machine:
    return Machine((Tier(tokens),), costs, running)


def test_steps_to_execution_worked_example():
    graph = StepGraph(
        {"B": Step(("A",)), "C": Step(("B",)), "D": Step(("B", "C"), "all"), "E": Step(("B", "D"), "any"), "F": Step(("G",))}
    )
    found = graph.steps_to_execution(["A"])
    assert {x: found[x] for x in "ABCDE"} == {"A": 0, "B": 1, "C": 2, "D": 3, "E": 2}
    assert found["F"] == found["G"] == np.inf
    ring = StepGraph({x: Step(("DABC"[i],)) for i, x in enumerate("ABCD")})
    assert ring.steps_to_execution(["C"]) == {"C": 0, "D": 1, "A": 2, "B": 3}


def test_a_prefix_that_agents_share_has_the_smallest_value():
    """B 1 and D 3 steps away: the prefix of both has 1."""
    graph = StepGraph({"B": Step(("A",)), "C": Step(("B",)), "D": Step(("B", "C"), "all")})
    rule, tree = StepsToExecution(graph), Tree(1)
    trace = Trace((Request(0, "j", "A", 0, ("a",), last=True),), block=1)
    rule.begin(trace, tree, one_tier(9))
    prompts = {"D": ("s", "d"), "B": ("s", "b"), "A": ("a",)}
    for agent, blocks in prompts.items():
        tree.insert((*blocks, f"said by {agent}"))
        rule.on_arrival(Request(0, agent, agent, 0, blocks, fixed=len(blocks)), 0.0)
        if agent != "A":
            rule.on_turn_end(Request(0, agent, agent, 0, blocks, last=True), [], 0.0)
    found = {node.blocks: value for node, value in rule.values().items()}
    assert found == {("s",): 1, ("b",): 1, ("d",): 3, ("a",): 0}
    leaves = [node for node in tree.members[0] if not node.children]
    assert all(rule.victim(leaves, 0.0).blocks[0].startswith("said") for _ in range(3))


@pytest.mark.parametrize(("make", "hits"), [(LRU, 0), (Oracle, 3), (StepsToExecution, 3), (KVFlow, 3)])
def test_a_loop_one_block_too_long_worked_example(make, hits):
    found = simulate(loop("ABCDABCD", "ABCD"), make(), one_tier(3))
    assert found.hit_tokens == (hits,) and found.recomputed_tokens == 8 - hits
    assert found.makespan == 8 - hits  # a second for each token prefilled


def test_time_to_live_worked_example():
    durations, how = [1, 1, 2, 3, 10], dict(queueing=4, psi=1, reload=2, price=0.5)
    found = [utility(tau, durations, **how) for tau in (0, 1, 2, 3, 10)]
    np.testing.assert_allclose(found, [0, 1.9, 2.6, 3.3, 1.0], atol=1e-12)
    assert time_to_live(durations, **how) == 3
    grid = np.linspace(0, 12, 2401)
    assert max(utility(tau, durations, **how) for tau in grid) <= 3.3 + 1e-12  # nothing between the durations is better
    assert time_to_live([], **how) == time_to_live(durations, **how | {"price": 9}) == 0


def test_tools_with_few_samples_share_them():
    found = Durations(few=2)
    for tool, seconds in (("a", 1.0), ("b", 7.0), ("a", 2.0)):
        found.update(tool, seconds)
    assert found.cdf("a") == [1.0, 2.0] and found.cdf("b") == found.cdf("c") == [1.0, 7.0, 2.0]


def test_pte_worked_examples():
    width = lambda kv: 2 * 2 * 32 * kv  # bytes of a token: keys and values, two bytes, layers  # noqa: E731
    h100, older = Hardware(989e12, 3.35e12, 1), Hardware(312e12, 2.039e12, 1)
    assert gamma(width(4096), 8.03e9, h100) == pytest.approx(0.00964, abs=5e-6)
    assert gamma(width(1024), 8.03e9, h100) == pytest.approx(0.00241, abs=5e-6)
    assert gamma(width(4096), 8.03e9, older) == pytest.approx(0.00500, abs=5e-6)
    assert [round(HARDWARE[name].operational_intensity, 1) for name in ("h100", "a100")] == [295.2, 153.0]
    calls = (Call(1000, 1000, 100), Call(1300, 1300, 50))
    assert pte(calls, 0.01) == pytest.approx(3950)
    assert pte((calls[0], replace(calls[1], prefilled=200)), 0.01) == pytest.approx(2850)


def test_pte_of_a_simulation_is_that_of_its_calls():
    """The two calls of the example: the cache is there for the second, or another job has taken its room."""
    first, out = tuple(range(1000)), tuple(range(1000, 1100))
    after = first + out
    mine = (Request(0, "j", "a", 0, first, 0, 100, out, tool_seconds=5000), Request(0, "j", "a", 1, after, 200, 50, last=True))
    kept = simulate(Trace(mine, block=1), LRU(), one_tier(4000))
    assert kept.hit_tokens == (1100,) and kept.pte == pytest.approx(2850) and kept.pte_16bit == pytest.approx(1200 + 0.04 * 165000)
    other = Request(1100, "k", "b", 0, tuple(range(-3900, 0)), last=True)
    dropped = simulate(Trace((*mine, other), block=1), LRU(), one_tier(3900))
    assert dropped.hit_tokens == (0,) and dropped.pte == pytest.approx(3950 + 3900)


def unit_trace(seed: int, kinds: int = 6, many: int = 60) -> Trace:
    names = np.random.default_rng(seed).zipf(1.4, many) % kinds
    return Trace(tuple(Request(0, "j", "a", i, (int(x),), last=i == many - 1) for i, x in enumerate(names)), block=1)


def hits_by_hand(names: list[int], room: int, worth) -> int:
    """A cache as a list of names: `worth(name, at)`, least goes first."""
    held, hits = [], 0
    for at, name in enumerate(names):
        hits += name in held
        if name not in held:
            if len(held) == room:
                held.remove(min(held, key=lambda x: worth(x, at)))  # noqa: B023
            held.append(name)
    return hits


@pytest.mark.parametrize("seed", range(8))
def test_rules_are_those_of_plain_lists(seed):
    trace = unit_trace(seed)
    names = [request.blocks[0] for request in trace.requests]
    last = lambda x, at: max(i for i in range(at) if names[i] == x)  # noqa: E731
    found = {make: simulate(trace, make(), one_tier(3)).hit_tokens[0] for make in (LRU, Oracle)}
    assert found[LRU] == hits_by_hand(names, 3, last)
    coming = lambda x, at: -next((i for i in range(at + 1, len(names)) if names[i] == x), 10**9)  # noqa: E731
    assert found[Oracle] == hits_by_hand(names, 3, coming)
    assert all(simulate(trace, make(), one_tier(3)).hit_tokens[0] <= found[Oracle] for make in RULES)


def most_hits(prompts: list[str], room: int) -> int:
    """Over all ways to choose what stays of the prefixes held, each with those it continues: a letter is a token."""
    states = {frozenset(): 0}
    for prompt in prompts:
        mine, after = frozenset(prompt[:i] for i in range(1, len(prompt) + 1)), {}
        for held, hits in states.items():
            others = held - mine
            for kept in combinations(others, min(room - len(mine), len(others))):
                now = mine.union(kept)
                if all(len(x) == 1 or x[:-1] in now for x in now):
                    after[now] = max(after.get(now, 0), hits + len(held & mine))
        states = after
    return max(states.values())


@pytest.mark.parametrize("seed", [2, 20, 23, 94, 95, 96])
def test_nothing_has_more_hits_than_the_oracle_on_prompts_of_several_blocks(seed):
    """Blocks named by what they hold alone, as tokens are, and by all before them: the same token comes after other prefixes."""
    draw = random.Random(seed)
    for _ in range(8):
        prompts, room = ["".join(draw.choices("ab", k=draw.randint(1, 3))) for _ in range(7)], draw.randint(3, 4)
        best = most_hits(prompts, room)
        for name in (lambda x, i: x[i], lambda x, i: x[: i + 1]):
            blocks = [tuple(name(x, i) for i in range(len(x))) for x in prompts]
            requests = [Request(0, "j", "a", turn, x, last=turn == 6) for turn, x in enumerate(blocks)]
            assert simulate(Trace(tuple(requests), block=1), Oracle(), one_tier(room)).hit_tokens == (best,)


def test_the_least_often_used_goes():
    trace = loop("AABBCDAB", "ABCD")  # D takes the place of C
    assert simulate(trace, LFU(), one_tier(3)).hit_tokens == (4,)
    assert simulate(trace, LRU(), one_tier(3)).hit_tokens == (2,)


@pytest.mark.parametrize("seed", range(4))
def test_with_room_for_all_hits_are_common_prefixes(seed):
    """Token by token, against every prompt before it."""
    draw = np.random.default_rng(seed)
    prompts = [tuple(map(int, draw.integers(0, 2, draw.integers(1, 12)))) for _ in range(40)]
    requests = tuple(Request(0, "j", "a", i, x, last=i == 39) for i, x in enumerate(prompts))
    found = simulate(Trace(requests, block=1), LRU(), one_tier(1000))
    common = lambda x, y: next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))  # noqa: E731
    assert found.hit_tokens[0] == sum(max([0, *(common(x, y) for y in prompts[:i])]) for i, x in enumerate(prompts))


class Watched(Rule):
    """Any rule, with the tree looked at whenever a request begins or ends."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.looks = rule, 0

    def __getattribute__(self, name: str):
        if name in ("rule", "looks", "begin", "on_start", "on_turn_end", "look", "trace", "tree", "machine"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "rule"), name)

    def begin(self, trace, tree, machine):
        self.trace, self.tree, self.machine = trace, tree, machine
        self.rule.begin(trace, tree, machine)

    def on_start(self, *told):
        self.look()
        self.rule.on_start(*told)

    def on_turn_end(self, *told):
        self.look()
        self.rule.on_turn_end(*told)

    def look(self):
        self.looks += 1
        nodes = list(self.tree.root.below())
        for tier, room in enumerate(self.machine.tiers):
            there = [node for node in nodes if node.tier == tier]
            assert set(there) == set(self.tree.members[tier])
            assert sum(len(node.blocks) for node in there) == self.tree.held[tier]
            assert self.tree.held[tier] * self.trace.block <= room.tokens
        assert all(child.tier >= node.tier and child.parent is node for node in nodes for child in node.children.values())


@pytest.mark.parametrize("make", RULES)
@pytest.mark.parametrize("build", [workflow, programs])
def test_tiers_hold_what_they_can_and_the_faster_the_nearer_to_the_root(make, build):
    trace = build(jobs=6, seed=1, every=0.5, fixed=1024)
    most = max(x.prompt_tokens(256) + x.out_tokens for x in trace.requests)
    costs = Costs(1e-4, 1e-2, 0, 1000, 0.01, 0.01)
    for tiers in ((most + 900,), (most + 900, 5000), (2 * most, 5000, 9000)):
        machine = Machine(tuple(Tier(tokens, 1e8) for tokens in tiers), costs, running=3)
        rule = Watched(make())
        found = simulate(trace, rule, machine)
        assert rule.looks == 2 * len(trace.requests) and found.requests == len(trace.requests)
        assert sum(found.hit_tokens) + found.recomputed_tokens == found.prompt_tokens
        assert all(not node.readers for node in rule.tree.root.below())
        assert found == simulate(trace, make(), machine)


def test_what_is_wanted_soon_comes_back_while_others_run():
    """B's prompt lies in host memory while A decodes; a transfer of ten seconds hides behind it."""
    costs = Costs(prefill=1, decode=1, read=0, bytes_per_token=1, gamma=0.01, gamma_16bit=0.01)
    prompts = {"A": tuple("abcdefghij"), "B": tuple("klmnopqrst"), "C": tuple("uvwxyz0123")}
    order = "ABCABC"
    requests = [Request(0, "j", x, i, prompts[x], 0, 10, fixed=10, last=i == 5) for i, x in enumerate(order)]
    graph = StepGraph({"A": Step(("C",)), "B": Step(("A",)), "C": Step(("B",))})
    machine = Machine((Tier(30), Tier(100, 1.0)), costs, running=1)
    trace = Trace(tuple(requests), block=1, graph=graph)
    slow, fast = simulate(trace, StepsToExecution(), machine), simulate(trace, KVFlow(ahead=1), machine)
    assert sum(slow.hit_tokens) == sum(fast.hit_tokens) == 30
    assert fast.hit_tokens[0] > slow.hit_tokens[0] and fast.makespan < slow.makespan
    assert fast.bytes_up >= slow.bytes_up  # what was fetched ahead of time went through the same link


def turns_with_a_rival(**how) -> Trace:
    """A job of two turns with a tool of 10 seconds between, while three others pass through."""
    mine = [
        Request(0, "mine", "a", 0, ("m", "n"), tool="t", tool_seconds=10),
        Request(0, "mine", "a", 1, ("m", "n", "o"), last=True),
    ]
    others = [Request(3 + i, f"k{i}", "b", 0, (f"x{i}", f"y{i}"), last=True) for i in range(3)]
    return Trace(tuple(mine + others), block=1, **how)


def test_a_pinned_cache_outlives_its_tool():
    trace = turns_with_a_rival()
    assert simulate(trace, LRU(), one_tier(5)).hit_tokens == (0,)
    assert simulate(trace, TimeToLive(9.0), one_tier(5)).hit_tokens == (2,)
    assert simulate(trace, TimeToLive(2.0), one_tier(5)).hit_tokens == (0,)
    assert simulate(trace, TimeToLive(99.0, cap=0.3), one_tier(5)).hit_tokens == (0,)  # two of five are more than may be pinned


def test_where_all_is_pinned_what_would_stay_longest_goes():
    """Two of three turns' caches fit: without unpinning the third would wait for ever."""
    requests = [
        Request(i, f"j{i}", "a", turn, (f"x{i}", f"y{i}"), tool_seconds=50, last=turn == 1) for i in range(3) for turn in (0, 1)
    ]
    found = simulate(Trace(tuple(requests), block=1), TimeToLive(1e6, cap=1.0), one_tier(4))
    assert found.requests == 6 and found.hit_tokens[0] in (2, 4)


def test_continuum_serves_the_job_that_came_first():
    """The second turn of the first job is there while two later jobs wait."""
    first = [Request(0, "first", "a", 0, ("a",), tool="t", tool_seconds=1), Request(0, "first", "a", 1, ("a", "b"), last=True)]
    later = [Request(0.1 + 0.1 * i, f"k{i}", "b", 0, tuple(f"{i}{x}" for x in range(10)), last=True) for i in range(3)]
    trace = Trace(tuple(first + later), block=1)
    ended = {make: simulate(trace, make(), one_tier(100)).completion_p50 for make in (LRU, Continuum)}
    alone = {make: simulate(trace, make(), one_tier(100)).queueing for make in (LRU, Continuum)}
    assert alone[Continuum] < alone[LRU] and ended[Continuum] != ended[LRU]


def test_queueing_and_completion_times_by_hand():
    """Two jobs of ten and of four tokens at once, one after the other: the second waits ten seconds."""
    requests = (Request(0, "a", "x", 0, tuple("abcdefghij"), last=True), Request(0, "b", "x", 0, tuple("klmn"), last=True))
    found = simulate(Trace(requests, block=1), LRU(), one_tier(20))
    assert (found.queueing, found.completion_mean, found.makespan) == (5, 12, 14)
    beside = simulate(Trace(requests, block=1), LRU(), one_tier(20, running=2))
    assert (beside.queueing, beside.completion_mean, beside.makespan) == (0, 7, 10)


def test_agents_of_a_turn_run_side_by_side_and_the_next_waits_for_all():
    requests = [
        Request(0, "j", "a", 0, tuple("abc")),
        Request(0, "j", "b", 0, tuple("defgh")),
        Request(0, "j", "c", 1, ("i",), last=True),
    ]
    assert simulate(Trace(tuple(requests), block=1), LRU(), one_tier(20, running=2)).makespan == 5 + 1


def test_a_tool_runs_while_others_of_its_turn_still_do():
    """Ten seconds beside three with a tool of eight: the next turn comes at 3 + 8, not at 10 + 8."""
    requests = [
        Request(0, "j", "a", 0, tuple("abcdefghij")),
        Request(0, "j", "b", 0, tuple("xyz"), tool="search", tool_seconds=8.0),
        Request(0, "j", "c", 1, ("q",), tool="search", tool_seconds=2.0),
        Request(0, "j", "d", 2, ("r",), last=True),
    ]
    assert simulate(Trace(tuple(requests), block=1), LRU(), one_tier(40, running=2)).makespan == 3 + 8 + 1 + 2 + 1


def test_bytes_that_a_tier_moves_by_hand():
    """ABA with room for one block of four bytes: A goes down and comes back, B goes down; a byte takes a second."""
    costs = Costs(prefill=1, decode=0, read=0, bytes_per_token=4, gamma=0.01, gamma_16bit=0.01)
    found = simulate(loop("ABA", "AB"), LRU(), Machine((Tier(1), Tier(9, 1.0)), costs, 1))
    assert (found.hit_tokens, found.bytes_down, found.bytes_up, found.makespan) == ((0, 1), 8, 4, 2 + 4)


def one_after_the_other(*prompts: str) -> Trace:
    """One job whose turns have these prompts, a block a letter."""
    requests = [Request(0, "j", "a", i, tuple(x), last=i == len(prompts) - 1) for i, x in enumerate(prompts)]
    return Trace(tuple(requests), block=1)


@pytest.mark.parametrize("make", RULES)
def test_what_falls_past_a_tier_takes_along_what_lay_there_below_it(make):
    """c is in host memory, which ab cannot go to: c goes on to the disk, and then ab, and the prompt is found as a whole."""
    rule, machine = Watched(make()), Machine((Tier(3), Tier(1, 1.0), Tier(9, 1.0)), SLOW, running=1)
    found = simulate(one_after_the_other("abc", "x", "xyz", "abc"), rule, machine)
    rule.look()
    assert found.hit_tokens == (1, 0, 3) and found.bytes_up == 3


def test_a_prompt_that_a_rule_splits_while_room_is_made_is_fetched_as_a_whole():
    """b's prompt, a part of a's, is looked for as soon as b waits: while room is made for a's, which is in host memory."""
    prompts = [("a", 0, "pqr"), ("c", 1, "xyz"), ("a", 2, "pqr"), ("b", 2, "pq")]
    requests = [Request(0, "j", agent, turn, tuple(x), fixed=len(x), last=turn == 2) for agent, turn, x in prompts]
    graph = StepGraph({"c": Step(("a",)), "b": Step(("c",))})
    rule = Watched(StepsToExecution())
    found = simulate(Trace(tuple(requests), 1, graph), rule, Machine((Tier(3), Tier(9, 1.0)), SLOW, running=1))
    rule.look()
    assert found.hit_tokens == (2, 3) and found.bytes_up == 3 and found.makespan == 3 + 3 + 3


@pytest.mark.parametrize("make", RULES)
def test_what_is_on_its_way_is_not_there_yet(make):
    """A block of three comes from host memory in ten seconds each, from 6 to 36: who wants it at 7 waits until 36."""
    mine = [Request(0, "mine", "a", turn, tuple(x), last=turn == 2) for turn, x in enumerate(("abc", "xyz", "abc"))]
    other = Request(7, "other", "b", 0, tuple("abc"), last=True)
    machine = Machine((Tier(3), Tier(9, 0.1)), SLOW, running=2)
    found = simulate(Trace((*mine, other), block=1), make(), machine)
    assert found.hit_tokens == (3, 3) and found.makespan == 36
    assert found.queueing == 29 / 4 and found.completion_mean == (36 + 29) / 2


@pytest.mark.parametrize("build", [workflow, programs])
def test_generators_give_the_same_for_the_same_seed_and_files_keep_them(build, tmp_path):
    trace = build(jobs=3, seed=7)
    assert trace == build(jobs=3, seed=7) != build(jobs=3, seed=8)
    files.write(trace, tmp_path / "trace.jsonl")
    assert files.read(tmp_path / "trace.jsonl") == trace


def test_token_ids_become_blocks(tmp_path):
    file = tmp_path / "trace.jsonl"
    rows = [
        {"job": "a", "tokens": list(range(7)), "out": [7, 8, 9]},
        {"job": "a", "turn": 1, "tokens": list(range(13)), "last": True},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in [{"block": 4}, *rows]))
    one, two = files.read(file).requests
    names = chain(range(13), 4)
    assert (one.blocks, one.new_tokens, one.out_tokens, one.out_blocks) == (names[:1], 3, 3, names[1:2])
    assert (two.blocks, two.new_tokens) == (names, 1) and len(set(names)) == 3
    assert simulate(files.read(file), LRU(), one_tier(40)).hit_tokens == (8,)


def test_a_trace_of_mooncakes(tmp_path):
    file = tmp_path / "mooncake.jsonl"
    rows = [(0, 1200, [5, 6, 7]), (2500, 1100, [5, 6, 8])]
    row = lambda t, n, ids: {"timestamp": t, "input_length": n, "output_length": 10, "hash_ids": ids}  # noqa: E731
    file.write_text("".join(json.dumps(row(*x)) + "\n" for x in rows))
    found = files.read(file)
    assert found.block == 512 and [(x.t, x.blocks, x.new_tokens) for x in found.requests] == [(0, (5, 6), 176), (2.5, (5, 6), 76)]
    assert simulate(found, LRU(), one_tier(4000, Costs(1e-3, 0, 0, 1, 0, 0))).hit_tokens == (1024,)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"job": "a", "blocks": [1.5], "last": true}', "line 1 .*expected a list of hashes"),
        ('{"job": "a", "blocks": [1], "color": 3}', "unknown fields 'color'"),
        ('{"job": "a", "blocks": [1]}', "its last turn, and no other"),
        ('{"job": "a", "blocks": [1], "turn": 1, "last": true}', "must have turns 0, 1, 2"),
        ('{"job": "a", "blocks": [1], "out_blocks": [2], "last": true}', "do not fill 1 blocks of 256"),
        ('{"graph": {"a": {"needs": "some"}}}', '"all" or "any"'),
        ('{"timestamp": 0, "input_length": 2000, "output_length": 1, "hash_ids": [1]}', "a hash for each 512 of 2000"),
        ("[]", "expected an object"),
        ('{"block": 0}', "line 1 .*block"),
        ('{"job": "a", "tokens": [1, 2], "blocks": [7], "new_tokens": 1, "last": true}', "blocks, new_tokens: tokens and out say"),
        ('{"job": "a", "tokens": [1, 2], "out": [3], "out_tokens": 9, "last": true}', "out_tokens: tokens and out say it already"),
        ('{"block": 4}', "a trace has requests"),
        (
            '{"job": "a", "blocks": [1], "last": true}\n{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}',
            "line 2 .*hash_ids and requests without in one file",
        ),
    ],
)
def test_what_is_no_trace_is_said(line, reason, tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ValueError, match=reason):
        files.read(file)


def test_a_request_larger_than_the_device_is_refused():
    with pytest.raises(ValueError, match="needs 2 tokens of cache, the device has 1"):
        simulate(Trace((Request(0, "a", "b", 0, (1, 2), last=True),), block=1), LRU(), one_tier(1))


def test_the_command_prints_a_table_and_writes_every_number(cli, tmp_path):
    table, kept, told = (tmp_path / name for name in ("rows.csv", "trace.jsonl", "rows.json"))
    words = "simulate --jobs 2 --rules lru,kvflow --caches full,kivi --device 2 --host 1".split()
    code, shown, _ = cli(*words, "--csv", table, "--keep-trace", kept, "--json", told)
    assert code == 0 and "| kivi | kvflow |" in shown
    rows = json.loads(told.read_text())["rows"]
    assert [(row["cache"], row["rule"]) for row in rows] == [(c, r) for c in ("full", "kivi") for r in ("lru", "kvflow")]
    head, *body = table.read_text().splitlines()
    assert head.split(",") == list(rows[0]) and len(body) == 4
    assert rows[0]["bytes_per_token"] == pytest.approx(2 * 32 * 8 * 128 * 2, rel=0.03)  # keys and values of Llama 3 8B in 16 bits
    assert 4 < rows[0]["bytes_per_token"] / rows[2]["bytes_per_token"] < 6
    again = cli("simulate", "--trace", kept, *words[3:], "--json", told)
    assert again[0] == 0 and json.loads(told.read_text())["rows"] == rows


def test_what_a_disk_holds_is_told_of_the_disk(cli, tmp_path):
    """Where there is no host memory between it and the device."""
    told = tmp_path / "rows.json"
    code, _, err = cli(*"simulate --jobs 6 --rules lru --device 1 --host 0 --disk 20 --json".split(), told)
    (row,) = json.loads(told.read_text())["rows"]
    assert code == 0 and row["hit_tokens_host"] == 0 < row["hit_tokens_disk"], err
    assert row["hit_tokens_device"] + row["hit_tokens_disk"] + row["recomputed_tokens"] == row["prompt_tokens"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--rules fifo", "none of lru, lfu"),
        ("--rules lru,lfu,lru", "lru is given twice"),
        ("--device 0", "some memory"),
        ("--caches streaming_llm:sinks=4", "--budget"),
        ("--caches fastgen", "evicts"),
        ("--caches zipcache", "zipcache ranks all tokens of a prompt for where and how they are kept: its cache is no prefix"),
        ("--device 0.1", "give it more memory"),
        ("--trace nowhere.jsonl --seed 3", "--jobs, --seed: --trace says what is asked for"),
    ],
)
def test_the_command_refuses_in_a_line(cli, words, reason):
    code, _, complaint = cli("simulate", "--jobs", 1, *words.split())
    assert code == 2 and reason in complaint
    code, _, complaint = cli("simulate", "--trace", "nowhere.jsonl")
    assert code == 2 and "nowhere.jsonl" in complaint


@pytest.mark.slow
def test_the_tables_of_the_page_are_what_the_commands_print(cli):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    found = re.findall(r"```bash\nkvjax (simulate .*)\n```\n\n.*\n\n((?:\|.*\n)+)", page)
    assert len(found) == 3
    for words, table in found:
        assert table in cli(*words.split())[1]
