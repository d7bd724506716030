"""The kinds of plots, as specifications of Vega-Lite with places to fill: ``"@title"``.

A plot fills the places with what it brings (``plots.py``); colours are the page's, which knows whether it is dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["KINDS", "ROLES"]

# What is marked in a plot of candidates, and how: colours by the page's names, shapes, for those who see no colours, and how large.
ROLES = {
    "ships": ("@accent", "diamond", 190),
    "fastest": ("@good", "triangle-up", 110),
    "default": ("@warn", "square", 90),
    "other": ("@muted", "circle", 60),
}
_COLOURS = {"domain": "@roles", "range": "@colours"}
_SHAPES = {"domain": "@roles", "range": "@shapes"}

# As many ticks as have room for a label (the page knows), and no zeros that say nothing.
_FEW_TICKS = {"tickCount": "@ticks", "format": ",~r"}

_TIME = {"field": "time", "type": "quantitative"}
_TOOLTIP = [
    {"field": "label", "title": "config"},
    {"field": "time", "title": "median", "format": ".4~g"},
    {"field": "spread", "title": "interquartile range"},
    {"field": "role", "title": "is"},
]

_LANDSCAPE: dict[str, Any] = {
    "width": "container",
    "encoding": {"y": {"field": "@y", "type": "@ytype", "sort": None, "title": "@names", "axis": "@axis"}},
    "layer": [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.6},
            "encoding": {
                "x": {
                    "field": "low",
                    "type": "quantitative",
                    "title": "@title",
                    "axis": _FEW_TICKS,
                    "scale": {"zero": False, "nice": True},
                },
                "x2": {"field": "high"},
                "color": {"field": "role", "scale": _COLOURS, "legend": "@legend"},
            },
        },
        {
            "mark": {"type": "point", "filled": True, "opacity": 1},
            "encoding": {
                "x": {**_TIME, "title": "@title", "axis": _FEW_TICKS},
                "color": {"field": "role", "scale": _COLOURS, "legend": "@legend"},
                "shape": {"field": "role", "scale": _SHAPES, "legend": "@legend"},
                "size": {"field": "area", "type": "quantitative", "scale": None, "legend": None},
                "tooltip": _TOOLTIP,
            },
        },
    ],
}

_WITH_REFERENCE = {
    **_LANDSCAPE,
    "layer": [
        *_LANDSCAPE["layer"],
        {
            "data": {"values": "@reference"},
            "mark": {"type": "rule", "strokeDash": [5, 4], "color": "@text"},
            "encoding": {"x": {"field": "time", "type": "quantitative"}, "y": None},
        },
        {
            "data": {"values": "@reference"},
            # Above the frame: within it, it would lie on the points.
            "mark": {"type": "text", "align": "center", "dy": -4, "baseline": "bottom", "color": "@text"},
            "encoding": {"x": {"field": "time", "type": "quantitative"}, "y": {"value": 0}, "text": {"field": "label"}},
        },
    ],
}

_RANGED: dict[str, Any] = {
    "width": "container",
    "height": 320,
    "layer": [
        {
            "data": {"values": "@buckets"},
            "mark": {"type": "rect", "opacity": 0.13},
            "encoding": {
                "x": {"field": "first", "type": "quantitative"},
                "x2": {"field": "last"},
                "color": {"field": "label", "title": "@names", "legend": "@titled"},
                "tooltip": [
                    {"field": "label", "title": "serves"},
                    {"field": "range", "title": "sizes"},
                    {"field": "regret", "title": "slower than the fastest by at most"},
                ],
            },
        },
        {
            "mark": {"type": "line", "point": {"size": 50}, "strokeWidth": 2},
            "encoding": {
                "x": {
                    "field": "size",
                    "type": "quantitative",
                    "title": "@size",
                    "axis": {"gridOpacity": 0.35, "format": ",~r"},
                    "scale": {"type": "log", "base": 2, "nice": False},
                },
                "y": {
                    **_TIME,
                    "title": "@title",
                    "axis": {"gridOpacity": 0.35, "format": ",~r", "tickCount": 6},
                    "scale": {"type": "log", "nice": False, "padding": 14},
                },
                "color": {"field": "label", "title": "@names", "legend": "@titled"},
                "strokeDash": {
                    "field": "kind",
                    "legend": None,
                    "scale": {"domain": ["config", "reference"], "range": [[1, 0], [5, 4]]},
                },
                "tooltip": [
                    {"field": "label", "title": "config"},
                    {"field": "size", "title": "size"},
                    {"field": "time", "title": "median", "format": ".4~g"},
                ],
            },
        },
    ],
}

_OVER_SIZES = {**_RANGED, "layer": _RANGED["layer"][1:]}

_ROOFLINE = {
    "width": "container",
    "height": 340,
    "layer": [
        {
            "data": {"values": "@roof"},
            "mark": {"type": "line", "strokeWidth": 2, "color": "@muted"},
            "encoding": {
                "x": {"field": "intensity", "type": "quantitative", "scale": {"type": "log", "nice": False}},
                "y": {"field": "rate", "type": "quantitative", "scale": {"type": "log"}},
                "detail": {"field": "roof"},
            },
        },
        {
            "data": {"values": "@names"},
            "mark": {"type": "text", "align": "right", "dy": -8, "color": "@text"},
            "encoding": {
                "x": {"field": "intensity", "type": "quantitative"},
                "y": {"field": "rate", "type": "quantitative"},
                "text": {"field": "roof"},
            },
        },
        {
            "data": {"values": "@slope"},
            # Below the slope there is room to the right of it.
            "mark": {"type": "text", "align": "left", "dx": 10, "dy": 8, "color": "@text"},
            "encoding": {
                "x": {"field": "intensity", "type": "quantitative"},
                "y": {"field": "rate", "type": "quantitative"},
                "text": {"field": "roof"},
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {
                "x": {
                    "field": "intensity",
                    "type": "quantitative",
                    "title": "FLOPs a byte, at the most",
                    "axis": {"grid": False, "tickCount": 6},
                },
                "y": {"field": "rate", "type": "quantitative", "title": "TFLOP/s", "axis": {"grid": False}},
                "color": {"field": "kernel", "title": None, "legend": "@legend"},
                "shape": {"field": "kernel", "title": None, "legend": "@legend"},
                "tooltip": [
                    {"field": "label", "title": "workload"},
                    {"field": "rate", "title": "TFLOP/s", "format": ".4~g"},
                    {"field": "bandwidth", "title": "GB/s", "format": ".4~g"},
                    {"field": "share", "title": "of what the roof allows", "format": ".1%"},
                ],
            },
        },
    ],
}

_SIZES = {
    "width": "container",
    "mark": {"type": "bar", "cornerRadiusEnd": 2},
    "encoding": {
        "y": {"field": "kernel", "type": "nominal", "title": None, "sort": "-x", "axis": {"labelLimit": 160}},
        "x": {"field": "kib", "type": "quantitative", "title": "KiB", "stack": "zero", "axis": _FEW_TICKS},
        "color": {"field": "target", "title": None, "legend": "@legend"},
        "tooltip": [
            {"field": "kernel"},
            {"field": "target"},
            {"field": "variants"},
            {"field": "size"},
        ],
    },
}

KINDS: Mapping[str, Any] = {
    "landscape": _LANDSCAPE,
    "landscape-reference": _WITH_REFERENCE,
    "over-sizes": _OVER_SIZES,
    "over-sizes-ranges": _RANGED,
    "roofline": _ROOFLINE,
    "sizes": _SIZES,
}
