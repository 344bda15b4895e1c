from __future__ import annotations

import os
from pathlib import Path

import pytest

from voicemem.config.session import validate_config
from voicemem.store.sqlite.store import MemoryStore


async def test_nothing_touches_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory leaves no file where it runs."""
    monkeypatch.chdir(tmp_path)
    store = MemoryStore()
    await store.open("p", "s", "main", validate_config({}), None, 1_000)
    await store.close_store()

    assert not os.listdir(tmp_path)


async def test_each_store_is_its_own() -> None:
    """Two stores in memory share neither their sessions nor their identity."""
    one, other = MemoryStore(), MemoryStore()
    await one.create("p", "s", validate_config({}), 1_000)
    found = await other.stream("p", "s")
    incarnations = {one.incarnation, other.incarnation}
    await one.close_store()
    await other.close_store()

    assert found is None
    assert len(incarnations) == 2
