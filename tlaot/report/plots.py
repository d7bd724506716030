"""The values of the page's plots, and what each fills in of its kind.

A page has hundreds of plots of a few kinds. So the kinds' specifications (``kinds.py``) stand in it once, and a plot is a kind, its values
and what differs; the page puts the two together when the plot comes into view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..spelling import spell_bytes
from .evidence import Try, Work
from .kinds import ROLES
from .roofline import DEVICES, Place

__all__ = [
    "Plot",
    "landscape",
    "over_sizes",
    "roofline",
    "sizes",
    "spell_config",
    "spell_regret",
    "spell_shape",
    "unit_of",
    "varying",
]

# Above this, configs have no room for names beside the axis; a table beside the plot has them.
_MOST_NAMED = 48

# So many configs can be told apart over sizes, even where they neither ship nor win.
_FEW = 6

Plot = dict[str, Any]


def unit_of(times: Sequence[float]) -> tuple[str, float]:
    """The unit in which times in ms are read best, and what they are to be multiplied with."""
    least = min(times, default=1.0)
    return ("us", 1e3) if least < 1 else ("ms", 1.0) if least < 1e4 else ("s", 1e-3)


def varying(tries: Sequence[Try]) -> list[str]:
    """The names in which configs differ, in the order of the first."""
    names = dict.fromkeys(name for one in tries for name in one.config)
    return [name for name in names if len({repr(one.config.get(name)) for one in tries}) > 1]


def spell_config(config: Mapping[str, Any], names: Sequence[str] | None = None) -> str:
    """``block_M=64, threads=128``; of some names only the values, ``64 · 128``."""
    if names is not None:
        return " · ".join(str(config.get(name, "-")) for name in names) or "(the factory's own)"
    return ", ".join(f"{name}={value}" for name, value in config.items()) or "(the factory's own)"


def spell_shape(shape: Mapping[str, Any]) -> str:
    """``M=64, N=128``; of a size that the code leaves open ``any M``. Text is without quotes, since nobody parses the page."""
    parts = [f"any {name}" if value == name else f"{name}={value}" for name, value in sorted(shape.items())]
    return ", ".join(parts) or "(one shape)"


def spell_regret(regret: float) -> str:
    """What a range gives away at most, by the time of what serves it over the fastest's: ``2.0%``."""
    return f"{max(regret - 1, 0.0):.1%}"


def _role(one: Try) -> str:
    return next((role for role in ROLES if role in one.roles), "other")


def landscape(work: Work) -> Plot | None:
    """Every candidate's time, the fastest on top, each with its interquartile range, and the reference's."""
    timed = sorted((one for one in work.tries if one.ms is not None), key=lambda one: one.ms or 0.0)
    if not timed:
        return None
    unit, factor = unit_of([one.ms for one in timed if one.ms])
    names = varying(work.tries)
    named = len(timed) <= _MOST_NAMED
    values: list[dict[str, Any]] = []
    for rank, one in enumerate(timed, 1):
        time, spread = (one.ms or 0.0) * factor, one.spread or 0.0
        values.append(
            {
                "config": spell_config(one.config, names),
                "rank": rank,
                "label": spell_config(one.config),
                "time": time,
                # The record has the range's width: it is drawn around the median.
                "low": time * (1 - spread / 2),
                "high": time * (1 + spread / 2),
                "spread": f"{spread:.1%}",
                "role": _role(one),
                "area": ROLES[_role(one)][2],
            }
        )
    slowest = max(one.ms or 0.0 for one in timed) * factor
    reference = []
    # One that is far away would squeeze what is compared into a corner; the text says it.
    if work.reference_ms and work.reference_ms * factor <= 1.5 * slowest:
        reference = [{"time": work.reference_ms * factor, "label": "reference"}]
    title = f"time, {unit.replace('us', 'µs')}"
    return {
        "kind": "landscape-reference" if reference else "landscape",
        "values": values,
        "height": max(16 * len(timed), 60) if named else 420,
        "fill": {
            "@y": "config" if named else "rank",
            "@ytype": "nominal" if named else "quantitative",
            "@names": " · ".join(names) if named else "rank",
            "@axis": {"labelLimit": 220, "titleLimit": 420, "titlePadding": 10} if named else {"tickMinStep": 1},
            "@title": title,
            "@reference": reference,
            "@roles": (roles := [role for role in ROLES if any(value["role"] == role for value in values)]),
            "@colours": [ROLES[role][0] for role in roles],
            "@shapes": [ROLES[role][1] for role in roles],
        },
        "alt": f"Times of {len(timed)} configs of {work.kernel} for {spell_shape(work.shape)}, {unit}; the table below has them.",
    }


