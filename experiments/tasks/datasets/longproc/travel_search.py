"""The search of LongProc's travel planning, a line a step, in the benchmark's words (longproc/travel_planning_evaluator.py).

Day by day: a city with a fixed schedule from this day on goes next, else the free cities are tried in order; a city fits if
there is a flight to it and it ends by the day on which the next fixed schedule begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Problem = Mapping[str, Any]
START = "the starting point"


@dataclass(frozen=True)
class Stop:
    """A city from day `first` to day `last`, both counted."""

    city: str
    first: int
    last: int

    @property
    def days(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Search:
    """What does not change while searching, and the lines written so far."""

    count: int
    fixed: Sequence[Stop]
    flights: frozenset[tuple[str, str]]
    log: list[str]

    def run(self, day: int, plan: Sequence[Stop], free: Mapping[str, int]) -> Sequence[Stop] | None:
        """The first complete plan that begins with `plan`; None where there is none."""
        say = self._say(2 * len(plan))
        say(f"Current day: {day}. Current plan: [{', '.join(stop.city for stop in plan)}].")
        if len(plan) == self.count:
            say(f"All {self.count} cities are arranged. Complete plan is found!")
            return plan
        say(f"Check whether the city with an arrival day of Day {day} - is fixed.")
        here = next((stop for stop in self.fixed if stop.first == day), None)
        if here:
            say(f"Yes. The city with an arrival day of Day {day} - is fixed: {here.city}.")
        else:
            named = f"[{', '.join(free)}]"
            say(f"No. Consider possible options from cities needing arrangement: {named} and explore these options in order.")
        for stop in [here] if here else [Stop(city, day, day + days - 1) for city, days in free.items()]:
            if self._fits(stop, plan):
                rest = {city: days for city, days in free.items() if city != stop.city}
                found = self.run(stop.last, (*plan, stop), rest)
                if found is not None:
                    return found
        self._say(2 * len(plan) + 1)(f"Fail to arrange any option on day {day} in the current arrangement. Drop this branch.")
        return None

    def _fits(self, stop: Stop, plan: Sequence[Stop]) -> bool:
        say, day, before = self._say(2 * len(plan) + 1), stop.first, plan[-1].city if plan else START
        say(f"Try arranging to visit {stop.city} from Day {day}. Duration: {stop.days} days. Schedule: Day {day} - {stop.last}.")
        say(f"Check for direct flight from {before} to {stop.city}.")
        if plan and (before, stop.city) not in self.flights:
            say("No. Drop this branch.")
            return False
        say("Yes.")
        after = next((other for other in self.fixed if other.first > day), None)
        named = f"{after.city} (Day {after.first} - {after.last})" if after else "None"
        say(f"Check whether this arrangement is compatible with the next fixed schedule after Day {day}: {named}.")
        if after is None:
            say("No following fixed schedules. This arrangement is compatible.")
        else:
            late = after.first < stop.last
            days = f"The departure day of {stop.city} is Day {stop.last}. The arrival day of {after.city} is Day {after.first}. "
            order = "later than (>)" if late else "not later than (<=)"
            end = "incompatible. Drop this branch." if late else "compatible."
            say(f"{days}Day {stop.last} is {order} Day {after.first}. This arrangement is {end}")
            if late:
                return False
        say("This arrangement is feasible for now. Continue to arrange the rest of the plan.")
        return True

    def _say(self, level: int) -> Any:
        indent = f"{' ' * level}|- " if level else ""
        return lambda line: self.log.append(indent + line)


def demonstration(problem: Problem) -> str:
    """The search for a problem's plan and the plan, as a prompt shows them and an answer repeats them.

    Raises:
        ValueError: the problem has no plan.
    """
    fixed_of = {found["city"]: found for found in problem["constraints"] if found["type"] == "fixed"}
    days_of = {found["city"]: found["num_days"] for found in problem["constraints"] if found["type"] == "duration"}
    free = {city: days for city, days in days_of.items() if city not in fixed_of}
    fixed = sorted((Stop(city, at["start_day"], at["end_day"]) for city, at in fixed_of.items()), key=lambda stop: stop.first)
    log = _read(days_of, fixed, free)
    flights = frozenset((source, target) for source, target in problem["connected_cities"])
    found = Search(problem["num_cities"], fixed, flights, log).run(1, (), free)
    if found is None:
        raise ValueError(f"longproc: no plan satisfies the travel planning problem {problem['disambig_question_text']!r}")
    searched = "\n".join(log)
    return (
        f"<Solving Procedure>\n{searched}\n</Solving Procedure>\n\n"
        f"Output the plan in the required format:\n<Plan>\n{written(found)}\n</Plan>"
    )


def _read(days_of: Mapping[str, int], fixed: Sequence[Stop], free: Mapping[str, int]) -> list[str]:
    """The lines that read the constraints."""
    at = {stop.city: f"Fixed Schedule: Day {stop.first} - {stop.last}." for stop in fixed}
    lines = ["Read the requirements and identify the cities that have fixed schedules and the cities that need to be arranged."]
    for city, days in days_of.items():
        lines.append(f"* City: {city}, Duration: {days} days" + (f", {at[city]}" if city in at else "."))
    lines += ["", *_listed("Cities that have fixed schedules", " (sorted by their arrival days)", at)]
    return lines + ["", *_listed("Cities needing arrangement", "", {city: f"Duration: {n} days." for city, n in free.items()}), ""]


def _listed(title: str, more: str, cities: Mapping[str, str]) -> list[str]:
    if not cities:
        return [f"{title}: None."]
    return [f"{title}{more}:", *(f"* City: {city}, {what}" for city, what in cities.items())]


def written(plan: Sequence[Stop]) -> str:
    """The plan, a line a stop and a line a flight."""
    lines = []
    for i, stop in enumerate(plan):
        arriving = f"Arriving in {stop.city} and visit" if i == 0 else "Visit"
        lines.append(f"**Day {stop.first}-{stop.last}:** {arriving} {stop.city} for {stop.days} days.")
        if i + 1 < len(plan):
            lines.append(f"**Day {stop.last}:** Fly from {stop.city} to {plan[i + 1].city}.")
    return "\n".join(lines)
