"""Synthetic traces of agents, drawn from a seed: workflows of agents with fixed prompts, and programs that call tools."""

import hashlib
from collections.abc import Sequence

import numpy as np

from experiments.serving.prefix_cache.step_graph import Step, StepGraph
from experiments.serving.prefix_cache.trace import Block, Request, Trace

#: The default workflow, stage by stage; the agents of a stage run side by side.
STAGES = (("planner",), ("searcher", "coder"), ("tester",), ("judge",))
#: Tools of a coding agent: median seconds, and sigma of the logarithm.
TOOLS = {"read_file": (0.2, 0.3), "run_tests": (8.0, 0.8), "web_search": (2.0, 0.5), "ask_user": (30.0, 1.0)}


def workflow(
    *, jobs: int, seed: int, stages: Sequence[Sequence[str]] = STAGES, rounds: int = 3, every: float = 4.0, fixed: int = 2048,
    task: int = 512, generated: int = 256, block: int = 256,
) -> Trace:  # fmt: skip
    """Jobs that go through the stages `rounds` times; an agent sees its fixed prompt, the task, and what its job said so far.

    Args:
        jobs, seed: how many, and of all draws.   every: mean seconds between jobs, exponential.
        fixed: mean tokens of an agent's prompt, the same in all jobs.   task, generated: mean tokens; all three are within a half.
        block: tokens of a block.
    """
    draw = np.random.default_rng(seed)
    names = [name for stage in stages for name in stage]
    prompts = {name: _blocks(("prompt", seed, name), _about(draw, fixed) // block + 1) for name in names}
    requests, t = [], 0.0
    for job in range(jobs):
        t += float(draw.exponential(every))
        said = _about(draw, task)
        turns = rounds * len(stages)
        for turn in range(turns):
            spoken = 0
            for name in stages[turn % len(stages)]:
                whole, rest = divmod(said, block)
                out = _about(draw, generated)
                blocks = prompts[name] + _blocks(("said", seed, job, name), whole)
                requests.append(Request(
                    t, f"job{job}", name, turn, blocks, rest, out, fixed=len(prompts[name]), last=turn == turns - 1,
                ))  # fmt: skip
                spoken += out
            said += spoken
    return Trace(tuple(requests), block, _graph(stages))


def programs(
    *, jobs: int, seed: int, turns: int = 8, every: float = 3.0, fixed: int = 3072, observed: int = 768, generated: int = 256,
    block: int = 256,
) -> Trace:  # fmt: skip
    """Programs of one agent that call a tool after each turn, and go on with all they have seen.

    Args:
        jobs, seed: how many, and of all draws.   turns: mean, geometric, three times as many at most.
        every: mean seconds between jobs, exponential.   fixed: tokens of the prompt that all share.
        observed, generated: mean tokens of a tool's answer and of a turn, within a half.   block: tokens of a block.
    """
    draw = np.random.default_rng(seed)
    shared, requests, t = _blocks(("program", seed), fixed // block), [], 0.0
    for job in range(jobs):
        t += float(draw.exponential(every))
        context, count = _about(draw, observed), min(int(draw.geometric(1 / turns)), 3 * turns)
        for turn in range(count):
            tool = list(TOOLS)[int(draw.integers(len(TOOLS)))]
            median, sigma = TOOLS[tool]
            out, last = _about(draw, generated), turn == count - 1
            after = _blocks(("seen", seed, job), (context + out) // block)
            requests.append(Request(
                t, f"job{job}", "agent", turn, shared + after[: context // block], context % block, out, after[context // block :],
                tool="" if last else tool, tool_seconds=0.0 if last else float(draw.lognormal(np.log(median), sigma)), last=last,
                fixed=len(shared),
            ))  # fmt: skip
            context += out + _about(draw, observed)
    return Trace(tuple(requests), block, StepGraph({"agent": Step(("agent",))}))


def _graph(stages: Sequence[Sequence[str]]) -> StepGraph:
    """Each stage waits for all of the one before it, the first for the last."""
    return StepGraph({name: Step(tuple(stages[i - 1]), "all") for i, stage in enumerate(stages) for name in stage})


def _about(draw: np.random.Generator, mean: int) -> int:
    """Uniform from half of the mean to one and a half, at least 1."""
    return max(1, int(draw.integers(mean // 2, mean + mean // 2 + 1)))


def _blocks(what: tuple, many: int) -> tuple[Block, ...]:
    """Names of blocks of one text: each stands for all before it."""
    return tuple(hashlib.sha256(repr((*what, i)).encode()).hexdigest()[:12] for i in range(many))
