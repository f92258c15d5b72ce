"""Traces in files: JSON lines with the fields of a request, and the traces that Mooncake published.

    {"block": 256, "graph": {"coder": {"after": ["planner"], "needs": "all"}}}
    {"t": 0.5, "job": "a", "agent": "planner", "turn": 0, "blocks": ["9f", "c2"], "new_tokens": 17, "out_tokens": 64, "last": true}

The first line is not needed: blocks have 256 tokens, and no agent is known to follow another. In place of blocks a line may have
token ids: "tokens" of the prompt, and "out" of what was generated. A line with "hash_ids" is one of Mooncake's (arXiv 2407.00079):
"timestamp" in milliseconds, "input_length", "output_length", blocks of 512 tokens, the last not whole.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from experiments import files
from experiments.row_checks import number, positive, text, whole
from experiments.serving.prefix_cache.step_graph import Step, StepGraph
from experiments.serving.prefix_cache.trace import Request, Trace, chain
from kvjax.checks import brief
from models.numbers import one_line

_FIELDS = tuple(field.name for field in fields(Request))
_MOONCAKE = 512


def read(path: str | Path) -> Trace:
    """The trace of a file.

    Raises:
        OSError: it cannot be read. ValueError: a line that is no request, named by its number, or requests that are no trace.
    """
    block, graph, requests, kinds = None, StepGraph({}), [], set()
    for at, line in enumerate(files.read(path).splitlines(), 1):
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError(f"expected an object, got {brief(found)}")
            if at == 1 and "job" not in found and "hash_ids" not in found:
                block, graph = _header(found)
                continue
            if block is None:
                block = _MOONCAKE if "hash_ids" in found else 256
            kinds.add("hash_ids" in found)
            if len(kinds) == 2:
                raise ValueError("requests with hash_ids and requests without in one file: their blocks are of two sizes")
            requests.append(_mooncake(found, len(requests), block) if "hash_ids" in found else _request(found, block))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} line {at} is not a request of a trace ({one_line(error)}): mend it or leave it out"
            ) from error
    return Trace(tuple(requests), block or 256, graph)


def write(trace: Trace, path: str | Path) -> None:
    """A file that `read` gives back as the same trace."""
    graph = {name: {"after": list(step.after), "needs": step.needs} for name, step in trace.graph.steps.items()}
    lines = [{"block": trace.block, "graph": graph}, *map(asdict, trace.requests)]
    files.write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _header(found: Mapping[str, Any]) -> tuple[int, StepGraph]:
    unknown = [name for name in found if name not in ("block", "graph")]
    graph = found.get("graph", {})
    if unknown or not isinstance(graph, dict):
        raise ValueError(f"expected block and graph, or the fields of a request; got {brief(found)}")
    if "block" in found:
        whole(found, "block")
        positive(found, "block")
    return found.get("block", 256), StepGraph({name: _step(name, step) for name, step in graph.items()})


def _step(name: str, step: Any) -> Step:
    if not isinstance(step, dict) or step.get("needs", "any") not in ("all", "any") or not _is_list(step.get("after", []), str):
        raise ValueError(f'graph: expected {{"after": [agents], "needs": "all" or "any"}} for {brief(name)}, got {brief(step)}')
    return Step(tuple(step.get("after", [])), step.get("needs", "any"))


def _request(found: Mapping[str, Any], block: int) -> Request:
    row = {"t": 0.0, "agent": "agent", "turn": 0, "tool": "", "tool_seconds": 0.0, "new_tokens": 0, "out_tokens": 0, **found}
    if "tokens" in row:
        twice = [name for name in ("blocks", "out_blocks", "new_tokens") if name in found]
        twice += ["out_tokens"] if {"out", "out_tokens"} <= found.keys() else []
        if twice:
            raise ValueError(f"{', '.join(twice)}: tokens and out say it already; leave one of them out")
        row |= _of_tokens(row, block)
    unknown = [name for name in row if name not in _FIELDS]
    if unknown:
        raise ValueError(f"unknown fields {', '.join(map(brief, unknown))}; it takes {', '.join(_FIELDS)}, tokens, out")
    text(row, "job"), text(row, "agent")
    for name in ("turn", "new_tokens", "out_tokens", *(["fixed"] if "fixed" in row else [])):
        whole(row, name)
    number(row, "t"), number(row, "tool_seconds")
    for name in ("blocks", "out_blocks"):
        if not _is_list(row.setdefault(name, []), int | str):
            raise ValueError(f"{name}: expected a list of hashes, got {brief(row[name])}")
        row[name] = tuple(row[name])
    if not isinstance(row["tool"], str | None) or not isinstance(row.get("last", False), bool):
        raise ValueError(f"expected a tool's name and last true or false, got {brief(row['tool'])} and {brief(row.get('last'))}")
    return Request(**row | {"tool": row["tool"] or ""})


def _of_tokens(row: dict[str, Any], block: int) -> dict[str, Any]:
    """Blocks of token ids, which leave the row."""
    prompt, out = row.pop("tokens"), row.pop("out", [])
    if not _is_list(prompt, int) or not _is_list(out, int):
        raise ValueError(f"tokens, out: expected lists of token ids, got {brief(prompt)} and {brief(out)}")
    names, whole_blocks = chain([*prompt, *out], block), len(prompt) // block
    counts = {"new_tokens": len(prompt) % block, "out_tokens": len(out) or row["out_tokens"]}
    return {"blocks": list(names[:whole_blocks]), "out_blocks": list(names[whole_blocks:])} | counts


def _mooncake(found: Mapping[str, Any], place: int, block: int) -> Request:
    for name in ("timestamp", "input_length", "output_length"):
        whole(found, name)
    ids, tokens = found["hash_ids"], found["input_length"]
    if not _is_list(ids, int | str) or len(ids) < tokens // block:
        raise ValueError(f"hash_ids: expected a hash for each {block} of {tokens} tokens, got {brief(ids)}")
    blocks = tuple(ids[: tokens // block])
    return Request(
        found["timestamp"] / 1000, f"request{place}", "agent", 0, blocks, tokens % block, found["output_length"], last=True
    )


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(x, kind) and not isinstance(x, bool) for x in value)
