"""Charts of a page, as Vega-Lite specifications that the page fills with the rows it shows; the library is inside the page."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup

from experiments.pages import Json, embedded

#: Okabe and Ito's colours, then greys, in the order of a chart's kinds.
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#B8860B", "#A0522D", "#6A51A3", "#777777")
_TEXT = "currentColor"
#: What a point says: fields of its row, in words.
TIPS = [
    {"field": field, "title": title, "type": "nominal"}
    for field, title in (
        ("name", "method"), ("kind", "kind"), ("task", "task"), ("says", "score"), ("difference", "− full cache"),
        ("mb", "device MB"), ("share", "of full"), ("ms", "ms/token"),
    )
]  # fmt: skip


@cache
def library() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script (0.9 MB), which sets `window.vegaEmbed`.

    Raises:
        ImportError: the package that carries them is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise ImportError("charts of a page come from vl-convert-python: pip install -e '.[pages]'") from error
    return Markup(vl_convert.javascript_bundle().replace("</script", "<\\/script"))


@dataclass(frozen=True)
class Charts:
    """What a page's charts need: rows and specifications as JSON, and the library."""

    data: Markup
    library: Markup


def charts(rows: Json, specifications: Mapping[str, Json], *, page: Json = None) -> Charts:
    """The charts of a page.

    Args:
        rows: by the tables' `data-row`, a list or an object; with `unit` and, where a page has several tables, `table`.
        specifications: unit -> the chart's name, which of a `front` is its cost -> what Vega-Lite draws.
        page: what else the page's own scripts read.

    Raises:
        ImportError: the extra `pages` is not installed.
    """
    return Charts(embedded({"rows": rows, "charts": specifications, "page": page}), library())


def front(cost: str, title: str, *, kinds: list[str], score: str, percent: bool) -> Json:
    """Score against a cost: a point a row with its interval, and a line over the rows that none beats in both.

    Rows are objects of the data set "rows" with `name`, `kind`, `score`, `low`, `high`, `worth` (a score that is better when
    higher), the field `cost`, `href`, where a click leads, and what a point says when it is pointed at (`TIPS`).

    Args:
        cost: the field on the horizontal axis, drawn on a log scale.   title: of that axis.
        kinds: all kinds, so that colours stay when rows are filtered.
        score: title of the vertical axis.   percent: scores from 0 to 100, better when higher; else nats, drawn downwards.
    """
    x = {"field": cost, "type": "quantitative", "title": title, "scale": {"type": "log", "nice": False, "padding": 12}}
    domain = {"domain": [0, 100], "padding": 8} if percent else {"zero": False, "reverse": True}
    y = {"field": "score", "type": "quantitative", "title": score, "scale": domain}
    colour = {"field": "kind", "type": "nominal", "scale": {"domain": kinds, "range": list(COLOURS)}, "legend": None}
    return {
        "width": "container",
        "height": 320,
        "data": {"name": "rows"},
        "encoding": {"x": x, "y": y},
        "layer": [
            {"mark": {"type": "rule", "opacity": 0.25}, "encoding": {
                "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}},
            *_line(cost),
            {"mark": {"type": "point", "filled": True, "size": 55, "opacity": 0.85}, "encoding": {
                "color": colour, "tooltip": TIPS, "href": {"field": "href"}}},
        ],
        "config": CONFIG,
    }  # fmt: skip


#: Colours are those of the text around a chart, light or dark.
CONFIG = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {"labelColor": _TEXT, "titleColor": _TEXT, "domainColor": _TEXT, "tickColor": _TEXT, "gridColor": _TEXT,
             "gridOpacity": 0.12, "titleFontWeight": "normal"},
    "legend": {"labelColor": _TEXT, "titleColor": _TEXT, "titleFontWeight": "normal"},
    "line": {"color": _TEXT}, "point": {"color": _TEXT}, "text": {"color": _TEXT},
}  # fmt: skip


def _line(cost: str) -> list[Json]:
    """Layers of the Pareto front: steps between rows, a ring around each and its name."""
    sort = [{"field": field, "order": way} for field, way in ((cost, "ascending"), ("worth", "descending"), ("name", "ascending"))]
    best = {"window": [{"op": "max", "field": "worth", "as": "best"}], "frame": [None, 0], "ignorePeers": True, "sort": sort}
    before = {"window": [{"op": "lag", "field": "best", "param": 1, "as": "before"}], "sort": sort}
    kept = [best, before, {"filter": "datum.before === null || datum.worth > datum.before"}]
    name = {"mark": {"type": "text", "align": "left", "dx": 6, "dy": 9, "fontSize": 10}, "encoding": {"text": {"field": "name"}}}
    return [
        {"transform": kept, "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.2, "strokeDash": [4, 3]}},
        {"transform": kept, "mark": {"type": "point", "size": 130, "description": "front"}},
        {"transform": [*_ranges(cost), *kept, *_apart(cost)], **name},
    ]


#: A name takes about these shares of a chart: its width on a phone, its height.
_WIDE, _HIGH = 0.35, 0.05


def _ranges(cost: str) -> list[Json]:
    """Adds to each row what the rows' costs and worths span: the chart's axes."""
    ends = [{"op": op, "field": field, "as": f"{op}_{field}"} for field in (cost, "worth") for op in ("min", "max")]
    return [{"joinaggregate": ends}]


def _apart(cost: str) -> list[Json]:
    """Of rows of the front, in its order, those whose name would not lie on that of the row before."""
    sort = [{"field": cost, "order": "ascending"}]
    former = [{"op": "lag", "field": field, "param": 1, "as": f"former_{field}"} for field in (cost, "worth")]
    across = f"log(datum.{cost} / datum.former_{cost}) > {_WIDE} * log(datum.max_{cost} / datum.min_{cost})"
    up = f"datum.worth - datum.former_worth > {_HIGH} * (datum.max_worth - datum.min_worth)"
    return [{"window": former, "sort": sort}, {"filter": f"datum.former_worth === null || {across} || {up}"}]
