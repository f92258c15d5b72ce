"""The charts of `kvjax show`: slots by layer and KV head, and what is kept along the prompt."""

from collections.abc import Sequence

from experiments.kept.held import Held
from experiments.pages import Json
from experiments.pages.charts import CONFIG

#: A policy's colour in the curve and behind the tokens it kept: of Okabe and Ito's, those furthest apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
#: Shades of the pictures of `kvjax report` too: even in lightness, and read alike by all common kinds of colour vision.
SHADES = "cividis"


def table_of(index: int) -> str:
    """What a policy's heads are called within the page."""
    return f"p{index}"


def row_of(index: int, layer: int, head: int) -> str:
    """What a head's row is called within the page."""
    return f"{table_of(index)}-{layer}-{head}"


def rows(found: Sequence[Held]) -> dict[str, Json]:
    """Every head of every policy, by its row."""
    return {
        row_of(i, layer, head): {
            "table": table_of(i), "unit": "share", "name": held.name, "layer": layer, "head": head, "slots": int(slots),
            "tokens": held.mask.shape[2], "share": float(slots) / held.mask.shape[2], "href": f"#{row_of(i, layer, head)}",
        }
        for i, held in enumerate(found)
        for layer, of_layer in enumerate(held.mask.sum(-1))
        for head, slots in enumerate(of_layer)
    }  # fmt: skip


def heat(layers: int, heads: int, most: float) -> Json:
    """The share kept of each head, layers from left to right; rows are those of `rows`, a click leads to the table's.

    Args:
        layers, heads: of the model, so that the grid stays when rows are filtered.   most: the share of the brightest shade.
    """
    plain = {"labelAngle": 0, "labelOverlap": True, "ticks": False, "domain": False, "grid": False}
    across, down = ({"domain": list(range(count)), "paddingInner": 0.08} for count in (layers, heads))
    x = {"field": "layer", "type": "ordinal", "title": "layer", "scale": across, "axis": plain}
    y = {"field": "head", "type": "ordinal", "title": "KV head", "scale": down, "axis": plain}
    legend = {"orient": "bottom", "title": "share kept", "format": ".0%", "gradientLength": 160, "gradientThickness": 8}
    shade = {"field": "share", "type": "quantitative", "scale": {"scheme": SHADES, "domain": [0, most]}, "legend": legend}
    return {
        "width": "container",
        "height": heads * (32 if heads <= 4 else 20 if heads <= 8 else 12),
        "data": {"name": "rows"},
        "mark": "rect",
        "encoding": {"x": x, "y": y, "color": shade, "href": {"field": "href"}, "tooltip": [
            {"field": "name", "title": "policy"}, {"field": "layer", "title": "layer"}, {"field": "head", "title": "KV head"},
            {"field": "share", "title": "share kept", "format": ".1%"}, {"field": "slots", "title": "slots"},
            {"field": "tokens", "title": "prompt tokens"},
        ]},
        "config": CONFIG,
    }  # fmt: skip


def along(names: Sequence[str], tokens: int) -> Json:
    """The share of the heads shown that keep each stretch of the prompt, a line a policy; pointing at one reads all of them.

    Rows come from the page (`templates/show.js`): `name`, `table`, `at` and `end` (positions), `where`, `words`, `share`.
    """
    x = {"field": "at", "type": "quantitative", "title": "position in the prompt",
         "scale": {"domain": [0, tokens], "nice": False}, "axis": {"grid": False}}  # fmt: skip
    y = {"field": "share", "type": "quantitative", "title": "heads that keep it",
         "scale": {"domain": [0, 1]}, "axis": {"format": ".0%"}}  # fmt: skip
    legend = {"orient": "top", "title": None, "labelLimit": 400} if len(names) > 1 else None
    colour = {"field": "name", "type": "nominal", "scale": {"domain": list(names), "range": list(COLOURS)}, "legend": legend}
    near = {"type": "point", "fields": ["at"], "on": "pointerover", "clear": "pointerout"}
    said = [{"field": "where", "type": "nominal", "title": "position"}, {"field": "words", "type": "nominal", "title": "text"}]
    said += [{"field": table_of(i), "type": "quantitative", "title": name, "format": ".1%"} for i, name in enumerate(names)]
    return {
        "width": "container",
        "height": 220,
        "data": {"name": "rows"},
        "encoding": {"x": x},
        "layer": [
            {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.3}, "encoding": {"y": y, "color": colour}},
            {"transform": [{"pivot": "table", "value": "share", "groupby": ["at", "end", "where", "words"]}],
             "params": [{"name": "near", "select": near}],
             "mark": {"type": "rect", "color": "#888"},
             "encoding": {"x2": {"field": "end"}, "tooltip": said,
                          "opacity": {"condition": {"param": "near", "empty": False, "value": 0.6}, "value": 0}}},
        ],
        "config": CONFIG,
    }  # fmt: skip
