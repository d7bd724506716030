"""The page: headings, tables and plots as one HTML file that asks nobody for anything."""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from .. import __version__
from ..spelling import counted, spell_bytes
from .evidence import Source, Try, Work
from .plots import KINDS, Plot, landscape, over_sizes, roofline, sizes, spell_config, spell_shape, unit_of, varying
from .roofline import Place

__all__ = ["spell_time", "write_page"]

_ROLE_WORDS = {"ships": "ships", "fastest": "fastest", "default": "default"}


@dataclass
class _Plots:
    """The plots so far; each gets a place in the page."""

    made: list[Plot] = field(default_factory=list)

    def place(self, plot: Plot | None, caption: str) -> str:
        if plot is None:
            return ""
        self.made.append(plot)
        number = len(self.made) - 1
        label = _text(plot["alt"])
        return (
            f'<figure><div class="plot" data-plot="{number}" role="img" aria-label="{label}"></div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )


def write_page(title: str, sources: Sequence[Source], works: Sequence[tuple[Work, Place]], library: str) -> str:
    """The whole page.

    Args:
        title: What it is about.
        sources: Where the evidence came from.
        works: The workloads, and where each stands.
        library: The script that draws: Vega, Vega-Lite and Vega-Embed.
    """
    plots = _Plots()
    body = "\n".join(
        [
            _header(title, sources),
            "<main>",
            _facts(works),
            _workloads(works),
            _rooflines(works, plots),
            _sizes([work for work, _ in works], plots),
            _details(works, plots),
            "</main>",
            f"<footer>Written by tlaot {_text(__version__)}. This page loads nothing from anywhere.</footer>",
        ]
    )
    data = {"kinds": KINDS, "plots": plots.made}
    parts = {
        "TITLE": _text(title),
        "STYLE": _resource("page.css"),
        "BODY": body,
        # No tag can end the script that this is in.
        "DATA": json.dumps(data, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c"),
        "LIBRARY": library.replace("</script", "<\\/script"),
        "SCRIPT": _resource("page.js"),
    }
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], _resource("page.html"))


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").strip()


def _text(value: object) -> str:
    return html.escape(str(value))


def _header(title: str, sources: Sequence[Source]) -> str:
    told = ", ".join(f"<code>{_text(source.label)}</code> ({counted(source.count, 'variant')})" for source in sources)
    return (
        f"<header><div><h1>{_text(title)}</h1><p class=faint>From {told}</p></div>"
        '<button type="button" id="theme" aria-label="Change colours">Dark</button></header>'
    )


def _facts(works: Sequence[tuple[Work, Place]]) -> str:
    own = [work for work, _ in works]
    tries = [one for work in own for one in work.tries]
    failed = sum(len(work.failed) for work in own)
    facts = [
        ("Kernels", str(len({work.kernel for work in own})), ""),
        ("Workloads", str(len(own)), counted(len({work.target for work in own}), "target")),
    ]
    if tries:
        facts.append(("Candidates", f"{len(tries):,}", f"{failed} failed" if failed else "none failed"))
    for name, times in (
        ("Against the default", [(work.default_ms, work.ms) for work in own]),
        ("Against the reference", [(work.reference_ms, work.ms) for work in own]),
    ):
        ratios = [math.log(other / mine) for other, mine in times if other and mine]
        if ratios:
            mean = math.exp(sum(ratios) / len(ratios))
            facts.append((name, f"{mean:.2f}x", f"geometric mean of {counted(len(ratios), 'workload')}"))
    known = [work.size for work in own if work.size is not None]
    if known:
        facts.append(("Ships", spell_bytes(sum(known)), ""))
    devices = dict.fromkeys(str(work.device["name"]) for work in own if work.device.get("name"))
    if devices:
        facts.append(
            ("Measured on", _text(next(iter(devices))), f"and {len(devices) - 1} more" if len(devices) > 1 else "")
        )
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{value}{f'<small>{small}</small>' if small else ''}</dd></div>"
        for name, value, small in facts
    )
    return f'<dl class="facts">{cells}</dl>'


# --- The table of workloads


@dataclass(frozen=True)
class _Cell:
    """A cell: what is shown (HTML), what it is sorted by (a number; None: by its text), and its classes."""

    shown: str
    value: float | str | None = None
    kind: str = ""

    def html(self, tag: str = "td") -> str:
        value = "" if self.value is None else f' data-v="{self.value}"'
        kind = f' class="{self.kind}"' if self.kind else ""
        scope = ' scope="row"' if tag == "th" else ""
        return f"<{tag}{kind}{value}{scope}>{self.shown}</{tag}>"


def _number(value: float | None, shown: str, unknown: str = "") -> _Cell:
    """A number that sorts; where it is not known the cell says so and sorts last."""
    return _Cell(unknown, "", "n") if value is None else _Cell(shown, value, "n")


