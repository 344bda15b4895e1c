"""The library for synchronous code."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import voicemem
from voicemem.errors import CannotStart, Refused, StoreUnavailable


def test_the_methods_are_those_of_the_library(tmp_path: Path) -> None:
    """Sessions, their documents and those of users come without `await`; what is there is there for the next."""
    store = f"sqlite:{tmp_path}/calls.db"
    with voicemem.open_sync(store, project="shop") as library:
        call = library.create("call-1", user_id="ann")
        call.add({"role": "user", "content": "Hi"})
        assert ["Hi"] == [one.content for one in call.history()]
        assert [True] == ["marks" in turn for turn in call.turns(marks=True)]
        assert "Tea." == call.working_memory.append("Tea.").content
        assert [] == call.context(at=0)["messages"]
        assert 1 == call.memory().working_memory.version
        library.user_memory("ann").append("Jazz.")
        assert "call-2" == call.fork(at_turn=1, session_id="call-2").session_id
    with voicemem.open_sync(store, project="shop") as library:
        assert ["call-2", "call-1"] == [one.session_id for one in library.list()]
        assert ["Hi"] == [one.content for one in library.get("call-2").history()]
        assert "Jazz." == library.user_memory("ann").read().content


def test_its_errors_are_those_of_the_library(tmp_path: Path) -> None:
    """And what is closed has no thread any more."""
    before = threading.active_count()
    with pytest.raises(CannotStart), voicemem.open_sync("postgres:x"):
        pass
    with pytest.raises(LookupError), voicemem.open_sync(f"sqlite:{tmp_path}/calls.db"):
        raise LookupError
    with voicemem.open_sync(f"sqlite:{tmp_path}/calls.db") as library:
        with pytest.raises(Refused, match="unknown_session"):
            library.get("nobody")
        with pytest.raises(AttributeError):
            _ = library.nothing
    with pytest.raises(StoreUnavailable, match="The library is closed"):
        library.create()
    assert before == threading.active_count()


def test_many_threads_may_share_it() -> None:
    """None of what they add is lost."""

    def add(call: Any, number: int) -> None:
        call.add({"role": "user", "content": f"Message {number}."})

    with voicemem.open_sync() as library, ThreadPoolExecutor(8) as threads:
        call = library.create()
        for _ in threads.map(lambda number: add(call, number), range(40)):
            pass
        assert {f"Message {number}." for number in range(40)} == {one.content for one in call.history()}
