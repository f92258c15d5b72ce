"""Which cells a leaderboard has: every method at every budget, and why a method is not on it."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import kvjax
from experiments.policies import Budget, Named, parse_policy
from kvjax.artefacts.artefact import built_in
from kvjax.artefacts.retrofit import OWN, trained_for
from kvjax.compress.streaming import check_leaving
from kvjax.protocols import Decoder


@dataclass(frozen=True)
class Cells:
    """measured: methods at their budgets.   left_out: method, or `method at budget` -> why it cannot be measured as it stands."""

    measured: tuple[Named, ...]
    left_out: Mapping[str, str]


def cells(specs: Sequence[str], budgets: Sequence[Budget], model: Decoder, lengths: Sequence[int]) -> Cells:
    """Every method of `specs` at every budget; one without a budget (it quantises or retrieves) once, at its own settings.

    A method that takes whole slots alone gets the share of the (one) length in slots. A method that wants trained weights, a
    calibration that is not there, another model, or a prefill of its own is left out, with what it says; so is one that wants the
    model itself to be trained for it, on a model that was not.

    Args:
        specs: `NAME[:key=value,...]`, as `experiments.policies` reads them.
        budgets: shares of the prompt, or slots per KV head.
        model: what the policies are to fit.   lengths: of the prompts, in tokens.

    Raises:
        ValueError: a name that is no method's.
    """
    found: dict[tuple[str, Budget], Named] = {}
    refused: dict[tuple[str, Budget], str] = {}
    for spec in specs:
        name = _known(spec)
        for budget in budgets:
            try:
                _check_trained(name, model)
                cell = _cell(spec, budget, model, lengths)
            except ValueError as error:
                refused[spec, budget] = str(error)
                continue
            found[cell.name, cell.budget] = cell
    some = {name for name, _ in found}
    left_out = {f"{spec} at {budget}" if spec in some else spec: why for (spec, budget), why in refused.items()}
    return Cells(tuple(found.values()), left_out)


def with_built_in(specs: Sequence[str], model: str) -> list[str]:
    """The specs, each with the artefact that comes with the library for this model where it is not the method's default.

    Args:
        specs: `NAME[:key=value,...]`; one that names an artefact stays as it is.   model: the model's name.
    """
    return [_with_built_in(spec, model) for spec in specs]


def _with_built_in(spec: str, model: str) -> str:
    name, _, rest = spec.partition(":")
    given = {part.partition("=")[0].strip() for part in rest.split(",")}
    if f"{model}/{name}" not in built_in() or "artefact" in given:
        return spec
    if inspect.signature(getattr(kvjax.methods, name)).parameters["artefact"].default == model:
        return spec
    return f"{name}:{','.join(filter(None, [rest, f'artefact={model}']))}"


def slots(share: float, length: int) -> int:
    """What a method that takes whole slots alone gets for a share of the context."""
    return max(1, round(share * length))


def without(found: Cells, refused: Mapping[str, str]) -> Cells:
    """The cells but those of policies that are refused: name -> why."""
    return Cells(tuple(cell for cell in found.measured if cell.name not in refused), {**found.left_out, **refused})


def _known(spec: str) -> str:
    """The method's name."""
    name = spec.partition(":")[0]
    if name not in kvjax.methods.names():
        raise ValueError(f"--methods: unknown method {name!r}: `kvjax methods` lists them")
    return name


def _check_trained(name: str, model: Decoder) -> None:
    """Raise ValueError for a method whose trained weights are the model's own, on a model that holds others."""
    if name in OWN and trained_for(model) != name:
        raise ValueError(
            f"the weights that {name} is trained for are the model's own, and this model was not trained for it: without that it "
            f"is only a ranking; `kvjax train {name} --out FOLDER`, then --model MODEL+FOLDER"
        )


def _cell(spec: str, budget: Budget, model: Decoder, lengths: Sequence[int]) -> Named:
    try:
        cell = parse_policy(spec, budget)
    except ValueError:
        if isinstance(budget, int) or len(lengths) > 1:
            raise
        cell = parse_policy(spec, slots(budget, lengths[0]))
    for length in lengths:
        cell.policy.check(model, length)
    check_leaving(model, cell.policy, cell.policy.attention)
    return cell
