"""One connection: what it opens, what it sends, and what it is answered (docs/ingest.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.callers.ingest import MIB, journaled
from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import LARGE_TEXT, final_transcript, unknown_event
from tests.support.stores.failing import database_of, locked_database, store_that_cannot_commit, store_without_room
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject

# A producer that has lost events


async def test_a_hole_is_declared_and_seen(app: App, api: RestClient) -> None:
    """`from_seq` above the next seq is journaled with the first and last missing seq, and the call goes on there."""
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1), final_transcript(2))
    async with connected_producer(app) as again:
        assert 6 == (await again.open(from_seq=6))["next_seq"]
        await again.store(final_transcript(6))
    gap = {"type": "session.gap", "producer": "main", "from_seq": 3, "to_seq": 5}
    assert [final_transcript(1), final_transcript(2), gap, final_transcript(6)] == await journaled(api)
    row = (await api.journal())[2]
    assert (3, None, None) == (row["position"], row["producer"], row["seq"])


async def test_a_new_session_may_begin_with_a_hole(app: App, api: RestClient) -> None:
    """A producer whose store was lost goes on with what it still has."""
    async with connected_producer(app) as producer:
        assert 9 == (await producer.open(from_seq=9))["next_seq"]
        await producer.store(final_transcript(9))
    gap = {"type": "session.gap", "producer": "main", "from_seq": 1, "to_seq": 8}
    assert [gap, final_transcript(9)] == await journaled(api)


@pytest.mark.parametrize("from_seq", [1, 2, 3])
async def test_what_can_still_be_sent_is_no_hole(app: App, api: RestClient, from_seq: int) -> None:
    """`from_seq` at or below the next seq changes nothing; resends are duplicates."""
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1), final_transcript(2))
        assert 3 == (await producer.open(from_seq=from_seq))["next_seq"]
        await producer.store(final_transcript(1), final_transcript(3))
    assert [final_transcript(1), final_transcript(2), final_transcript(3)] == await journaled(api)


async def test_what_is_in_a_hole_is_never_acknowledged(app: App, api: RestClient) -> None:
    """An event that was given up and turns up later cannot be stored any more, so it gets an error."""
    async with open_producer(app, from_seq=5) as producer:
        await producer.send(final_transcript(3))
        await producer.expect_error("seq_conflict", seq=3)
        await producer.store(final_transcript(5))
    assert 2 == len(await api.journal())


# The window


async def test_a_client_may_read_its_acks_late(app: App, api: RestClient) -> None:
    """Who sends a long call without reading a single answer loses nothing."""
    events = [final_transcript(seq, text="word " * 20) for seq in range(1, 20_001)]
    async with open_producer(app) as producer:
        producer.socket.transport.pause_reading()
        for start in range(0, len(events), 50):
            await producer.send_together(*events[start : start + 50])
        producer.socket.transport.resume_reading()
        await producer.expect_ack(20_000)
    last = (await api.journal(query="?after=19998"))[-1]
    assert (20_000, 20_000, events[-1]) == (last["position"], last["seq"], last["event"])


async def test_over_the_window_the_server_stops_reading(on_file: App, tmp_path: Path) -> None:
    """While nothing can be committed at most a window is taken in; later everything is stored, nothing dropped."""
    events = [final_transcript(seq, text="x" * 100_000) for seq in range(1, 201)]
    async with open_producer(on_file) as producer:
        with locked_database(f"{tmp_path}/db"):
            sending = asyncio.create_task(producer.send(*events))
            done, _ = await asyncio.wait({sending}, timeout=1.0)
            assert not done
            assert max(one.unanswered for one in on_file.ingest.connections) <= 1.3 * MIB  # a read brings up to 256 KiB
        await producer.expect_ack(200)
        await sending
    assert 200 == (await RestClient(on_file).session())["position"]


async def test_a_slow_session_holds_up_only_its_connection(app: App) -> None:
    """A client whose window is full, and who reads nothing, leaves others untouched."""
    async with open_producer(app, "slow") as slow, open_producer(app, "quick") as quick:
        slow.socket.transport.pause_reading()
        sending = asyncio.create_task(slow.send(*(unknown_event(seq) for seq in range(1, 900))))
        for seq in range(1, 50):
            await quick.store(final_transcript(seq))
        await sending
        slow.socket.transport.resume_reading()
        assert 899 == len(await slow.rest())


# A store in trouble


async def test_a_store_that_is_down_acknowledges_nothing(app: App, api: RestClient) -> None:
    """The connection is closed with 1013 without an ack; after the recovery a resend stores everything once."""
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1))
        async with store_without_room(app):
            await producer.send_together(final_transcript(2, text=LARGE_TEXT), final_transcript(3))
            code, frames = await producer.closed()
    assert (1013, ["store_unavailable"]) == (code, [frame.get("code") for frame in frames])
    async with connected_producer(app) as again:
        assert 2 == (await again.open())["next_seq"]
        await again.store(final_transcript(1), final_transcript(2, text=LARGE_TEXT), final_transcript(3))
    assert [1, 2, 3] == [row["seq"] for row in await api.journal()]
    assert ["Line 1.", LARGE_TEXT, "Line 3."] == [one["content"] for one in await api.contents()]


async def test_a_service_whose_store_is_down_is_not_ready(on_file: App) -> None:
    """`readyz` tells the last commit's outcome, `livez` does not care."""
    api = RestClient(on_file)
    async with open_producer(on_file) as producer, store_that_cannot_commit(on_file):
        await producer.send(final_transcript(1))
        assert 1013 == (await producer.closed())[0]
        assert [503, 200] == [(await api.get(path)).status for path in ("/readyz", "/livez")]
        assert (503, "store_unavailable") == (await api.post("/v1/sessions/s/events", [final_transcript(1)])).problem
    assert {"next_seq": 2, "errors": []} == await api.send(final_transcript(1))
    assert 200 == (await api.get("/readyz")).status


