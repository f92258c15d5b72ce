"""KVFlow's step graph: which agent may run after which, and how many steps from now each will.

Source: KVFlow, arXiv 2507.07400, section 3.1.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Step:
    """What an agent waits for: `all` of the agents before it, or `any` one of them."""

    after: tuple[str, ...] = ()
    needs: Literal["all", "any"] = "any"


@dataclass(frozen=True)
class StepGraph:
    """Agents by name; cycles are loops of a workflow."""

    steps: Mapping[str, Step]

    def steps_to_execution(self, running: Collection[str]) -> dict[str, float]:
        """Steps until each agent runs, by the smallest solution of the equations.

            s_a = 0 where a runs, else 1 + max_{b before a} s_b where all are needed, 1 + min_{b before a} s_b where any is

        Args:
            running: the agents that run now.

        Returns:
            a whole number for each agent, inf where nothing that runs leads to it.

        Example:
            With A before B before C, D after both B and C, E after B or D, and A running: A 0, B 1, C 2, D 3, E 2.
        """
        names = {*self.steps, *running, *(name for step in self.steps.values() for name in step.after)}
        found = {name: 0.0 if name in running else math.inf for name in names}
        for _ in names:  # a value of k is final after k rounds
            before = dict(found)
            for name, step in self.steps.items():
                if name not in running and step.after:
                    of = max if step.needs == "all" else min
                    found[name] = 1 + of(before[x] for x in step.after)
            if before == found:
                break
        return found
