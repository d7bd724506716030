"""A proposal put into the text of a spec."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..draft.found import Argument
from ..draft.found import Factory as Source
from ..draft.spec_text import draft_entries, draft_spec, name_kernels, suggest_values
from ..errors import SpecError
from .proposal import Addition
from .recording import Factory
from .spec_edit import add_shapes, append_entry, repeat_entry, set_dynamic

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["as_called", "put_in", "start_spec"]


def as_called(source: Source) -> Source:
    """A factory without tunables of which nobody knows values to try (``num_persistent_blocks``): what callers give is the workload's."""
    arguments = tuple(
        replace(one, tunable=one.tunable and (one.has_default or bool(suggest_values(one)))) for one in source.arguments
    )
    return replace(source, arguments=arguments)


def start_spec(additions: Iterable[Addition], sources: Mapping[str, Source], package: str, target: str | None) -> str:
    """A first spec with the kernels of a proposal, as ``tlaot init`` drafts them; their shapes are still to be put in.

    Args:
        additions: The proposal's, against no spec.
        sources: As of :func:`put_in`.
        package: The package that embeds the kernels.
        target: Target of this machine's GPU; None where there is none.
    """
    factories = dict.fromkeys(addition.factory for addition in additions)
    return draft_spec(package, [_source_of(factory, sources) for factory in factories], target)


def put_in(
    text: str, additions: Iterable[Addition], sources: Mapping[str, Source], file: str
) -> tuple[str, list[SpecError]]:
    """The text with additions, each made whole or not at all.

    Args:
        text: The spec's.
        additions: What is to be added.
        sources: The project's factories by ``"module:function"``.
        file: The spec's name, for messages.

    Returns:
        The text, and what could not be put in.
    """
    errors: list[SpecError] = []
    for addition in additions:
        try:
            text = _put_in(text, addition, sources, file)
        except SpecError as error:
            errors.append(error)
    return text, errors


def _put_in(text: str, addition: Addition, sources: Mapping[str, Source], file: str) -> str:
    kernel = addition.entry
    if kernel is None:
        kernels = tomllib.loads(text).get("kernel", [])
        kernel = len(kernels)
        same = [i for i, entry in enumerate(kernels) if entry.get("factory") == addition.factory.spelled]
        if same:
            text = repeat_entry(text, same[0], file)
        else:
            text = append_entry(text, _draft(addition.factory, sources, {str(entry.get("name")) for entry in kernels}))
    if addition.shapes:
        text = add_shapes(text, kernel, addition.shapes, file)
    if addition.dynamic is not None:
        text = set_dynamic(text, kernel, addition.dynamic, file)
    return text


def _draft(factory: Factory, sources: Mapping[str, Source], taken: set[str]) -> str:
    """An entry as ``tlaot init`` writes it."""
    source = _source_of(factory, sources)
    known: Sequence[Source] = [*sources.values()] if factory.spelled in sources else [*sources.values(), source]
    name = name_kernels(known)[list(known).index(source)]
    entry = next(iter(draft_entries([source])))
    while name in taken:
        name = f"{factory.module.rpartition('.')[2].strip('_')}_{name}"
    return entry.replace(f'name = "{source.name.strip("_")}"', f'name = "{name}"', 1)


def _source_of(factory: Factory, sources: Mapping[str, Source]) -> Source:
    """What the sources say of a factory; where they do not show it, what the recording does."""
    found = sources.get(factory.spelled)
    # An argument to be filled in: what was recorded is.
    return found or Source(
        factory.module, factory.name, factory.line, factory.frontend, (Argument("_"),), decorated=True
    )
