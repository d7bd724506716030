"""TileLang packages without TileLang: their ``@tilelang.jit`` factories give the kernels that were packaged for them.

One line in the package's ``__init__.py``, in place of ``import tilelang``, before it imports its own modules::

    import tlaot; tilelang = tlaot.tilelang_for(__name__)

What its modules then import as ``tilelang`` (and ``tvm``) is a stand-in, seen by that package alone: nothing named ``tilelang`` is left in
``sys.modules``, and an installed TileLang stays what it is to everybody else. In a build it is TileLang itself.

``mode`` says which of the two it is, ``scope`` who sees it, ``standin`` and ``dtypes`` what is in it, ``factory`` what becomes of a
decorated function, ``choose`` which packaged variants a key means, ``kernel`` what a call gives.
"""

from __future__ import annotations

from .kernel import JITKernel
from .mode import kernel, tilelang_for

__all__ = ["JITKernel", "kernel", "tilelang_for"]
