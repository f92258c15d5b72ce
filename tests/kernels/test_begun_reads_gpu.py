"""Readings of the host in programs compiled for an H200 that is not there: attention stands between a beginning and its use."""

import re
from collections.abc import Iterator

import pytest

from . import deviceless

deviceless.require()

import kvjax  # noqa: E402
from kvjax.encode import ByCallback  # noqa: E402
from tests.decode_loop import decode, operands  # noqa: E402
from tests.overlapping import between, heterocache, infinigen  # noqa: E402

SLOTS = 1 << 12
_CALLED = re.compile(r"(?:body|to_apply|true_computation|false_computation)=(%[^,\s]+)")
_KIND = re.compile(r" = .*? (while|conditional|call|custom-call)\(")


def computations(text: str) -> dict[str, list[tuple[str, str]]]:
    """Kind and line of the instructions of a scheduled module in their order, by computation; the entry as "entry"."""
    found, name = {}, None
    for line in text.splitlines():
        if begins := re.match(r"(ENTRY )?(%\S+) \(.*\{$", line):
            name = "entry" if begins[1] else begins[2]
            found[name] = []
        elif name and (kind := _KIND.search(line)):
            found[name].append((kind[1], line))
    return found


def events(found: dict[str, list[tuple[str, str]]], name: str) -> Iterator[str]:
    """In the order of the schedule, loops and branches where they stand: "begin", "take" and "attention" of a kernel."""
    for kind, line in found[name]:
        if kind != "custom-call":
            branches = re.findall(r"branch_computations=\{([^}]*)\}", line)
            for inner in _CALLED.findall(line) + [name for many in branches for name in many.split(", ")]:
                yield from events(found, inner)
        elif "python_gpu_callback" in line:
            yield "begin" if "io_callback" in line.split(" = ")[0] else "take"
        elif re.search(r'op_name="[^"]*jit\(attention[^"]*triton_kernel_call', line):
            yield "attention"


@pytest.mark.parametrize("method", [heterocache, infinigen])
def test_attention_stands_between_a_beginning_and_its_use(lm, method):
    """HeteroCache's rows have the attention of a whole step to come, InfiniGen's that of the layer before theirs."""
    policy = method(ByCallback())
    args = operands(lm, kvjax.prefill(lm, list(range(90)), needs=policy), policy, SLOTS)
    text = deviceless.compiled(decode._loop, *args, width=64, keep_logits=False).as_text()
    step = list(events(computations(text), "entry"))  # the loop over steps is the program
    readings = 2 if method is heterocache else 2 * (lm.decoder.layers - 1)  # keys and values
    assert step.count("begin") == step.count("take") == readings
    assert step.count("attention") >= lm.decoder.layers
    least = step.count("attention") if method is heterocache else 1
    found = between(2 * step, "attention")
    assert len(found) == (readings if method is heterocache else 2 * readings) and min(found) >= least
