"""One thread for numpy's linear algebra while a search thinks, and as many as before after that."""

from __future__ import annotations

import pytest

from tlaot.tune.searching import blas
from tlaot.tune.searching.blas import one_thread

np = pytest.importorskip("numpy")


def test_one_thread_inside_and_as_before_outside() -> None:
    found = blas._find()
    if found is None:
        pytest.skip("numpy has another library than OpenBLAS here")
    get, put = found
    before = get()
    try:
        put(2)
        usual = get()
        with pytest.raises(ZeroDivisionError), one_thread():
            assert get() == 1
            with one_thread():
                assert get() == 1
            assert get() == 1
            raise ZeroDivisionError
        assert get() == usual
    finally:
        put(before)


def test_without_openblas_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_find", lambda: None)
    with one_thread():
        assert np.linalg.inv(np.eye(2)).sum() == 2
