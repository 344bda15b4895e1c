"""The library, which does nothing by itself."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest

from tests.support.events import final
from tests.support.servers.webhook_receiver import Reply, webhook_receiver
from voicemem.library.sessions import Library, open_library
from voicemem.memory import transcript_index


async def test_closed_sessions_are_not_collected() -> None:
    """No figures of lists are made here, so what is to be made is not noted either."""
    async with open_library() as library:
        call = await library.create()
        await call.end()
        assert {} == library.services.overviews.closed | library.services.extractions.changed


async def test_indexing_pauses_only_for_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the steps of a first index, and of later ones, a pause is long only if events have come in meanwhile.

    A receiver of webhooks that does not answer changes nothing, and neither does the end of such an attempt.
    """
    monkeypatch.setattr(transcript_index, "PAUSE_FACTOR", 1_000_000)
    monkeypatch.setattr(transcript_index, "MAX_PAUSE_S", 600)
    async with open_library() as library, webhook_receiver() as hook, library.services.sender:
        library.services.indexer.running_interval_ms = 0
        gate = asyncio.Event()
        hook.otherwise = Reply(status=500, gate=gate)
        await library.services.store.directory.set_operator_endpoint(hook.url(), None)
        await (await library.create()).end()
        outbox = library.services.outbox
        await outbox.start_due()
        await hook.one()
        await record_calls(library, "first")
        async with asyncio.timeout(60):
            assert [] != (await library.search("walnuts")).memories
            await record_calls(library, "later")
            await library.services.indexer.index_due()
        assert {} == library.services.indexer.changed
        assert outbox.tasks
        steps = library.services.indexer.begin_step()
        gate.set()
        await outbox.finish_running(60)
        assert not outbox.tasks
        assert steps[1] == library.services.indexer.begin_step()[1]


async def record_calls(library: Library, name: str) -> None:
    """More of them than are indexed in one step."""
    for number in range(transcript_index.SESSIONS_AT_ONCE + 5):
        call = await library.create(f"{name}{number}")
        await call.record(final(1, "walnuts"))
