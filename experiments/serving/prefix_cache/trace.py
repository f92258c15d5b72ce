"""What agents ask of a server: requests in jobs, with the blocks of their prompts and the tools called between turns.

Prompts are cut into blocks of `block` tokens, each named by a hash of itself and all before it, so that shared prefixes coincide;
with block = 1 they are tokens.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.serving.prefix_cache.step_graph import StepGraph

#: The name of a block.
Block = int | str


@dataclass(frozen=True)
class Request:
    """One call of the model.

    Attributes:
        t: seconds at which the job's first turn arrives; a later turn arrives when the one before it and its tools have ended.
        job, agent: whose call it is.   turn: from 0; requests of one job and turn run side by side.
        blocks: whole blocks of the prompt.   new_tokens: tokens of the prompt after its last whole block.
        out_tokens: tokens generated.   out_blocks: the blocks that new and generated tokens complete.
        tool, tool_seconds: what is called after the turn, and how long it runs.   last: whether the job ends here.
        fixed: the first so many blocks are the agent's fixed prompt.
    """

    t: float
    job: str
    agent: str
    turn: int
    blocks: tuple[Block, ...]
    new_tokens: int = 0
    out_tokens: int = 0
    out_blocks: tuple[Block, ...] = ()
    tool: str = ""
    tool_seconds: float = 0.0
    last: bool = False
    fixed: int = 0

    def prompt_tokens(self, block: int) -> int:
        """Tokens of the whole prompt."""
        return len(self.blocks) * block + self.new_tokens


@dataclass(frozen=True)
class Trace:
    """Requests in the order of the file or the generator.

    Attributes:
        requests: in whichever order; the order is the oracle's time.   block: tokens of a block.
        graph: which agent follows which.

    Raises:
        ValueError: no requests, numbers out of range, a job whose turns are not 0, 1, 2, ..., or with anything but one last turn.
    """

    requests: tuple[Request, ...]
    block: int = 256
    graph: StepGraph = StepGraph({})

    def __post_init__(self) -> None:
        if not self.requests or self.block < 1:
            raise ValueError(f"a trace has requests and blocks of tokens; got {len(self.requests)} and {self.block}")
        for request in self.requests:
            self._check(request)
        for job, turns in self.jobs().items():
            if [*turns] != [*range(len(turns))]:
                raise ValueError(f"job {job!r} must have turns 0, 1, 2, ...; it has {[*turns]}")
            marks = [any(x.last for x in turns[turn]) for turn in turns]
            if marks != [False] * (len(marks) - 1) + [True]:
                raise ValueError(f"job {job!r}: its last turn, and no other, must be marked as last; got {marks}")

    def jobs(self) -> dict[str, dict[int, list[Request]]]:
        """Requests of each job by turn, turns ascending."""
        found: dict[str, dict[int, list[Request]]] = {}
        for request in sorted(self.requests, key=lambda x: x.turn):
            found.setdefault(request.job, {}).setdefault(request.turn, []).append(request)
        return found

    def _check(self, x: Request) -> None:
        where = f"job {x.job!r}, turn {x.turn}"
        if min(x.t, x.turn, x.new_tokens, x.out_tokens, x.tool_seconds, x.fixed) < 0:
            raise ValueError(f"{where}: times, turns and tokens are 0 or more; got {x}")
        if not x.prompt_tokens(self.block) or x.fixed > len(x.blocks):
            raise ValueError(f"{where}: a prompt has tokens, and its fixed part is a part of it; got {x}")
        if len(x.out_blocks) * self.block > x.new_tokens + x.out_tokens:
            raise ValueError(
                f"{where}: {x.new_tokens} new and {x.out_tokens} generated tokens do not fill "
                f"{len(x.out_blocks)} blocks of {self.block}"
            )


def chain(tokens: Sequence[int], block: int) -> tuple[str, ...]:
    """Names of the whole blocks of `tokens`: the hash of the block and of the name before it."""
    names, before = [], b""
    for end in range(block, len(tokens) + 1, block):
        before = hashlib.sha256(before + json.dumps(list(tokens[end - block : end])).encode()).digest()
        names.append(before.hex()[:16])
    return tuple(names)