def _time(ms: float | None) -> _Cell:
    return _number(ms, "" if ms is None else spell_time(ms), "not measured")


def spell_time(ms: float) -> str:
    """``13.9 µs``, ``2.60 ms``."""
    unit, factor = unit_of([ms])
    return f"{ms * factor:.4g} {unit.replace('us', 'µs')}"


def _ratio(other: float | None, own: float | None) -> _Cell:
    return _number(other / own, f"{other / own:.2f}x") if other and own else _number(None, "")


def _count(number: float) -> str:
    """``2.147 G``, before a unit."""
    for prefix, power in (("P", 15), ("T", 12), ("G", 9), ("M", 6)):
        if number >= 10**power:
            return f"{number / 10**power:.4g} {prefix}"
    return f"{number:,.6g} "


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _share(work: Work, rate: float | None, share: float | None, scale: float, unit: str) -> _Cell:
    if rate is None:
        return _number(None, "", "unknown" if work.ms else "")
    return _number(rate, f"{rate / scale:,.4g} {unit}" + (f" ({_percent(share)})" if share is not None else ""))


def _columns(work: Work, at: Place, number: int) -> dict[str, _Cell]:
    return {
        "Kernel": _Cell(f'<a href="#w{number}">{_text(work.kernel)}</a>', kind="short"),
        "Target": _Cell(_text(work.target), kind="short"),
        "Shape": _Cell(_text(spell_shape(work.shape)), kind="shape"),
        "Time": _time(work.ms),
        "Spread": _number(work.spread, f"{work.spread or 0:.1%}"),
        "vs default": _ratio(work.default_ms, work.ms),
        "vs reference": _ratio(work.reference_ms, work.ms),
        "Tried": _number(len(work.tries) or None, str(len(work.tries))),
        "Failed": _number(len(work.failed) if work.tries else None, str(len(work.failed))),
        "Bandwidth": _share(work, at.bandwidth, at.of_bandwidth, 1e9, "GB/s"),
        "Rate": _share(work, at.rate, at.of_rate, 1e12, "TFLOP/s"),
        "Size": _number(work.size, "" if work.size is None else spell_bytes(work.size)),
        "Ships": _Cell(f"<code>{_text(spell_config(work.config))}</code>", kind="config"),
        "Note": _Cell(_text("; ".join(_notes(work))), kind="note"),
    }


def _notes(work: Work) -> Iterator[str]:
    if work.tuned_as is not None:
        yield f"stand-in: the config of {work.tuned_as}"
    if work.checked is False:
        yield "results not checked"
    if work.doubts:
        yield "times not to be trusted"
    if work.sizes or work.buckets:
        yield f"{counted(max(len(work.buckets), 1), 'range')} of sizes"


def _states(work: Work) -> Iterator[str]:
    yield "measured" if work.ms else "unmeasured"
    if work.failed:
        yield "failed"
    if work.doubts or work.checked is False:
        yield "doubtful"
    if work.sizes or work.buckets:
        yield "dynamic"


def _workloads(works: Sequence[tuple[Work, Place]]) -> str:
    rows = [_columns(work, at, number) for number, (work, at) in enumerate(works)]
    always = ("Kernel", "Target", "Shape", "Time", "Ships")
    shown = [
        name
        for name in (rows[0] if rows else ())
        if name in always or any(row[name].shown not in ("", "unknown", "0") for row in rows)
    ]
    head = "".join(f'<th scope="col"{_head_class(name, rows)}>{name}</th>' for name in shown)
    lines = []
    for number, ((work, _), row) in enumerate(zip(works, rows, strict=True)):
        cells = "".join(row[name].html("th" if name == "Kernel" else "td") for name in shown)
        said = " ".join([work.kernel, work.target, spell_shape(work.shape), spell_config(work.config), *_notes(work)])
        lines.append(
            f'<tr data-details="w{number}" data-target="{_text(work.target)}" data-state="{" ".join(_states(work))}" '
            f'data-text="{_text(said.lower())}">{cells}</tr>'
        )
    targets = "".join(
        f'<option value="{_text(target)}">{_text(target)}</option>'
        for target in dict.fromkeys(work.target for work, _ in works)
    )
    found = dict.fromkeys(state for work, _ in works for state in _states(work))
    words = {
        "measured": "measured here",
        "unmeasured": "not measured",
        "failed": "with failures",
        "doubtful": "doubtful",
        "dynamic": "dynamic",
    }
    states = "".join(f'<option value="{state}">{word}</option>' for state, word in words.items() if state in found)
    unknown = dict.fromkeys(sentence for _, at in works for sentence in at.unknown)
    notes = "".join(f"<li>{_text(sentence)}</li>" for sentence in unknown)
    legend = (
        "<p class=faint>“vs default” is how many times the time of what ships the first config declared takes; “vs reference” the "
        "same of the reference, which is there to be right, not fast. Spread is the interquartile range over the median. Bandwidth counts each tensor of the signature once, a "
        "lower bound; in brackets, the share of what the device's vendor gives.</p>"
    )
    return (
        '<section id="workloads"><h2>Workloads</h2><div class="controls">'
        '<label>Filter <input type="search" id="words" placeholder="matmul M=4096" autocomplete="off"></label>'
        f'<label>Target <select id="target"><option value="">all</option>{targets}</select></label>'
        f'<label>Show <select id="state"><option value="">all</option>{states}</select></label>'
        '<span id="shown" role="status"></span></div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of workloads">'
        f'<table class="sortable" id="table"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
        f"{legend}"
        + (f'<p class=faint>Not known:</p><ul class="plain faint">{notes}</ul>' if notes else "")
        + "</section>"
    )


