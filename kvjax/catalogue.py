"""What is to be said of a method: read off its module, its signature and the policy it builds. No second table is kept by hand.

A method's file says in its docstring: `Name: what it keeps.`, the paper's title between asterisks, its arXiv number, `Stages:` and
`Differs:`. What can be read off neither these nor the code is a constant of the file: REQUIRES, a tuple of what a user must bring
or pay beside the prompt ("second pass", "calibration", "training"), where it is more than `artefact=` and the needs tell.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from kvjax.compress.pools import empty_pools
from kvjax.policy import Policy
from kvjax.schedule import Every, WhenFull

#: The stages of a policy, in the order of the data path.
SLOTS = ("attention", "score", "allocate", "select", "merge", "encode", "retrieve", "when")
#: What a method may ask for beside a prompt.
REQUIREMENTS = ("second pass", "calibration", "training")
#: Slots that bytes are counted over.
_MANY = 1024


@dataclass(frozen=True)
class MethodInfo:
    """A published method.

    Attributes:
        name: `getattr(kvjax.methods, name)` builds it.   title: the name it was published under.
        keeps: what it keeps, in a line.
        paper: the paper's title.   arxiv: its number.   year: of that number. Each None where there is none.
        stages: class names by slot.
        parameters: the arguments of the method and their defaults, as text; "required" where there is none.
        evidence: what the prefill records for it, class names.
        requires: some of "second pass", "calibration" and "training".
        acts: when slots are evicted.
        slot_nbytes, host_nbytes: bytes of a slot on the device, its position and statistics included, and in host memory; what a
            retriever holds beside the slots is not in them. None where the policy cannot be built from defaults, or slots differ.
        differs: how it differs from the paper, as its file says; "" where nothing is said.
    """

    name: str
    title: str
    keeps: str
    paper: str | None
    arxiv: str | None
    year: int | None
    stages: Mapping[str, str]
    parameters: Mapping[str, str]
    evidence: tuple[str, ...]
    requires: tuple[str, ...]
    acts: str
    slot_nbytes: int | None
    host_nbytes: int | None
    differs: str


def info(module: ModuleType, *, head_dim: int, dtype: str) -> MethodInfo:
    """What is to be said of the method of a file; bytes are of a model of this head dimension whose numbers come in `dtype`."""
    name = module.__name__.rsplit(".", 1)[-1]
    text, make = inspect.cleandoc(module.__doc__ or ""), getattr(module, name)
    policy = _built(make)
    parameters = {p.name: _default(p, policy) for p in inspect.signature(make).parameters.values()}
    device, host = (None, None) if policy is None or policy.encode.parted else slot_bytes(policy, head_dim, jnp.dtype(dtype))
    title, keeps = _headline(text)
    arxiv = _found(r"arXiv (\d{4}\.\d{4,5})", text)
    return MethodInfo(
        name=name,
        title=title or name,
        keeps=keeps,
        paper=_found(r"(?m)^\*([^*]+)\*", text),
        arxiv=arxiv,
        year=None if arxiv is None else 2000 + int(arxiv[:2]),
        stages=_told(text) if policy is None else {slot: type(getattr(policy, slot)).__name__ for slot in SLOTS},
        parameters=parameters,
        evidence=() if policy is None else tuple(sorted({type(need).__name__ for need in policy.needs})),
        requires=_required(module, parameters, policy),
        acts=_acts(text) if policy is None else when(policy),
        slot_nbytes=device,
        host_nbytes=host,
        differs=_paragraph("Differs", text),
    )


def when(policy: Policy) -> str:
    """When a policy evicts, in words."""
    if not policy.when.decoding:
        everything = policy.budget == 1.0 and isinstance(policy.budget, float) and not policy.allocate.given
        return "nothing is evicted" if everything else "after the prompt"
    prompt = "after the prompt and " if policy.when.after_prefill else ""
    if isinstance(policy.when, Every):
        return prompt + ("at every step" if int(policy.when.k) == 1 else f"every {int(policy.when.k)} tokens")
    slack = f" by {int(policy.when.slack)} slots" if isinstance(policy.when, WhenFull) else ""
    return f"{prompt}when a head is over its budget{slack}"


@dataclass(frozen=True)
class _Sizes:
    """A model's sizes as far as the bytes of a slot depend on them."""

    head_dim: int
    layers: int = 1
    heads: int = 1
    groups: int = 1
    max_positions: int = 1 << 16
    retrofit: str = ""


