"""A simulator of prefix caching for agents: a radix tree in tiers of memory, eviction rules, queueing and tool calls.

outcome = simulate(workflow(jobs=8, seed=0), LRU(), machine)
"""

from experiments.serving.prefix_cache.machine import Costs, Machine, Tier
from experiments.serving.prefix_cache.rules import LFU, LRU, Oracle, Rule
from experiments.serving.prefix_cache.simulator import simulate
from experiments.serving.prefix_cache.step_graph import StepGraph
from experiments.serving.prefix_cache.steps_to_execution import KVFlow, StepsToExecution
from experiments.serving.prefix_cache.time_to_live import Continuum, TimeToLive
from experiments.serving.prefix_cache.trace import Request, Trace

__all__ = [
    "LFU", "LRU", "Continuum", "Costs", "KVFlow", "Machine", "Oracle", "Request", "Rule", "StepGraph", "StepsToExecution", "Tier",
    "TimeToLive", "Trace", "simulate",
]  # fmt: skip
