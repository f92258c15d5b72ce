"""What the pages share: style, tables that sort and filter, charts, all inside one file that needs no network."""

import json
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

#: What JSON has.
Json = Mapping[str, "Json"] | Sequence["Json"] | str | float | bool | None


def environment() -> Environment:
    """Jinja with the templates of `experiments/pages/templates`; what is filled in is escaped, a missing name is an error."""
    loader = PackageLoader("experiments.pages")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals["broken"] = Markup("_<wbr>")  # a name's underscores are where it may be broken
    return made


def embedded(payload: Json) -> Markup:
    """JSON that cannot close the script element it stands in."""
    return Markup(json.dumps(payload, allow_nan=False).replace("<", "\\u003c"))
