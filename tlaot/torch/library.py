"""Kernels into torch's dispatcher: one operator a kernel, once a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import CallError, LoadError, PackageError, did_you_mean
from ..manifest import Variant
from ..runtime import load as loading
from ..runtime.kernel import Kernel
from ..runtime.load import Kernels
from ..runtime.places import Folders
from .fake import make_fake
from .schema import Form, Operator, describe_operator

__all__ = ["Registration", "register"]


@dataclass(frozen=True)
class Registration:
    """What ``register`` made of a package.

    Attributes:
        namespace: The operators are ``torch.ops.<namespace>.<kernel>``.
        operators: Their overloads' schemas, by kernel.
        left_out: The kernels that are no operators, each with the reason.
    """

    namespace: str
    operators: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, str] = field(default_factory=dict)


# Operators live as long as the process: what was compiled or exported holds them.
_libraries: list[Any] = []
_registered: dict[str, tuple[str, tuple[Variant, ...]]] = {}
_registering = threading.RLock()


def register(
    package: str | Kernels,
    *,
    namespace: str | None = None,
    only: Iterable[str] | None = None,
    path: Folders | None = None,
) -> Registration:
    """Make a package's kernels operators of torch: ``torch.ops.<package>.<kernel>(a, b)``.

    They trace under ``torch.compile(fullgraph=True)`` and ``torch.export``. Each kernel has the overload ``default``, which
    allocates its outputs and returns them, and ``out``, which takes all the kernel's parameters in order; of two
    the call takes the one that fits the number of arguments. Arguments of the factory are keywords. Tensors that a kernel writes
    in place are declared so.

    Reads what ``tlaot.load`` does: the package is not imported, no device is touched, and no binary is loaded until an
    operator runs. Registering the same kernels again does nothing.

    Args:
        package: Import name of the package that embeds the kernels, or its kernels as ``tlaot.load`` returned them.
        namespace: The operators' namespace; by default the package's name with ``_`` for each dot.
        only: Names of the kernels to register; all by default. One of these that can be no operator is an error.
        path: Where to look for kernels, as in ``tlaot.load``.

    Returns:
        What was registered, and what was left out and why.

    Raises:
        PackageError: There are no kernels of the package, or none that can be an operator.
        LoadError: torch has operators of these names already that are not these kernels.
        CallError: ``only`` names no kernel of the package; the namespace is no name.
    """
    kernels = package if isinstance(package, Kernels) else loading.load(package, path)
    if isinstance(package, Kernels) and path is not None:
        raise CallError("register", "path is given beside kernels that are loaded", "Pass one of the two.")
    title = kernels._package
    namespace = title.replace(".", "_") if namespace is None else namespace
    if not namespace.isidentifier():
        raise CallError("register", f"the namespace is no Python name, got {namespace!r}", "Pass namespace=...")
    operators, left_out = _describe(kernels, only)
    if not operators and not loading.building:
        listed = "".join(f"\n  {name}: {reason}" for name, reason in left_out.items())
        raise PackageError(
            title,
            f"has no kernel that torch can call{listed or ' (it has none at all)'}",
            "Call them through tlaot.load, or package kernels that torch's tensors fit.",
        )
    with _registering:
        for operator in operators:
            _register_once(namespace, title, kernels[operator.name], operator)
    made = {o.name: tuple(form.schema for form in o.forms) for o in operators}
    return Registration(namespace, made, left_out)


def _describe(kernels: Kernels, only: Iterable[str] | None) -> tuple[list[Operator], dict[str, str]]:
    names = list(kernels) if only is None else list(dict.fromkeys([only] if isinstance(only, str) else only))
    operators: list[Operator] = []
    left_out: dict[str, str] = {}
    for name in names:
        if name not in kernels:
            hint = did_you_mean(name, kernels) or f"; it has {', '.join(kernels) or 'none'}"
            raise CallError(
                "register", f"package {kernels._package} has no kernel {name!r}{hint}", "Correct only=[...]."
            )
        found = describe_operator(name, kernels[name].variants, _has_dtype)
        if isinstance(found, Operator):
            operators.append(found)
        else:
            left_out[found.name] = found.reason
    if only is not None and left_out:
        name, reason = next(iter(left_out.items()))
        raise PackageError(
            f"{kernels._package}.{name}", f"cannot be an operator of torch: {reason}", "Leave it out of only."
        )
    return operators, left_out


def _has_dtype(name: str) -> bool:
    return isinstance(getattr(torch, name, None), torch.dtype)


def _register_once(namespace: str, package: str, kernel: Kernel, operator: Operator) -> None:
    qualified = f"{namespace}::{operator.name}"
    present = _registered.get(qualified)
    if present == (package, kernel.variants):
        return
    if present is not None:
        what = "from another build of it" if present[0] == package else f"from the package {present[0]}"
        raise LoadError(
            f"operator {qualified}",
            f"is registered already, {what}",
            "Register one of them under another namespace=..., or start the process again.",
        )
    try:
        # One for each operator: what is half made goes with it.
        library = torch.library.Library(namespace, "FRAGMENT")
        for form in operator.forms:
            library.define(form.schema, tags=_tags())
    except (RuntimeError, ValueError) as error:
        raise LoadError(
            f"operator {qualified}",
            f"torch refuses it ({str(error).strip().splitlines()[0]})",
            "If another library has operators of this name, pass namespace=...",
        ) from None
    for form in operator.forms:
        for key in ("CPU", "CUDA"):
            library.impl(form.name, _implement(kernel, form), key)
        torch.library.register_fake(
            f"{namespace}::{form.name}", make_fake(f"{package}.{operator.name}", form, operator.variants), lib=library
        )
    _libraries.append(library)
    _registered[qualified] = package, kernel.variants


def _tags() -> tuple[Any, ...]:
    """Compilers may hand a kernel no other layout than the program's own: torch 2.4's default is any."""
    names = (
        "pt2_compliant_tag",
        "needs_exact_strides" if hasattr(torch.Tag, "needs_exact_strides") else "needs_fixed_stride_order",
    )
    return tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))


def _implement(kernel: Kernel, form: Form) -> Callable[..., Any]:
    """The function that the dispatcher calls on a real device; keywords that were not given do not arrive, or are None."""
    forward_ad = torch.autograd.forward_ad
    several = form.returned > 1

    def run(*args: Any, **named: Any) -> Any:
        if forward_ad._current_level >= 0:
            raise _refuse_forward_mode(kernel)
        if named and None in named.values():
            named = {name: value for name, value in named.items() if value is not None}
        out = kernel(*args, **named)
        return tuple(out) if several else out

    return _counting_versions(run, form) if form.written else run


def _counting_versions(run: Callable[..., Any], form: Form) -> Callable[..., Any]:
    """Tell autograd that tensors were changed: what it kept of them for a gradient is then an error, not a wrong gradient."""
    increment = torch.autograd.graph.increment_version
    written, returned = form.written, form.returned

    def counting(*args: Any, **named: Any) -> Any:
        out = run(*args, **named)
        for position in written:
            if not args[position].is_inference():
                increment(args[position])
        return out if returned else None

    return counting


def _refuse_forward_mode(kernel: Kernel) -> CallError:
    """Here the tangents are gone already: without the error they would be zero from here on."""
    return CallError(
        kernel._where,
        "is called under forward-mode differentiation, and a packaged kernel has no derivative",
        "Call it outside of torch.func.jvp and torch.autograd.forward_ad.dual_level.",
    )
