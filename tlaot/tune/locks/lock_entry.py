"""An entry of the lock as JSON, and back, with every field looked at: a lock is edited, merged and sent around."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import SpecError, did_you_mean
from ...target import read_target
from ..measuring.timing import Timing
from .lock import Entry, Part, Sized, Tried

__all__ = ["ENTRY_FIELDS", "entry_from_json", "entry_to_json", "round_timing"]

# In the order of the file. What an entry is of comes first, so that the lines around a difference say where it is.
ENTRY_FIELDS = (
    "kernel", "target", "shape", "tuned_as", "spec", "sources", "device", "tools", "checked", "trusted", "notes",
    "reference", "winner", "ships", "code", "parts", "candidates", "sizes", "digest",
)  # fmt: skip
_NEEDED = ("kernel", "target", "shape", "spec", "sources", "tools", "ships", "code", "digest")
_TUNED = ("device", "checked", "trusted", "notes", "reference", "winner", "candidates")
_TIMING = ("latency", "spread", "samples", "backend", "low")

_REMEDY = "Take the file back from version control, or remove it and run: tlaot tune."


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """The entry's fields, without the digest."""
    body: dict[str, Any] = {
        "kernel": entry.kernel,
        "target": entry.target,
        "shape": dict(entry.shape),
        "spec": dict(entry.spec),
        "sources": dict(entry.sources),
        "tools": dict(entry.tools),
        "ships": dict(entry.ships),
        "code": dict(entry.code),
    }
    if entry.parts:
        body["parts"] = [{"config": dict(part.config), "code": dict(part.code)} for part in entry.parts]
    if entry.tuned_as is not None:
        return {**body, "tuned_as": entry.tuned_as}
    if entry.sizes:
        body["sizes"] = [_sized_to_json(sized) for sized in entry.sizes]
    return {
        **body,
        "device": dict(entry.device),
        "checked": entry.checked,
        "trusted": entry.trusted,
        "notes": list(entry.notes),
        "reference": None if entry.reference is None else _timing_to_json(entry.reference),
        "winner": dict(entry.winner),
        "candidates": [_tried_to_json(tried) for tried in entry.candidates],
    }


def entry_from_json(body: Any, where: str) -> Entry:
    """Read an entry; its digest is not compared.

    Raises:
        SpecError: A field is missing, unknown or malformed, or the winner is none of the candidates.
    """
    if not isinstance(body, dict):
        raise SpecError(where, f"an entry is not a table, got {_short(body)}", _REMEDY)
    read = _Fields(body, where)
    where = read.where = f"{where} {_title(body)}"
    read.refuse_unknown(ENTRY_FIELDS)
    needed = _NEEDED if "tuned_as" in body else (*_NEEDED, *_TUNED)
    read.require(needed)
    if "tuned_as" in body:
        read.refuse_unknown((*_NEEDED, "parts", "tuned_as"))
    entry = Entry(
        kernel=read.text("kernel"),
        target=str(read_target(read.text("target"), f"{where} target")),
        shape=read.table("shape"),
        spec=read.table("spec"),
        sources=read.texts("sources"),
        tools=read.texts("tools"),
        ships=read.table("ships"),
        code=read.texts("code"),
        parts=tuple(read.list_of("parts", _part)) if "parts" in body else (),
    )
    if "tuned_as" in body:
        stand_in = str(read_target(read.text("tuned_as"), f"{where} tuned_as"))
        return _with(entry, tuned_as=stand_in)
    return _check(_with(entry, **_tuned_fields(read)), where)


def round_timing(timing: Timing) -> Timing:
    """A time with the digits that mean something, so that a lock's lines are short."""
    low = None if timing.low is None else _round(timing.low)
    return Timing(_round(timing.latency), round(timing.spread, 4), timing.samples, timing.backend, low)


def _tuned_fields(read: _Fields) -> dict[str, Any]:
    reference = read.body["reference"]
    return {
        "device": read.table("device"),
        "checked": read.flag("checked"),
        "trusted": read.flag("trusted"),
        "notes": tuple(read.list_of("notes", lambda item, at: _typed(item, str, "a string", at))),
        "reference": None if reference is None else _timing(reference, f"{read.where} reference"),
        "winner": read.table("winner"),
        "candidates": tuple(read.list_of("candidates", _tried)),
        "sizes": tuple(read.list_of("sizes", _sized)) if "sizes" in read.body else (),
    }


