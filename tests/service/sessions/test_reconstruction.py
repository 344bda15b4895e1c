"""Reconstruction: a session of which nothing is left but its journal reads as before, also a compacted one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final
from tests.support.samples.cut_call import CUT_CALL, RESULT
from tests.support.services import node_on
from tests.support.stores.engines import engine as engine
from tests.support.stores.engines import open_handle as open_handle
from tests.support.stores.engines import store as store
from voicemem.store.port import Store
from voicemem.store.sqlite.store import SqliteStore
from voicemem.transcript.state import SNAPSHOT_VERSION

CALL = [
    *CUT_CALL,
    RESULT,
    final(2, "And my dog is called Rex.", 3_000),
    delta(2, "Nice.", 3_100),
    done(2, 3_200),
]
READS = ("history", "turns", "context?tools=true&data=true", "working-memory", "working-memory/versions", "data")


async def drop_snapshots(store: Any) -> None:
    """Take away all that was made of journals to read them faster."""
    if isinstance(store, SqliteStore):
        await store.database.write(lambda connection: connection.execute("delete from snapshots"))
    else:
        await store.database.write(lambda connection: connection.execute("delete from snapshots"))


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_session_is_made_again_from_its_journal(store: Store, compacted: bool) -> None:
    """Its history, turns, context, document and data are those of before; on each engine."""
    async with node_on(store) as app:
        api, services = RestClient(app), app.services
        await api.create("s", user_id="ann", reopen_window=0)
        await api.send(*CALL)
        await api.call("PUT", "/v1/sessions/s/working-memory", json={"content": "Likes tea."})
        await api.patch("/v1/sessions/s/working-memory", {"content": "And jazz."})
        await api.call("PUT", "/v1/sessions/s/data", json={"basket": ["tea"]})
        await api.post("/v1/sessions/s/forget", {"through_turn": 1})
        await api.end("s")
        before = [(await api.get(f"/v1/sessions/s/{path}")).json for path in READS]
        assert "And my dog is called Rex." in str(before[2])
        stream = await services.store.journal.get_session("default", "s")
        await services.read_models.refold(stream)
        assert await store.journal.load_snapshot(stream.key, SNAPSHOT_VERSION, stream.position) is not None
        while compacted and await store.compaction.compact(stream.key):
            pass
        await drop_snapshots(store)
        services.read_models.discard_all()
        assert await store.journal.load_snapshot(stream.key, SNAPSHOT_VERSION, stream.position) is None
        assert before == [(await api.get(f"/v1/sessions/s/{path}")).json for path in READS]
