"""Errors say where, what, and what to do; they travel between processes."""

from __future__ import annotations

import inspect
import pickle

import pytest

from tlaot import errors

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.TlaotError)]


@pytest.mark.parametrize("kind", ALL)
def test_message_has_place_then_fault_then_remedy(kind: type[errors.TlaotError]) -> None:
    """``<where>: <what>`` on the first line, the remedy on the next."""
    error = kind("tltune.toml: kernel matmul", "unknown key 'shape'", "Known keys: shapes.")
    assert str(error) == "tltune.toml: kernel matmul: unknown key 'shape'\nKnown keys: shapes."
    assert str(kind("here", "is wrong")) == "here: is wrong"


@pytest.mark.parametrize("kind", ALL)
def test_survives_a_process_boundary(kind: type[errors.TlaotError]) -> None:
    """Worker processes send their errors back: type and all three parts."""
    back = pickle.loads(pickle.dumps(kind("a", "b", "c")))
    assert type(back) is kind
    assert (back.where, back.what, back.remedy, str(back)) == ("a", "b", "c", "a: b\nc")


def test_every_error_is_exported_and_is_a_tlaot_error() -> None:
    """``except tlaot.TlaotError`` catches all of them, and each is reachable as ``tlaot.<name>``."""
    import tlaot

    assert {c.__name__ for c in ALL} == set(errors.__all__) - {"did_you_mean"}
    assert all(getattr(tlaot, c.__name__) is c for c in ALL)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("shape", ", did you mean 'shapes'?"), ("colour", ""), ("", ""), ("configs", ", did you mean 'configs'?")],
)
def test_did_you_mean(word: str, hint: str) -> None:
    """The nearest of the known names, where one is near; any iterable of names will do."""
    assert errors.did_you_mean(word, iter(["shapes", "configs"])) == hint
