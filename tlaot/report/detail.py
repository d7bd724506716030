"""One workload in full: what ships and against what, its plots, what failed, every candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..spelling import counted, spell_bytes
from .evidence import Try, Work
from .pieces import Cell, Plots, number_cell, ratio_cell, spell_count, spell_percent, spell_time, text, value_cell
from .plots import landscape, over_sizes, spell_config, spell_shape, varying
from .roofline import Place

__all__ = ["show_detail"]


def show_detail(work: Work, at: Place, number: int, plots: Plots) -> str:
    time = "" if work.ms is None else f" — {spell_time(work.ms)}"
    summary = f"<strong>{text(work.kernel)}</strong> {text(spell_shape(work.shape))} <span class=faint>{text(work.target)}</span>{time}"
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
    ships = f"Ships <code>{text(spell_config(work.config))}</code>"
    count = len({spell_config(bucket.config) for bucket in work.buckets}) or sum(
        "ships" in one.roles for one in work.tries
    )
    if count > 1:
        yield f"Ships {count} variants, each for a range of sizes. Figures without a size are of the largest sizes declared."
        ships = f"There <code>{text(spell_config(work.config))}</code>"
    if work.ms is not None:
        ships += f": {spell_time(work.ms)}" + (f", spread {work.spread:.1%}" if work.spread is not None else "")
    against = [
        f"{name} {spell_time(other)} ({other / work.ms:.2f}x)"
        for name, other in (("default", work.default_ms), ("reference", work.reference_ms))
        if other and work.ms
    ]
    yield "; ".join([ships, *against]) + "."
    if work.tuned_as is not None:
        yield f"A stand-in: it was not measured, and has the config that won for <code>{text(work.tuned_as)}</code>."
    if work.doubts:
        yield f'<span class="bad">Times not to be trusted: {text("; ".join(work.doubts))}.</span>'
    if work.notes:
        yield f"Note: {text('; '.join(work.notes))}."
    if work.checked is False:
        yield '<span class="bad">Results were not checked (check = false).</span>'
    if work.signature:
        yield f"Signature: <code>{text(work.signature)}</code>"
    if work.ms and (at.bytes or at.flops):
        yield text("; ".join(_position(at)) + ".")
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
        yield f"{at.bandwidth / 1e9:,.4g} GB/s" + (
            f", {spell_percent(at.of_bandwidth)} of the memory's" if at.of_bandwidth is not None else ""
        )
    if at.flops:
        yield f"{spell_count(at.flops)}FLOPs"
    if at.rate:
        yield f"{at.rate / 1e12:,.4g} TFLOP/s" + (
            f", {spell_percent(at.of_rate)} of the peak" if at.of_rate is not None else ""
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
        f'<li><span class="tag bad">{text(stage)}</span> {count}x: {text(reason)}</li>'
        for (stage, reason), count in counts.most_common()
    )
    return f'<h3>{counted(sum(counts.values()), "config")} failed</h3><ul class="plain">{items}</ul>'


def _ranges(work: Work) -> str:
    if not work.buckets:
        return ""
    items = "".join(
        f"<li>{text(', '.join(f'{name} {first} to {last or chr(8734)}' for name, (first, last) in sorted(bucket.sizes.items())))}: "
        f"<code>{text(spell_config(bucket.config))}</code>"
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
    rows = [[value_cell(one.config.get(name)) for name in names] + _outcome(one, best) for one in ordered]
    # Nothing happened to any of them: no column for it.
    if not any(row[-1].shown for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    numeric = [all(row[i].kind == "n" for row in rows) for i in range(len(titles))]
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
