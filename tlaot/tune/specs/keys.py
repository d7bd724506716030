"""Every key that a ``tltune.toml`` may have, with what it takes and means.

The reader refuses what is not in these tables, and ``docs/reference/spec.md`` is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .spec import BACKENDS, EXECUTORS, FRONTEND_TARGETS, ON_MISALIGNED, OUTSIDES, SEARCHES, SPLITS
from .supply import SUPPLY_TYPES

__all__ = ["BUDGET", "HEAD", "KERNEL", "PROFILE", "SUPPLY", "TABLES", "TARGET", "Key", "names_of"]


@dataclass(frozen=True)
class Key:
    """One key of a table.

    Attributes:
        name: As documents write it, with hyphens.
        takes: Its type, in words.
        default: What holds without it, as it would be written, or in words; "required" where there is none.
        meaning: What it says.
        values: All that it may be, where that is a short list.
    """

    name: str
    takes: str
    default: str
    meaning: str
    values: tuple[str, ...] = ()


def names_of(keys: Sequence[Key]) -> tuple[str, ...]:
    """The names with underscores, as the reader folds them."""
    return tuple(key.name.replace("-", "_") for key in keys)


_CALLABLE = '"module:function"'

HEAD = (
    Key("package", "string", "required", "import name of the package that embeds the kernels"),
    Key(
        "targets",
        "target, or list of them",
        "none",
        "targets of every kernel that has none of its own; each takes those that its frontend can build",
    ),
    Key(
        "when-available",
        "list of targets",
        "[]",
        "targets that are skipped, with a line in the log, where this machine lacks a tool or a device for them; any other that cannot "
        "be built fails the build",
    ),
    Key("ptx", "bool", "false", "default of the kernels' own `ptx`"),
    Key("max-slowdown", "number, at least 1", "none", "default of the kernels' own `max-slowdown`"),
    Key(
        "size-budget",
        'bytes, or a string such as `"2 MiB"`',
        "none",
        "the build fails, with a table of what takes the space, where the kernels add more than this to the wheel",
    ),
    Key("min-glibc", 'string, `"2.17"`', "none", "the build fails where the kernels need a newer glibc"),
    Key(
        "split",
        "string",
        "none",
        "`arch`: the kernels of each CUDA architecture in a companion wheel of their own",
        SPLITS,
    ),
    Key(
        "executor",
        "string",
        '"local"',
        "where candidates are compiled and measured: `local` by processes of this host, on all GPUs of one model;"
        " `ray` by the nodes of a Ray cluster. It is for `tlaot tune` and `lock=update`; another build is local unless it is told otherwise",
        EXECUTORS,
    ),
)

TARGET = (
    Key(
        "tuned-as",
        "target",
        "none",
        "this target is not tuned: each workload takes the config that won for that one, or the next fastest that this one can run",
    ),
    Key(
        "sm-count and other device properties",
        "number",
        "the built-in table's",
        "what a factory hears when it asks for the device; a build needs no GPU for that",
    ),
)

KERNEL = (
    Key(
        "name", "string", "required", "users call `tlaot.load(package).<name>(...)`; several entries may have one name"
    ),
    Key("frontend", "string", "required", "the language of the factory", tuple(FRONTEND_TARGETS)),
    Key("factory", _CALLABLE, "required", "called with a shape's and a config's items as keywords; returns the kernel"),
    Key("targets", "target, or list of them", "those of [tlaot] that the frontend can build", "what it is built for"),
    Key(
        "shapes",
        f"table, list of tables, or {_CALLABLE}",
        "required, unless `dynamic` says all",
        "workloads: arguments of the factory; a value that is a list is multiplied out",
    ),
    Key(
        "configs",
        f"list of tables, or {_CALLABLE}",
        "[{}]",
        "candidates; the first is the default that the winner is compared with",
    ),
    Key("space", "table of lists", "none", "in place of `configs`: lists to be multiplied out"),
    Key(
        "dynamic",
        "table of ascending lists",
        "none",
        "dimensions that the code leaves open, each with the sizes to tune at",
    ),
    Key(
        "outside",
        "string",
        '"error"',
        "of a size outside of those of `dynamic`: refuse it, or serve it like the nearest that was measured",
        OUTSIDES,
    ),
    Key("probes", "whole number of 0 to 256", "16", "sizes that may be measured between each two of `dynamic`"),
    Key(
        "reference",
        _CALLABLE,
        "required, unless `check = false` or there is a `manual-check`",
        "called with the inputs in order, and with the factory's arguments as options of their names (`*, causal`); returns the right outputs",
    ),
    Key("check", "bool", "true", "false: nobody compares what the kernel computes"),
    Key(
        "measure",
        "bool",
        "true",
        "false, with `check = false`: its one config is compiled as it is, neither compared nor timed, which needs no device",
    ),
    Key(
        "manual-check",
        _CALLABLE,
        "none",
        "called with the outputs and the reference's; raises, or returns False, where they are wrong",
    ),
    Key("rtol", "number", "by dtype", "relative tolerance: |x - ref| <= atol + rtol * |ref|"),
    Key("atol", "number", "by dtype", "absolute tolerance"),
    Key(
        "max-mismatched-ratio",
        "number of 0 to 1",
        "0.01",
        "share of elements that may miss the tolerance, none by more than 10 times",
    ),
    Key("deterministic", "bool", "true", "the winner must give the same bits twice; false for sums by atomics"),
    Key("inputs", _CALLABLE, "random ones", "makes the input tensors of a shape"),
    Key("supply", "table", "see below", "how random inputs are made"),
    Key(
        "out-idx", "integer, or list of them", "the frontend's own", "positions of outputs that a caller may leave out"
    ),
    Key("pass-configs", "table", "{}", "options of the frontend's compiler passes, for all candidates"),
    Key("search", "string", '"auto"', "how candidates are chosen", SEARCHES),
    Key("budget", "table", "no limit", "where the search ends at the latest, for this entry and one target"),
    Key("profile", "table", "see below", "how candidates are timed"),
    Key(
        "ptx",
        "bool",
        "[tlaot] ptx",
        "ship PTX too, of the lowest cuda target without a suffix, for devices that no machine code in the package runs on",
    ),
    Key(
        "max-slowdown",
        "number, at least 1",
        "[tlaot] max-slowdown; 1.05 of a dynamic kernel",
        "a variant may take this many times the fastest's time where fewer variants ship for it",
    ),
    Key(
        "on-misaligned",
        "string",
        '"error"',
        "what a call does with an address that the code does not take: refuse it, or run on an aligned copy",
        ON_MISALIGNED,
    ),
    Key("flops", 'string, `"2*M*N*K"`', "none", "what it computes, of the shape's items, for `tlaot report`"),
)

PROFILE = (
    Key("warmup", "ms", "25", "time spent calling the kernel before the first sample"),
    Key("rep", "ms", "100", "time over which samples are taken"),
    Key("timeout", "s", "60", "a candidate that is measured for longer is killed"),
    Key("compile-timeout", "s", "300", "a candidate that is compiled for longer is killed"),
    Key("decide-budget", "s", "2", "measuring spent on telling the fastest of a workload apart"),
    Key("quiet-timeout", "s", "30", "time to wait, before that, for what else runs on the device to end"),
    Key("backend", "string", '"auto"', "the clock: `wall` on the CPU, the others on a GPU", BACKENDS),
)

BUDGET = (
    Key("trials", "whole number, at least 1", "no limit", "candidates, over all shapes (one each at least)"),
    Key("seconds", "number", "no limit", "time, over all shapes"),
)

SUPPLY = (
    Key("type", "string", '"auto"', "the distribution; `auto` goes by dtype", SUPPLY_TYPES),
    Key("seed", "integer", "0", "other tensors, the same on every machine"),
    Key("ranges", "table of [low, high]", "{}", "half-open, by parameter name: for tensors that index others"),
)

# Heading in a file, and its keys, in the order of the reference.
TABLES = (
    ("[tlaot]", HEAD),
    ('[target."cuda:sm_90a"]', TARGET),
    ("[[kernel]]", KERNEL),
    ("profile", PROFILE),
    ("budget", BUDGET),
    ("supply", SUPPLY),
)