def _head_class(name: str, rows: Sequence[Mapping[str, _Cell]]) -> str:
    return ' class="n"' if rows and rows[0][name].kind == "n" else ""


# --- The plots of all of them


def _rooflines(works: Sequence[tuple[Work, Place]], plots: _Plots) -> str:
    figures = [
        plots.place(
            plot,
            f"{_text(name)}: the roofs are its vendor's figures, dense. Bytes are those of the signature, each tensor once, so "
            "a kernel that reads something twice stands further right than it is.",
        )
        for name, plot in roofline(works)
    ]
    if not figures:
        return (
            '<section id="roofline"><h2>Roofline</h2><p class=faint>Of no workload are the bytes, the FLOPs, the time and the device\'s '
            "figures all known; the list above says what is missing.</p></section>"
        )
    return f'<section id="roofline"><h2>Roofline</h2>{"".join(figures)}</section>'


def _sizes(works: Sequence[Work], plots: _Plots) -> str:
    figure = plots.place(
        sizes(works),
        "Bytes of each kernel's files as they are installed; a binary that two variants share counts once.",
    )
    return f'<section id="sizes"><h2>Size of what ships</h2>{figure}</section>' if figure else ""


# --- One workload


def _details(works: Sequence[tuple[Work, Place]], plots: _Plots) -> str:
    blocks = "".join(_detail(work, at, number, plots) for number, (work, at) in enumerate(works))
    return (
        '<section id="details"><h2>Each workload</h2><div class="controls">'
        f'<button type="button" id="all" aria-pressed="false">Open all</button></div>{blocks}</section>'
    )


def _detail(work: Work, at: Place, number: int, plots: _Plots) -> str:
    time = "" if work.ms is None else f" — {spell_time(work.ms)}"
    summary = f"<strong>{_text(work.kernel)}</strong> {_text(spell_shape(work.shape))} <span class=faint>{_text(work.target)}</span>{time}"
    parts = [f"<p>{line}</p>" for line in _lines(work, at)]
    found = landscape(work)
    dashed = found is not None and bool(found["fill"]["@reference"])
    caption = "Each config's median and interquartile range, the fastest on top"
    caption += "; the dashed line is the reference." if dashed else "."
    parts.append(plots.place(found, caption))
    parts.append(
        plots.place(
            over_sizes(work),
            "Configs that ship or are fastest somewhere (all, where they are few), at the sizes that were measured; shaded, where that is known, "
            "the ranges that each variant serves.",
        )
    )
    parts += [_failures(work), _ranges(work), _candidates(work)]
    return f'<details class="work" id="w{number}"><summary>{summary}</summary><div>{"".join(parts)}</div></details>'


def _lines(work: Work, at: Place) -> Iterator[str]:
    ships = f"Ships <code>{_text(spell_config(work.config))}</code>"
    count = len({spell_config(bucket.config) for bucket in work.buckets}) or sum(
        "ships" in one.roles for one in work.tries
    )
    if count > 1:
        yield f"Ships {count} variants, each for a range of sizes. Figures without a size are of the largest sizes declared."
        ships = f"There <code>{_text(spell_config(work.config))}</code>"
    if work.ms is not None:
        ships += f": {spell_time(work.ms)}" + (f", spread {work.spread:.1%}" if work.spread is not None else "")
    against = [
        f"{name} {spell_time(other)} ({other / work.ms:.2f}x)"
        for name, other in (("default", work.default_ms), ("reference", work.reference_ms))
        if other and work.ms
    ]
    yield "; ".join([ships, *against]) + "."
    if work.tuned_as is not None:
        yield f"A stand-in: it was not measured, and has the config that won for <code>{_text(work.tuned_as)}</code>."
    if work.doubts:
        yield f'<span class="bad">Times not to be trusted: {_text("; ".join(work.doubts))}.</span>'
    if work.notes:
        yield f"Note: {_text('; '.join(work.notes))}."
    if work.checked is False:
        yield '<span class="bad">Results were not checked (check = false).</span>'
    if work.signature:
        yield f"Signature: <code>{_text(work.signature)}</code>"
    if work.ms and (at.bytes or at.flops):
        yield _text("; ".join(_position(at)) + ".")
    device = ", ".join(
        f"{name.replace('_', ' ')} {value}" if name != "name" else str(value)
        for name, value in _name_first(work.device)
    )
    tools = ", ".join(f"{name} {version}" for name, version in sorted(work.tools.items()))
    if device or tools:
        yield f'<span class="faint">{_text(". ".join(filter(None, [device and f"Measured on {device}", tools and f"Made by {tools}"])))}.</span>'


