"""Frozen dataclasses that cost next to nothing to define.

``dataclass`` writes, compiles and runs source for each method of each class, about half a millisecond a class; for those that every
program with packaged kernels defines at its start that was half of the time of the import. The methods here are the same for all
classes. To type checkers, and to ``replace``, ``fields``, ``asdict``, ``copy`` and ``pickle``, such a class is a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
    from operator import attrgetter

    class _Methods:
        def __init__(self, *args, **values):
            cls = type(self)
            given = {**dict(zip(cls._names, args, strict=False)), **values}
            if len(given) < len(args) + len(values):
                raise TypeError(
                    f"{cls.__qualname__}() takes {', '.join(cls._names)}, got too many arguments or one of them twice"
                )
            state = {**cls._defaults, **given}
            for name, make in cls._factories.items():
                if name not in state:
                    state[name] = make()
            if len(state) != len(cls._names) or not all(name in state for name in cls._names):
                wrong = min(state.keys() ^ set(cls._names))
                raise TypeError(f"{cls.__qualname__}() {'lacks' if wrong in cls._names else 'does not take'} {wrong}")
            vars(self).update(state)

        def __repr__(self):
            return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._shown)})"

        def __eq__(self, other):
            if type(other) is not type(self):
                return NotImplemented
            return self._compared(self) == self._compared(other)

        def __hash__(self):
            return hash(self._compared(self))

        def __setattr__(self, name, value):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name):
            raise FrozenInstanceError(f"cannot delete field {name!r}")

    def record(*, frozen):
        """``@record(frozen=True)`` in place of ``@dataclass(frozen=True)``."""
        assert frozen
        return _make

    def _make(cls):
        made = dataclass(init=False, repr=False, eq=False)(cls)
        own = fields(made)
        made._names = tuple(field.name for field in own)
        made._defaults = {field.name: field.default for field in own if field.default is not MISSING}
        made._factories = {field.name: field.default_factory for field in own if field.default_factory is not MISSING}
        made._shown = tuple(field.name for field in own if field.repr)
        made._compared = attrgetter(*(field.name for field in own if field.compare))
        for name, method in vars(_Methods).items():
            if callable(method):
                setattr(made, name, method)
        return made