async def test_a_service_gets_ready_by_itself(on_file: App) -> None:
    """After the outage `readyz` is well again though no one sends anything: no one would, as long as it is not."""
    async with open_producer(on_file) as producer, store_that_cannot_commit(on_file):
        await producer.send(final_transcript(1))
        await producer.closed()
    await eventually(200, lambda: readiness(RestClient(on_file)), timeout_s=4)


async def readiness(api: RestClient) -> int:
    """What `readyz` answers."""
    return (await api.get("/readyz")).status


async def test_what_was_acknowledged_can_be_read_while_the_store_is_down(app: App, api: RestClient) -> None:
    """Readers are shown what is stored, and nothing of what is not."""
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1))
        async with store_without_room(app):
            await producer.send(final_transcript(2, text=LARGE_TEXT))
            await producer.closed()
            assert ["Line 1."] == [one["content"] for one in await api.contents()]


async def test_an_open_while_the_store_is_down_is_turned_away(app: App, api: RestClient) -> None:
    """There is no ready without a commit; the client is to try again later."""
    async with store_without_room(app), connected_producer(app) as producer:
        await producer.send(
            {"type": "session.open", "session_id": "s", "session": {"llm": {"params": {"a": LARGE_TEXT}}}}
        )
        code, frames = await producer.closed()
    assert (1013, ["store_unavailable"]) == (code, [frame.get("code") for frame in frames])
    assert 404 == (await api.get("/v1/sessions/s")).status


async def test_after_an_outage_silence_counts_again(app: App, api: RestClient) -> None:
    """A session whose producer did not come back after the store was down is closed as idle."""
    async with open_producer(app, session={"idle_timeout": 0.2}) as producer, store_without_room(app):
        await producer.send(final_transcript(1, text=LARGE_TEXT))
        await producer.closed()
    await eventually("ended", lambda: state(api), timeout_s=2)


async def test_silence_that_begins_in_an_outage_counts(on_file: App) -> None:
    """A session whose last connection went while nothing could be committed is closed as idle afterwards."""
    async with open_producer(on_file, session={"idle_timeout": 0.2}) as producer, store_that_cannot_commit(on_file):
        await producer.socket.close()
        await eventually(0, lambda: connections(on_file))
    await eventually("ended", lambda: state(RestClient(on_file)), timeout_s=2)


async def test_an_open_that_fails_does_not_hide_a_silence(on_file: App, tmp_path: Path) -> None:
    """A session whose last connection went while another open was on its way, and failed, is closed as idle."""
    await database_of(on_file).write(lambda connection: connection.raw.set_busy_timeout(300))
    async with open_producer(on_file, session={"idle_timeout": 0.2}) as last, connected_producer(on_file) as failing:
        with locked_database(f"{tmp_path}/db"):
            await failing.send({"type": "session.open", "session_id": "s", "producer": "other"})
            await last.socket.close()
            assert 1013 == (await failing.closed())[0]
    await eventually("ended", lambda: state(RestClient(on_file)), timeout_s=2)


async def producers(app: App) -> JsonObject:
    """Who is connected to session "s", and how often."""
    return dict(app.services.presence.connected.get(("default", "s"), {}))


async def connections(app: App) -> int:
    """How many there are."""
    return len(app.ingest.connections)


async def test_after_a_flood_silence_counts_again(app: App, api: RestClient) -> None:
    """A session whose producer was sent away is closed as idle."""
    async with open_producer(app, session={"idle_timeout": 0.2}) as producer:
        await producer.send_together(*(unknown_event(seq) for seq in range(1, 1_100)))
        assert 1008 == (await producer.closed())[0]
    await eventually("ended", lambda: state(api), timeout_s=2)


async def state(api: RestClient) -> str:
    """Of session "s"."""
    return str((await api.session())["state"])