def _name_first(device: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(device.items(), key=lambda item: (item[0] != "name", item[0]))


def _position(at: Place) -> Iterator[str]:
    if at.bytes:
        yield f"Moves {spell_bytes(at.bytes)} at least"
    if at.bandwidth:
        yield f"{at.bandwidth / 1e9:,.4g} GB/s" + (
            f", {_percent(at.of_bandwidth)} of the memory's" if at.of_bandwidth is not None else ""
        )
    if at.flops:
        yield f"{_count(at.flops)}FLOPs"
    if at.rate:
        yield f"{at.rate / 1e12:,.4g} TFLOP/s" + (
            f", {_percent(at.of_rate)} of the peak" if at.of_rate is not None else ""
        )
    if at.intensity:
        yield f"{at.intensity:.4g} FLOPs a byte"
    yield from (sentence.rstrip(".") for sentence in at.unknown)


def _failures(work: Work) -> str:
    """What failed, by stage and reason, the most frequent first."""
    counts = Counter((one.stage, one.reason) for one in work.failed)
    if not counts:
        return ""
    items = "".join(
        f'<li><span class="tag bad">{_text(stage)}</span> {count}x: {_text(reason)}</li>'
        for (stage, reason), count in counts.most_common()
    )
    return f'<h3>{counted(sum(counts.values()), "config")} failed</h3><ul class="plain">{items}</ul>'


def _ranges(work: Work) -> str:
    if not work.buckets:
        return ""
    items = "".join(
        f"<li>{_text(', '.join(f'{name} {first} to {last or chr(8734)}' for name, (first, last) in sorted(bucket.sizes.items())))}: "
        f"<code>{_text(spell_config(bucket.config))}</code>"
        + (f", at worst {bucket.regret:.3f} times the best" if bucket.regret is not None else "")
        + "</li>"
        for bucket in work.buckets
    )
    return f'<h3>Ranges of sizes</h3><ul class="plain">{items}</ul>'


def _candidates(work: Work) -> str:
    if not work.tries:
        return ""
    names = varying(work.tries)
    same = {name: value for name, value in work.tries[0].config.items() if name not in names}
    best = min((one.ms for one in work.tries if one.ms), default=None)
    titles = [*names, "Time", "Spread", "vs fastest", "Is", "What happened"]
    ordered = sorted(work.tries, key=lambda one: (one.ms is None, one.ms or 0.0))
    rows = [[_value(one.config.get(name)) for name in names] + _outcome(one, best) for one in ordered]
    # Nothing happened to any of them: no column for it.
    if not any(row[-1].shown for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    numeric = [all(row[i].kind == "n" for row in rows) for i in range(len(titles))]
    head = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{_text(title)}</th>'
        for title, right in zip(titles, numeric, strict=True)
    )
    lines = "".join(f"<tr>{''.join(cell.html() for cell in row)}</tr>" for row in rows)
    told = f"<p class=faint>The same in all: <code>{_text(spell_config(same))}</code></p>" if same else ""
    return (
        f"<h3>{counted(len(work.tries), 'candidate')}</h3>{told}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Candidates of {_text(work.kernel)} {_text(spell_shape(work.shape))}">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _value(value: Any) -> _Cell:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _Cell(_text(value), value, "n")
    return _Cell("-" if value is None else _text(value))


def _outcome(one: Try, best: float | None) -> list[_Cell]:
    tags = " ".join(f'<span class="tag {role}">{_ROLE_WORDS[role]}</span>' for role in one.roles)
    happened = "" if not one.stage else f'<span class="tag bad">{_text(one.stage)}</span> {_text(one.reason)}'
    return [
        _number(one.ms, "" if one.ms is None else spell_time(one.ms)),
        _number(one.spread, f"{one.spread or 0:.1%}"),
        _ratio(one.ms, best),
        _Cell(tags, kind="short"),
        _Cell(happened),
    ]
