"""One line of the report."""

from dataclasses import dataclass

PASS, FAIL, NOT_COVERED = "pass", "FAIL", "not covered"


@dataclass(frozen=True)
class Result:
    """What was compared in one cell and how it came out."""

    model: str
    cell: str
    status: str
    detail: str

    def line(self) -> str:
        return f"{self.status:<11}  {self.model:<24}  {self.cell:<32}  {self.detail}"


def judged(model: str, cell: str, checks: list[tuple[bool, str]]) -> Result:
    """Pass if every check passed; the details of all of them, failures first."""
    failed = [detail for ok, detail in checks if not ok]
    return Result(model, cell, FAIL if failed else PASS, "; ".join(failed + [d for ok, d in checks if ok]))


def within(what: str, worst: float, tolerance: float) -> tuple[bool, str]:
    """One check: the largest difference against its tolerance; NaN never passes."""
    ok = bool(worst <= tolerance)
    return ok, f"{what} {worst:.1e}" + ("" if ok else f" > {tolerance:.0e}")