def over_sizes(work: Work) -> Plot | None:
    """Time over size of a dynamic workload: the configs that ship or win somewhere, the reference, and the ranges served."""
    if not work.sizes:
        return None
    dim, largest = _axis(work)
    shown = [one for one in work.sizes if all(one.sizes[name] == size for name, size in largest.items())]
    names = varying(work.tries)
    kept = {index for index, one in enumerate(work.tries) if "ships" in one.roles} | {one.fastest for one in shown}
    if len(work.tries) <= _FEW:
        kept = set(range(len(work.tries)))
    unit, factor = unit_of([time for one in shown for time in one.times.values()])
    values = [
        {
            "size": one.sizes[dim],
            "time": time * factor,
            "label": spell_config(work.tries[index].config, names),
            "kind": "config",
        }
        for one in shown
        for index, time in one.times.items()
        if index in kept
    ]
    values += [
        {"size": one.sizes[dim], "time": one.reference * factor, "label": "reference", "kind": "reference"}
        for one in shown
        if one.reference
    ]
    first, last = min(one.sizes[dim] for one in shown), max(one.sizes[dim] for one in shown)
    buckets = [
        {
            "first": max(bucket.sizes[dim][0], 1),
            # The ranges meet: the next one begins one above the end of this one.
            "last": min((bucket.sizes[dim][1] or last) + 1, last),
            "label": spell_config(bucket.config, names),
            "range": f"{bucket.sizes[dim][0]} to {bucket.sizes[dim][1] or 'all above'}",
            "regret": "not known" if bucket.regret is None else spell_regret(bucket.regret),
        }
        for bucket in work.buckets
        if dim in bucket.sizes
        and bucket.sizes[dim][0] <= last
        and all(_holds(bucket.sizes.get(name), size) for name, size in largest.items())
    ]
    at = "".join(f", {name}={size}" for name, size in largest.items())
    return {
        "kind": "over-sizes-ranges" if buckets else "over-sizes",
        "values": values,
        "fill": {
            "@buckets": buckets,
            "@names": " · ".join(names),
            "@size": f"{dim}{at}",
            "@title": f"time, {unit.replace('us', 'µs')}",
        },
        "alt": f"Time of {work.kernel} over {dim} from {first} to {last}, of {len(kept)} configs.",
    }


def _axis(work: Work) -> tuple[str, dict[str, int]]:
    """The open dimension with the most sizes, and of the others the largest size of each."""
    dims = list(work.sizes[0].sizes)
    dim = max(dims, key=lambda name: len({one.sizes[name] for one in work.sizes}))
    return dim, {name: max(one.sizes[name] for one in work.sizes) for name in dims if name != dim}


def _holds(ends: tuple[int, int | None] | None, size: int) -> bool:
    return ends is None or (ends[0] <= size and (ends[1] is None or size <= ends[1]))


def roofline(works: Sequence[tuple[Work, Place]]) -> Iterator[tuple[str, Plot]]:
    """A plot a device: its roofs, and the workloads of which bytes and FLOPs are known."""
    by_device: dict[str, list[tuple[Work, Place]]] = {}
    for work, at in works:
        if at.intensity and at.rate and work.device.get("name") in DEVICES:
            by_device.setdefault(str(work.device["name"]), []).append((work, at))
    for name, found in by_device.items():
        peak = DEVICES[name]
        widths = dict.fromkeys(at.width for _, at in found if at.width in peak.flops)
        roofs = [(width, peak.flops[width] / 1e12) for width in widths]
        slope = peak.bandwidth / 1e12
        most = max((rate for _, rate in roofs), default=max(peak.flops.values()) / 1e12)
        low = min(*(at.intensity or 1.0 for _, at in found), most / slope / 4) / 2
        high = max(*(at.intensity or 1.0 for _, at in found), most / slope) * 4
        roof = [{"roof": "memory", "intensity": x, "rate": x * slope} for x in (low, most / slope)]
        roof += [{"roof": width, "intensity": x, "rate": rate} for width, rate in roofs for x in (rate / slope, high)]
        label = {"16": "16-bit", "8": "8-bit", "32": "TF32"}
        names = [
            {"roof": f"{label[width]} tensor cores, {rate:.4g} TFLOP/s", "intensity": high, "rate": rate}
            for width, rate in roofs
        ]
        middle = (low * (most / slope)) ** 0.5
        aside = [{"roof": f"memory, {slope:.3g} TB/s", "intensity": middle, "rate": middle * slope}]
        values = []
        for work, at in found:
            intensity, rate = at.intensity or 1.0, (at.rate or 0.0) / 1e12
            allowed = min(intensity * slope, peak.flops.get(at.width, peak.bandwidth * high) / 1e12)
            values.append(
                {
                    "kernel": work.kernel,
                    "label": f"{work.kernel} {spell_shape(work.shape)} [{work.target}]",
                    "intensity": intensity,
                    "rate": rate,
                    "bandwidth": (at.bandwidth or 0.0) / 1e9,
                    "share": rate / allowed,
                }
            )
        yield (
            name,
            {
                "kind": "roofline",
                "values": values,
                "fill": {"@roof": roof, "@names": names, "@slope": aside},
                "alt": f"Roofline of {name}: {len(found)} workloads; the table above has their figures.",
            },
        )


def sizes(works: Sequence[Work]) -> Plot | None:
    """What ships, by kernel and target."""
    totals: dict[tuple[str, str], list[int]] = {}
    for work in works:
        if work.size is not None:
            totals.setdefault((work.kernel, work.target), []).append(work.size)
    if not totals:
        return None
    values = [
        {
            "kernel": kernel,
            "target": target,
            "kib": round(sum(found) / 1024, 2),
            "size": spell_bytes(sum(found)),
            "variants": len(found),
        }
        for (kernel, target), found in sorted(totals.items())
    ]
    alt = f"Sizes of {len({value['kernel'] for value in values})} kernels by target."
    return {
        "kind": "sizes",
        "values": values,
        "height": 24 * len({value["kernel"] for value in values}),
        "fill": {},
        "alt": alt,
    }