def slot_bytes(policy: Policy, head_dim: int, dtype: DTypeLike) -> tuple[int, int]:
    """Bytes of a slot on the device, and in host memory."""

    def leaves() -> dict[str, list[jax.Array]]:
        pools = empty_pools(_Sizes(head_dim), policy, _MANY, dtype, numbered=policy.numbered)
        return {name: jax.tree.leaves(pool) for name, pool in pools.items()}

    size = {name: sum(x.size * x.dtype.itemsize for x in pool) // _MANY for name, pool in jax.eval_shape(leaves).items()}
    host = 0 if policy.encode.placement.on_device else size["v"]
    return sum(size.values()) - host, host


def _built(make: Callable[..., Policy]) -> Policy | None:
    """The policy as it is where nothing is given; None where something has to be, an artefact too."""
    known = inspect.signature(make).parameters.values()
    if any(parameter.default is inspect.Parameter.empty for parameter in known):
        return None
    try:
        return make()
    except ValueError:
        if not any(_awaited(parameter) for parameter in known):
            raise
        return None


def _awaited(parameter: inspect.Parameter) -> bool:
    """Whether it is an artefact that is not there for any model."""
    return parameter.name == "artefact" and parameter.default is None


def _default(parameter: inspect.Parameter, policy: Policy | None) -> str:
    """As text; an artefact without which there is no policy has to be given."""
    required = parameter.default is inspect.Parameter.empty or (_awaited(parameter) and policy is None)
    return "required" if required else repr(parameter.default)


def _required(module: ModuleType, parameters: Mapping[str, str], policy: Policy | None) -> tuple[str, ...]:
    """What the file's constant says, a calibration where there is an artefact of no training, a second pass where one is read."""
    given = set(vars(module).get("REQUIRES", ()))
    if "artefact" in parameters and "training" not in given:
        given.add("calibration")
    if policy is not None and any(need.second_pass for need in policy.needs):
        given.add("second pass")
    if unknown := given - set(REQUIREMENTS):
        raise ValueError(f"{module.__name__}.REQUIRES may name {', '.join(REQUIREMENTS)}; got {', '.join(sorted(unknown))}")
    return tuple(x for x in REQUIREMENTS if x in given)


def _headline(text: str) -> tuple[str | None, str]:
    """The first line: a short name before its colon, and what follows; or the whole line."""
    line = text.split("\n", 1)[0].rstrip(".")
    name, colon, rest = line.partition(": ")
    return (name, rest) if colon and len(name) <= 40 else (None, line)


def _found(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return None if match is None else " ".join(match[1].split())


def _paragraph(word: str, text: str) -> str:
    """What follows `word:` up to the next of the docstring's headings or an empty line, as one line."""
    return _found(rf"(?ms)^{word}: (.*?)(?=^\w+: |\n\n|\Z)", text) or ""


def _acts(text: str) -> str:
    """When a method acts, as its `Stages:` paragraph ends."""
    return _paragraph("Stages", text).split(". ")[0].rsplit("· ", 1)[-1].rstrip(".")


def _told(text: str) -> dict[str, str]:
    """Class names by slot as the `Stages:` paragraph tells them."""
    return dict(re.findall(rf"\b({'|'.join(SLOTS[:-1])}) ([A-Z]\w+)", _paragraph("Stages", text)))
