"""One workload in full: what ships and against what, its plots, what failed, every candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..spelling import CANNOT_BE_TRUSTED, counted, spell_bytes
from .evidence import Try, Work
from .pieces import (
    Cell,
    Plots,
    number_cell,
    ratio_cell,
    show_tags,
    spell_count,
    spell_percent,
    spell_time,
    text,
    value_cell,
)
from .plots import landscape, over_sizes, spell_config, spell_regret, spell_shape, varying
from .roofline import Place

__all__ = ["show_detail"]

# So many values of a tunable are listed.
_MOST_VALUES = 8


def show_detail(work: Work, at: Place, number: int, plots: Plots) -> str:
    time = "" if work.ms is None else f" — {spell_time(work.ms)}"
    if work.ms and work.default_ms:
        time += f", {work.default_ms / work.ms:.2f}x the default's speed"
    summary = (
        f"<strong>{text(work.kernel)}</strong> {text(spell_shape(work.shape))} <span class=faint>{text(work.target)}</span>{time} "
        + " ".join(show_tags(work))
    )
    parts = [f"<p>{line}</p>" for line in _lines(work, at)]
    found = landscape(work)
    dashed = found is not None and bool(found["fill"]["@reference"])
    caption = f"Each config's median and interquartile range{_at_largest(work, ' at ')}, the fastest on top"
    if work.sizes:
        caption += "; what ships for other sizes is marked, too"
    caption += "; the dashed line is the reference." if dashed else "."
    parts.append(plots.place(found, caption))
    parts.append(
        plots.place(
            over_sizes(work),
            "Configs that ship or are fastest somewhere (all, where they are few), at the sizes that were measured; shaded, where that is known, "
            "the ranges that each variant serves.",
        )
    )
    parts += [_values(work), _failures(work), _ranges(work), _candidates(work)]
    return f'<details class="work" id="w{number}"><summary>{summary}</summary><div>{"".join(parts)}</div></details>'


def _lines(work: Work, at: Place) -> Iterator[str]:
    ships = f"Ships <code>{text(spell_config(work.config))}</code>"
    count = len({spell_config(bucket.config) for bucket in work.buckets}) or sum(
        "ships" in one.roles for one in work.tries
    )
    if count > 1:
        yield f"Ships {count} variants, each for a range of sizes. Where no size is named, figures are of the largest ones{_at_largest(work, ', ')}."
        ships = f"At these ships <code>{text(spell_config(work.config))}</code>"
    if work.ms is not None:
        ships += f": {spell_time(work.ms)}" + (f", spread {work.spread:.1%}" if work.spread is not None else "")
    against = [
        f"the {name} takes {spell_time(other)} ({other / work.ms:.2f}x)"
        for name, other in (("default", work.default_ms), ("reference", work.reference_ms))
        if other and work.ms
    ]
    yield "; ".join([ships, *against]) + "."
    if work.tuned_as is not None:
        yield f"A stand-in: it was not measured, and has the config that won for <code>{text(work.tuned_as)}</code>."
    if work.doubts:
        told = dict.fromkeys(doubt.removesuffix(CANNOT_BE_TRUSTED) for doubt in work.doubts)
        yield f'<span class="bad">Times not to be trusted: {text("; ".join(told))}.</span>'
    if work.notes:
        yield f"Note: {text('; '.join(work.notes))}."
    if work.checked is False:
        yield '<span class="bad">Results were not checked (check = false).</span>'
    if work.signature:
        yield f"Signature: <code>{text(work.signature)}</code>"
    if work.ms and (at.bytes or at.flops):
        yield text("; ".join(_position(at)) + ".")
        yield from (
            f'<span class="faint">Not known: {text(one[0].lower() + one[1:] if one.startswith(("Bytes", "Peak")) else one)}</span>'
            for one in at.unknown
        )
    device = ", ".join(
        f"{name.replace('_', ' ')} {value}" if name != "name" else str(value)
        for name, value in _name_first(work.device)
    )
    tools = ", ".join(f"{name} {version}" for name, version in sorted(work.tools.items()))
    if device or tools:
        yield f'<span class="faint">{text(". ".join(filter(None, [device and f"Measured on {device}", tools and f"Made by {tools}"])))}.</span>'


def _name_first(device: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(device.items(), key=lambda item: (item[0] != "name", item[0]))


def _position(at: Place) -> Iterator[str]:
    if at.bytes:
        yield f"Moves {spell_bytes(at.bytes)} at least"
    if at.bandwidth:
        yield f"{spell_count(at.bandwidth)}B/s" + (
            f", {spell_percent(at.of_bandwidth)} of the memory's peak" if at.of_bandwidth is not None else ""
        )
    if at.flops:
        yield f"{spell_count(at.flops)}FLOPs"
    if at.rate:
        yield f"{spell_count(at.rate)}FLOP/s" + (
            f", {spell_percent(at.of_rate)} of the peak" if at.of_rate is not None else ""
        )
    if at.intensity:
        yield f"{at.intensity:.4g} FLOPs a byte"


def _failures(work: Work) -> str:
    """What failed, by stage and reason, the most frequent first."""
    counts = Counter((one.stage, one.reason) for one in work.failed)
    if not counts:
        return ""
    items = "".join(
        f'<li><span class="tag bad">{text(stage)}</span> {count}x: {text(reason)}</li>'
        for (stage, reason), count in counts.most_common()
    )
    return f'<h3>{counted(sum(counts.values()), "config")} failed</h3><ul class="plain">{items}</ul>'


def _ranges(work: Work) -> str:
    if not work.buckets:
        return ""
    known = any(bucket.regret is not None for bucket in work.buckets)
    order = list(dict.fromkeys(name for one in work.tries for name in one.config))
    lines = []
    for bucket in sorted(work.buckets, key=lambda one: [first for _, (first, _) in sorted(one.sizes.items())]):
        config = dict(sorted(bucket.config.items(), key=lambda item: order.index(item[0]) if item[0] in order else -1))
        cells = [
            Cell(text(", ".join(_range(name, *ends) for name, ends in sorted(bucket.sizes.items()))), kind="short"),
            Cell(f"<code>{text(spell_config(config))}</code>"),
        ]
        if known:
            cells.append(Cell("" if bucket.regret is None else spell_regret(bucket.regret), kind="n"))
        lines.append("".join(cell.html() for cell in cells))
    titles = ["Sizes", "What serves them", *(["Slower than the fastest by at most"] if known else [])]
    return "<h3>Ranges of sizes</h3>" + _plain_table("Ranges of sizes", titles, lines)


def _range(name: str, first: int, last: int | None) -> str:
    return (
        f"{name} = {first}" if first == last else f"{name} {first} " + ("and above" if last is None else f"to {last}")
    )


def _plain_table(name: str, titles: Sequence[str], lines: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll fits" tabindex="0" role="region" aria-label="{name}"><table class="plain"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _values(work: Work) -> str:
    """For each tunable the fastest config with each of its values: which of them the time hangs on, the most weighty first."""
    timed = [one for one in work.tries if one.ms]
    best = min((one.ms for one in timed if one.ms), default=0.0)
    found: list[tuple[float, str]] = []
    for name in varying(timed):
        fastest: dict[str, float] = {}
        for one in timed:
            value = "-" if one.config.get(name) is None else str(one.config[name])
            fastest[value] = min(fastest.get(value, one.ms or 0.0), one.ms or 0.0)
        ordered = sorted(fastest.items(), key=lambda item: item[1])
        told = [
            f"<strong>{text(value)}</strong>" if ms == best else f"{text(value)} <small>{ms / best - 1:+.1%}</small>"
            for value, ms in ordered[:_MOST_VALUES]
        ]
        more = [f"<small>and {len(ordered) - _MOST_VALUES} more</small>"] if len(ordered) > _MOST_VALUES else []
        cells = Cell(text(name), kind="short").html("th") + Cell(", ".join([*told, *more])).html()
        found.append((ordered[1][1] / best, cells))
    if len(found) < 2:
        return ""
    lines = [cells for _, cells in sorted(found, key=lambda item: -item[0])]
    return (
        f"<h3>What the time hangs on{_at_largest(work, ', at ')}</h3><p class=faint>Beside each value: how much slower than the fastest of all the best "
        "config with that value is. The tunable that matters most is on top.</p>"
        + _plain_table("Tunables", ["Tunable", "Values, the best first"], lines)
    )


def _at_largest(work: Work, before: str) -> str:
    """``at M=1024``: the sizes that figures of a dynamic workload are of."""
    return before + spell_shape(work.sizes[-1].sizes) if work.sizes else ""


def _candidates(work: Work) -> str:
    if not work.tries:
        return ""
    names = varying(work.tries)
    same = {name: value for name, value in work.tries[0].config.items() if name not in names}
    best = min((one.ms for one in work.tries if one.ms), default=None)
    titles = ["#", *names, "Time", "Spread", "vs fastest", "Role", "What happened"]
    ordered = sorted(work.tries, key=lambda one: (one.ms is None, one.ms or 0.0))
    rows = [
        [Cell(str(rank), rank, "n"), *(value_cell(one.config.get(name)) for name in names), *_outcome(one, best)]
        for rank, one in enumerate(ordered, 1)
    ]
    # Nothing happened to any of them: no column for it.
    if not any(row[-1].shown for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    # A tunable that some configs leave out is a number all the same.
    numeric = [all(row[i].kind == "n" or row[i].value == "" for row in rows) for i in range(len(titles))]
    rows = [
        [replace(cell, kind="n") if right else cell for cell, right in zip(row, numeric, strict=True)] for row in rows
    ]
    head = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{text(title)}</th>'
        for title, right in zip(titles, numeric, strict=True)
    )
    lines = "".join(f"<tr>{''.join(cell.html() for cell in row)}</tr>" for row in rows)
    told = f"<p class=faint>The same in all: <code>{text(spell_config(same))}</code></p>" if same else ""
    return (
        f"<h3>{counted(len(work.tries), 'candidate')}</h3>{told}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Candidates of {text(work.kernel)} {text(spell_shape(work.shape))}">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _outcome(one: Try, best: float | None) -> list[Cell]:
    tags = " ".join(f'<span class="tag {role}">{role}</span>' for role in one.roles)
    happened = "" if not one.stage else f'<span class="tag bad">{text(one.stage)}</span> {text(one.reason)}'
    return [
        number_cell(one.ms, "" if one.ms is None else spell_time(one.ms)),
        number_cell(one.spread, f"{one.spread or 0:.1%}"),
        ratio_cell(one.ms, best),
        Cell(tags, kind="short"),
        Cell(happened),
    ]