def _check(entry: Entry, where: str) -> Entry:
    seen: set[str] = set()
    for tried in entry.candidates:
        key = repr(sorted(tried.config.items(), key=lambda item: item[0]))
        if key in seen:
            raise SpecError(where, f"the config {dict(tried.config)} is listed twice", _REMEDY)
        seen.add(key)
    for name, config in (("winner", entry.winner), ("ships", entry.ships)):
        chosen = entry.tried(config)
        if chosen is None or chosen.timing is None:
            what = "is none of the candidates" if chosen is None else "has no time"
            raise SpecError(f"{where} {name}", f"{dict(config)} {what}", _REMEDY)
    for sized in entry.sizes:
        at = f"{where} at {dict(sized.sizes)}"
        wrong = [index for index in (*sized.times, *sized.failed, sized.winner) if not index < len(entry.candidates)]
        if wrong:
            raise SpecError(at, f"names the config #{wrong[0]} of {len(entry.candidates)}", _REMEDY)
        if sized.winner not in sized.times:
            raise SpecError(at, "the winner has no time", _REMEDY)
        if sized.sizes.keys() != entry.sizes[0].sizes.keys():
            raise SpecError(at, "has not the dimensions of the others", _REMEDY)
    return entry


def _with(entry: Entry, **fields: Any) -> Entry:
    from dataclasses import replace

    return replace(entry, **fields)


def _tried_to_json(tried: Tried) -> dict[str, Any]:
    body: dict[str, Any] = {"config": dict(tried.config)}
    if tried.binary:
        body["binary"] = tried.binary
    if tried.timing is not None:
        body.update(_timing_to_json(tried.timing))
    elif tried.failed is not None:
        body["failed"] = dict(zip(("stage", "reason"), tried.failed, strict=True))
    else:
        body["skipped"] = tried.skipped or ""
    return body


def _sized_to_json(sized: Sized) -> dict[str, Any]:
    """What was found at one size, on a line of its own; times are lists, since there are many of them."""
    body: dict[str, Any] = {
        "at": dict(sized.sizes),
        "winner": sized.winner,
        "times": {str(index): _timing_to_list(timing) for index, timing in sorted(sized.times.items())},
    }
    if sized.failed:
        body["failed"] = {str(index): list(failed) for index, failed in sorted(sized.failed.items())}
    if sized.reference is not None:
        body["reference"] = _timing_to_list(sized.reference)
    if not sized.trusted or sized.notes:
        body |= {"trusted": sized.trusted, "notes": list(sized.notes)}
    return body


def _timing_to_list(timing: Timing) -> list[Any]:
    found = [getattr(timing, name) for name in _TIMING]
    return found if found[-1] is not None else found[:-1]


def _sized(body: Any, where: str) -> Sized:
    if not isinstance(body, dict):
        raise SpecError(where, f"is not a table, got {_short(body)}", _REMEDY)
    read = _Fields(body, where)
    read.refuse_unknown(("at", "winner", "times", "failed", "reference", "trusted", "notes"))
    read.require(("at", "winner", "times"))
    at = read.table("at")
    for name, size in at.items():
        _count(size, f"{where} at {name}", 1)
    failed = {
        _index(key, f"{where} failed"): _failure(value, f"{where} failed {key}")
        for key, value in (read.table("failed") if "failed" in body else {}).items()
    }
    times = {
        _index(key, f"{where} times"): _timing_of_list(value, f"{where} times {key}")
        for key, value in read.table("times").items()
    }
    reference = _timing_of_list(body["reference"], f"{where} reference") if "reference" in body else None
    trusted = read.flag("trusted") if "trusted" in body else True
    notes = read.list_of("notes", lambda item, at: _typed(item, str, "a string", at)) if "notes" in body else ()
    return Sized(at, _count(body["winner"], f"{where} winner", 0), times, failed, reference, trusted, tuple(notes))


def _part(body: Any, where: str) -> Part:
    if not isinstance(body, dict):
        raise SpecError(where, f"is not a table, got {_short(body)}", _REMEDY)
    read = _Fields(body, where)
    read.refuse_unknown(("config", "code"))
    read.require(("config", "code"))
    return Part(read.table("config"), read.texts("code"))


def _timing_of_list(body: Any, where: str) -> Timing:
    fields = _typed(body, list, "a list", where)
    return _timing(dict(zip(_TIMING, fields, strict=False)), where)


def _failure(body: Any, where: str) -> tuple[str, str]:
    fields = _typed(body, list, "a list", where)
    if len(fields) != 2:
        raise SpecError(where, f"is not a stage and a reason, got {_short(body)}", _REMEDY)
    return str(_typed(fields[0], str, "a string", where)), str(_typed(fields[1], str, "a string", where))


