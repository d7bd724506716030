"""Pieces of the page: text, cells of tables, places of plots."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..spelling import counted
from .evidence import Work
from .plots import Plot, unit_of

__all__ = [
    "Cell", "Plots", "number_cell", "rate_cell", "ratio_cell", "show_tags", "spell_count", "spell_percent", "spell_time", "tags_of",
    "text", "time_cell", "value_cell",
]  # fmt: skip


def text(value: object) -> str:
    return html.escape(str(value))


@dataclass
class Plots:
    """The plots so far; each gets a place in the page."""

    made: list[Plot] = field(default_factory=list)

    def place(self, plot: Plot | None, caption: str) -> str:
        if plot is None:
            return ""
        self.made.append(plot)
        number = len(self.made) - 1
        label = text(plot["alt"])
        return (
            f'<figure><div class="plot" data-plot="{number}" role="img" aria-label="{label}"></div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Cell:
    """A cell: what is shown (HTML), what it is sorted by (a number; None: by its text), and its classes."""

    shown: str
    value: float | str | None = None
    kind: str = ""

    def html(self, tag: str = "td") -> str:
        value = "" if self.value is None else f' data-v="{self.value}"'
        kind = f' class="{self.kind}"' if self.kind else ""
        scope = ' scope="row"' if tag == "th" else ""
        return f"<{tag}{kind}{value}{scope}>{self.shown}</{tag}>"


def tags_of(work: Work) -> Iterator[tuple[str, str, str]]:
    """What there is to know of a workload before its figures are read: a word, its class, and the same as a sentence."""
    if work.tuned_as is not None:
        yield "stand-in", "", f"not measured: the config of {work.tuned_as}"
    if work.checked is False:
        yield "not checked", "bad", "results not checked"
    if work.doubts:
        yield "doubtful", "bad", "times not to be trusted"
    if work.buckets:
        ranges = counted(len(work.buckets), "range")
        yield ranges, "", f"dynamic, {ranges} of sizes"
    elif work.sizes:
        yield "dynamic", "", "for sizes that change from call to call"


def show_tags(work: Work) -> list[str]:
    return [
        f'<span class="tag {kind}" title="{text(sentence)}">{text(word)}</span>'
        for word, kind, sentence in tags_of(work)
    ]


def number_cell(value: float | None, shown: str, unknown: str = "") -> Cell:
    """A number that sorts; where it is not known the cell says so and sorts last."""
    return Cell(unknown, "", "n") if value is None else Cell(shown, value, "n")


def time_cell(ms: float | None, spread: float | None) -> Cell:
    under = "" if spread is None else f"<br><small>spread {spread:.1%}</small>"
    return number_cell(ms, "" if ms is None else spell_time(ms) + under, "not measured")


def spell_time(ms: float) -> str:
    """``13.9 µs``, ``2.60 ms``."""
    unit, factor = unit_of([ms])
    return f"{ms * factor:.4g} {unit.replace('us', 'µs')}"


def ratio_cell(other: float | None, own: float | None) -> Cell:
    return number_cell(other / own, f"{other / own:.2f}x") if other and own else number_cell(None, "")


def spell_count(number: float) -> str:
    """``2.147 G``, before a unit."""
    for prefix, power in (("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if number >= 10**power:
            return f"{number / 10**power:.4g} {prefix}"
    return f"{number:,.6g} "


def spell_percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.001 else "under 0.1%"


def rate_cell(work: Work, rate: float | None, share: float | None, unit: str) -> Cell:
    """Operations or bytes a second, and the share of what the device has on a line of its own: side by side they make wide columns."""
    if rate is None:
        return number_cell(None, "", "unknown" if work.ms else "")
    of = "" if share is None else f"<br><small>{spell_percent(share)}</small>"
    return number_cell(rate, f"{spell_count(rate)}{unit}{of}")


def value_cell(value: Any) -> Cell:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Cell(text(value), value, "n")
    return Cell("-", "") if value is None else Cell(text(value))
