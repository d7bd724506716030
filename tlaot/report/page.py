"""The page: headings, tables and plots as one HTML file that asks nobody for anything."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from .. import __version__
from ..spelling import counted, spell_bytes
from .detail import show_detail
from .evidence import Source, Work
from .kinds import KINDS
from .pieces import Cell, Plots, number_cell, rate_cell, ratio_cell, show_tags, tags_of, text, time_cell
from .plots import roofline, sizes, spell_config, spell_shape
from .roofline import Place

__all__ = ["write_page"]


def write_page(title: str, sources: Sequence[Source], works: Sequence[tuple[Work, Place]], library: str) -> str:
    """The whole page.

    Args:
        title: What it is about.
        sources: Where the evidence came from.
        works: The workloads, and where each stands.
        library: The script that draws: Vega, Vega-Lite and Vega-Embed.
    """
    plots = Plots()
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
            f"<footer>Written by tlaot {text(__version__)}. This page loads nothing from anywhere.</footer>",
        ]
    )
    data = {"kinds": KINDS, "plots": plots.made}
    parts = {
        "TITLE": text(title),
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


def _header(title: str, sources: Sequence[Source]) -> str:
    told = ", ".join(
        f"<code>{text(source.label)}</code> ({counted(source.count, 'variant' if source.kind == 'package' else 'workload')})"
        for source in sources
    )
    return (
        f"<header><div><h1>{text(title)}</h1><p class=faint>From {told}</p></div>"
        '<button type="button" id="theme" aria-label="Change colours">Dark</button></header>'
    )


def _facts(works: Sequence[tuple[Work, Place]]) -> str:
    own = [work for work, _ in works]
    targets = {work.target for work in own}
    tries = [one for work in own for one in work.tries]
    failed = sum(len(work.failed) for work in own)
    facts = [
        ("Kernels", str(len({work.kernel for work in own})), ""),
        (
            "Workloads",
            str(len(own)),
            counted(len(targets), "target") if len(targets) > 1 else text(next(iter(targets), "")),
        ),
    ]
    if tries:
        facts.append(("Candidates", f"{len(tries):,}", f"{failed} failed" if failed else "none failed"))
    for name, times in (
        ("vs default", [(work.default_ms, work.ms) for work in own]),
        ("vs reference", [(work.reference_ms, work.ms) for work in own]),
    ):
        ratios = [math.log(other / mine) for other, mine in times if other and mine]
        if ratios:
            mean = math.exp(sum(ratios) / len(ratios))
            facts.append((name, f"{mean:.2f}x", f"geometric mean of {len(ratios)}" if len(ratios) > 1 else ""))
    known = [work.size for work in own if work.size is not None]
    if known:
        facts.append(("Ships", spell_bytes(sum(known)), ""))
    devices = dict.fromkeys(str(work.device["name"]) for work in own if work.device.get("name"))
    if devices:
        facts.append(
            ("Measured on", text(next(iter(devices))), f"and {len(devices) - 1} more" if len(devices) > 1 else "")
        )
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{value}{f'<small>{small}</small>' if small else ''}</dd></div>"
        for name, value, small in facts
    )
    return f'<dl class="facts">{cells}</dl>'


# --- The table of workloads


def _columns(work: Work, at: Place, number: int) -> dict[str, Cell]:
    return {
        "Kernel": Cell(f'<a href="#w{number}">{text(work.kernel)}</a>', kind="short"),
        "Target": Cell(text(work.target), kind="short"),
        "Shape": Cell(text(spell_shape(work.shape)), kind="shape"),
        "Time": time_cell(work.ms, work.spread),
        "vs default": ratio_cell(work.default_ms, work.ms),
        "vs reference": ratio_cell(work.reference_ms, work.ms),
        "Tried": number_cell(
            len(work.tries) or None,
            str(len(work.tries)) + (f'<br><small class="bad">{len(work.failed)} failed</small>' if work.failed else ""),
        ),
        "Bandwidth": rate_cell(work, at.bandwidth, at.of_bandwidth, "B/s"),
        "Rate": rate_cell(work, at.rate, at.of_rate, "FLOP/s"),
        "Size": number_cell(work.size, "" if work.size is None else spell_bytes(work.size)),
        "Ships": Cell(f"<code>{text(spell_config(work.config))}</code>", kind="config"),
        "Note": Cell(" ".join(show_tags(work)), kind="note"),
    }


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
    always = ("Kernel", "Shape", "Time", "Ships")
    many = len({work.target for work, _ in works}) > 1
    shown = [
        name
        for name in (rows[0] if rows else ())
        if name in always
        or (many if name == "Target" else any(row[name].shown not in ("", "unknown", "0") for row in rows))
    ]
    head = "".join(f'<th scope="col"{_head_class(name, rows)}>{name}</th>' for name in shown)
    lines = []
    for number, ((work, _), row) in enumerate(zip(works, rows, strict=True)):
        cells = "".join(row[name].html("th" if name == "Kernel" else "td") for name in shown)
        said = " ".join([work.kernel, work.target, spell_shape(work.shape), spell_config(work.config)])
        said = " ".join([said, *(part for word, _, sentence in tags_of(work) for part in (word, sentence))])
        lines.append(
            f'<tr data-details="w{number}" data-target="{text(work.target)}" data-state="{" ".join(_states(work))}" '
            f'data-text="{text(said.lower())}">{cells}</tr>'
        )
    targets = "".join(
        f'<option value="{text(target)}">{text(target)}</option>'
        for target in dict.fromkeys(work.target for work, _ in works)
    )
    found = dict.fromkeys(state for work, _ in works for state in _states(work))
    words = {
        "measured": "measured",
        "unmeasured": "not measured",
        "failed": "with failures",
        "doubtful": "doubtful",
        "dynamic": "dynamic",
    }
    states = "".join(f'<option value="{state}">{word}</option>' for state, word in words.items() if state in found)
    unknown = dict.fromkeys(sentence for _, at in works for sentence in at.unknown)
    notes = "".join(f"<li>{text(sentence)}</li>" for sentence in unknown)
    legend = (
        "<p class=faint>“vs default” is the time of the first config declared over that of what ships: above 1.00x, tuning was worth it. “vs reference” is "
        "the same of the reference, which is there to be right, not fast. Spread is the interquartile range over the median. Bandwidth counts each tensor "
        "of the signature once, a lower bound; percentages are of the peak that the device's vendor gives.</p>"
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


def _head_class(name: str, rows: Sequence[Mapping[str, Cell]]) -> str:
    return ' class="n"' if rows and rows[0][name].kind == "n" else ""


# --- The plots of all of them


def _rooflines(works: Sequence[tuple[Work, Place]], plots: Plots) -> str:
    figures = [
        plots.place(
            plot,
            f"{text(name)}: the roofs are its vendor's figures, dense. Bytes are those of the signature, each tensor once, so "
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


def _sizes(works: Sequence[Work], plots: Plots) -> str:
    figure = plots.place(
        sizes(works),
        "Bytes of each kernel's files as they are installed; a binary that two variants share counts once.",
    )
    return f'<section id="sizes"><h2>Size of what ships</h2>{figure}</section>' if figure else ""


# --- One workload


def _details(works: Sequence[tuple[Work, Place]], plots: Plots) -> str:
    blocks = "".join(show_detail(work, at, number, plots) for number, (work, at) in enumerate(works))
    return (
        '<section id="details"><h2>Each workload</h2><div class="controls">'
        f'<button type="button" id="all" aria-pressed="false">Open all</button></div>{blocks}</section>'
    )