def _index(key: str, where: str) -> int:
    if not key.isdecimal():
        raise SpecError(where, f"is not the position of a config, got {key!r}", _REMEDY)
    return int(key)


def _count(value: Any, where: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise SpecError(where, f"is not a whole number of {least} or more, got {_short(value)}", _REMEDY)
    return value


def _timing_to_json(timing: Timing) -> dict[str, Any]:
    body = {name: getattr(timing, name) for name in _TIMING}
    return {name: value for name, value in body.items() if value is not None}


def _tried(body: Any, where: str) -> Tried:
    if not isinstance(body, dict):
        raise SpecError(where, f"is not a table, got {_short(body)}", _REMEDY)
    read = _Fields(body, where)
    read.require(("config",))
    config = read.table("config")
    binary = read.text("binary") if "binary" in body else ""
    rest = {name: value for name, value in body.items() if name not in ("config", "binary")}
    if "failed" in rest:
        failed = _Fields(read.table("failed"), f"{where} failed")
        failed.refuse_unknown(("stage", "reason"))
        failed.require(("stage", "reason"))
        read.refuse_unknown(("config", "binary", "failed"))
        return Tried(config, failed=(failed.text("stage"), failed.text("reason")), binary=binary)
    if "skipped" in rest:
        read.refuse_unknown(("config", "binary", "skipped"))
        return Tried(config, skipped=read.text("skipped"), binary=binary)
    return Tried(config, timing=_timing(rest, where), binary=binary)


def _timing(body: Any, where: str) -> Timing:
    if not isinstance(body, dict):
        raise SpecError(where, f"is not a table, got {_short(body)}", _REMEDY)
    read = _Fields(body, where)
    read.refuse_unknown(_TIMING)
    read.require(_TIMING[:-1])
    samples = body["samples"]
    if type(samples) is not int or samples < 1:
        raise SpecError(f"{where} samples", f"is not a whole number above zero, got {_short(samples)}", _REMEDY)
    low = read.number("low") if "low" in body else None
    latency = read.number("latency")
    if latency == 0:
        raise SpecError(f"{where} latency", "is not a time above zero, got 0", _REMEDY)
    return Timing(latency, read.number("spread"), samples, read.text("backend"), low)


class _Fields:
    """The fields of one JSON object, read with a message that says where."""

    def __init__(self, body: Mapping[str, Any], where: str) -> None:
        self.body = body
        self.where = where

    def refuse_unknown(self, known: Sequence[str]) -> None:
        for name in self.body:
            if name not in known:
                hint = did_you_mean(name, known)
                raise SpecError(self.where, f"has an unknown field {name!r}{hint}", f"Known: {', '.join(known)}.")

    def require(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self.body]
        if missing:
            raise SpecError(self.where, f"lacks {', '.join(missing)}", _REMEDY)

    def text(self, name: str) -> str:
        return str(_typed(self.body[name], str, "a string", f"{self.where} {name}"))

    def flag(self, name: str) -> bool:
        return bool(_typed(self.body[name], bool, "true or false", f"{self.where} {name}"))

    def table(self, name: str) -> dict[str, Any]:
        return dict(_typed(self.body[name], dict, "a table", f"{self.where} {name}"))

    def texts(self, name: str) -> dict[str, str]:
        table = self.table(name)
        for key, value in table.items():
            _typed(value, str, "a string", f"{self.where} {name} {key}")
        return table

    def number(self, name: str) -> float:
        value = self.body[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 <= value < math.inf):
            raise SpecError(f"{self.where} {name}", f"is not a number of zero or more, got {_short(value)}", _REMEDY)
        return float(value)

    def list_of(self, name: str, item: Callable[[Any, str], Any]) -> list[Any]:
        items = _typed(self.body[name], list, "a list", f"{self.where} {name}")
        return [item(value, f"{self.where} {name} #{index}") for index, value in enumerate(items)]


def _typed(value: Any, kind: type, name: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise SpecError(where, f"is not {name}, got {_short(value)}", _REMEDY)
    return value


def _title(body: Mapping[str, Any]) -> str:
    shape = body.get("shape")
    items = shape.items() if isinstance(shape, dict) else ()
    return f"{body.get('kernel')} [{body.get('target')}] ({', '.join(f'{key}={value!r}' for key, value in items)})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def _round(value: float) -> float:
    return float(f"{value:.6g}")
