"""The life of sessions: who is connected, how they end, fall silent, and come back (docs/ingest.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.clock import ManualClock
from tests.support.events import final_transcript, session_end
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.store.streams import END_GRACE_MS

IDLE: JsonObject = {"idle_timeout": 0.2}


# The end of a call, over real connections


@pytest.fixture
async def asr(app: App) -> AsyncIterator[Producer]:
    """One producer of session "s", with one event."""
    async with open_producer(app, producer="asr") as producer:
        await producer.store(final_transcript(1))
        yield producer


@pytest.fixture
async def llm(app: App, asr: Producer) -> AsyncIterator[Producer]:
    """Another producer of the same session, connected at the same time."""
    async with open_producer(app, producer="llm") as producer:
        yield producer


async def is_over(api: RestClient, session_id: str = "s") -> bool:
    """Whether a session has ended."""
    return bool("ended" == (await api.session(session_id))["state"])


async def over(api: RestClient, session_id: str = "s") -> JsonObject:
    """The session, once it has ended."""
    await eventually(True, lambda: is_over(api, session_id))
    return await api.session(session_id)


async def kinds(api: RestClient, session_id: str = "s") -> list[str]:
    """The types of the events in a session's journal."""
    return [row["event"]["type"] for row in await api.journal(session_id)]


async def waited_ms(api: RestClient) -> int:
    """The time between the first end in the journal and the close."""
    times = {row["event"]["type"]: row["received_ms"] for row in reversed(await api.journal())}
    return int(times["session.closed"] - times["session.end"])


async def test_the_only_producers_end_closes_at_once(serve: Serve) -> None:
    """The end is acknowledged like any event, and gives the close its time and reason; no time need pass."""
    app = await serve(ManualClock())
    api = RestClient(app)
    async with open_producer(app, producer="asr") as asr:
        await asr.store(final_transcript(1), session_end(2, ts=1234, reason="hangup", last_seq=1))
        assert "hangup" == (await over(api))["reason"]
    row = (await api.journal())[-1]
    assert (None, None, {"type": "session.closed", "ts": 1234, "reason": "hangup"}) == (
        row["producer"],
        row["seq"],
        row["event"],
    )


async def test_an_end_without_a_time_ends_when_it_came(api: RestClient, asr: Producer) -> None:
    """Without `ts` the time of receipt is the close's."""
    await asr.store(session_end(2))
    await over(api)
    rows = await api.journal()
    assert rows[1]["received_ms"] == rows[2]["event"]["ts"]


async def test_an_end_without_seq_ends(app: App, api: RestClient) -> None:
    """A producer that does not count ends its session as well."""
    async with open_producer(app) as producer:
        await producer.send(final_transcript(), session_end(reason="bye"))
        assert "bye" == (await over(api))["reason"]


@pytest.mark.parametrize("last_seq", [0, 2, 7])
async def test_an_end_that_misses_events_is_refused(api: RestClient, asr: Producer, last_seq: int) -> None:
    """`last_seq` is the seq before the end's own; after a mismatch the call goes on, and can end rightly."""
    await asr.send(session_end(2, last_seq=last_seq))
    await asr.expect_error("last_seq_mismatch", seq=2)
    await asr.store(final_transcript(3), session_end(4, last_seq=3))
    await over(api)
    assert ["asr", "refused", "asr", "session.end", "session.closed"] == await kinds(api)


async def test_nobodys_last_words_are_lost(api: RestClient, asr: Producer, llm: Producer) -> None:
    """For 2 s after the first end another producer's events still come into the memory, then the session closes."""
    await asr.store(session_end(2, ts=99, reason="hangup"))
    await llm.store(final_transcript(1, text="Last words.", turn_id=2))
    assert "running" == (await api.session())["state"]
    assert "hangup" == (await over(api))["reason"]
    assert END_GRACE_MS <= await waited_ms(api) < END_GRACE_MS + 1500
    assert ["Line 1.", "Last words."] == [message["content"] for message in await api.contents()]
    await llm.send(final_transcript(2))
    await llm.expect_error("session_ended", seq=2)


async def test_when_all_have_ended_nobody_waits(api: RestClient, asr: Producer, llm: Producer) -> None:
    """The last end closes at once; the first one's time and reason count."""
    await asr.store(session_end(2, ts=99, reason="hangup"))
    await llm.store(session_end(1, ts=55, reason="other"))
    assert "hangup" == (await over(api))["reason"]
    assert await waited_ms(api) < END_GRACE_MS / 2
    assert 99 == (await api.journal())[-1]["event"]["ts"]


async def test_when_the_others_are_gone_nobody_waits(api: RestClient, asr: Producer, llm: Producer) -> None:
    """A producer that disconnects without an end is not waited for any longer."""
    await asr.store(session_end(2))
    await llm.socket.close()
    await over(api)
    assert await waited_ms(api) < END_GRACE_MS / 2


async def test_after_its_own_end_a_producer_is_silent(api: RestClient, asr: Producer, llm: Producer) -> None:
    """Its duplicates are acknowledged, its new events refused without a trace; others go on."""
    await asr.store(session_end(2))
    await asr.store(final_transcript(1), session_end(2))
    for late in (final_transcript(3), session_end(3)):
        await asr.send(late)
        await asr.expect_error("session_ended", seq=3)
    await llm.store(final_transcript(1))
    assert ["asr", "session.end", "asr"] == await kinds(api)


async def test_after_the_close_duplicates_are_acknowledged(app: App, api: RestClient, asr: Producer) -> None:
    """A producer that never saw its acks can clear its buffer, on its old connection and on a new one."""
    await asr.store(session_end(2))
    await over(api)
    await asr.store(final_transcript(1), session_end(2))
    async with open_producer(app, producer="asr") as again:
        await again.store(final_transcript(1), session_end(2))
        await again.send(final_transcript(3))
        await again.expect_error("session_ended", seq=3)
    assert ["asr", "session.end", "session.closed"] == await kinds(api)


async def test_an_end_over_http_waits_for_connections(api: RestClient, asr: Producer) -> None:
    """A producer that is connected has 2 s for its last words, however the first end came."""
    await api.send(session_end(1, reason="http"), query="?producer=control")
    assert "running" == (await api.session())["state"]
    await asr.store(final_transcript(2), session_end(3))
    assert "http" == (await over(api))["reason"]
    assert await waited_ms(api) < END_GRACE_MS


async def test_an_end_waits_for_producers_over_http(app: App, api: RestClient) -> None:
    """A producer that counts its events has a buffer, also when it can send by requests only."""
    async with open_producer(app, producer="main") as main:
        await main.store(final_transcript(1))
        await api.send(final_transcript(1), query="?producer=asr")
        await main.store(session_end(2))
        assert "running" == (await api.session())["state"]
        await api.send(final_transcript(2), session_end(3), query="?producer=asr")
        assert "ended" == (await over(api))["state"]
    assert ["asr", "asr", "session.end", "asr", "session.end", "session.closed"] == await kinds(api)


async def test_a_producer_that_lost_its_connection_has_its_last_words(app: App, api: RestClient) -> None:
    """Its connection breaks, the other ends, and what it sends when it is back is taken."""
    async with open_producer(app, producer="asr") as asr, open_producer(app, producer="llm") as llm:
        await llm.store(final_transcript(1))
        llm.socket.transport.abort()
        await llm.socket.wait_closed()
        await eventually(0, lambda: asyncio.sleep(0, app.services.presence.connected["default", "s"]["llm"]))
        await asr.store(session_end(1))
        async with open_producer(app, producer="llm") as back:
            await back.store(final_transcript(2), session_end(3))
    assert "ended" == (await over(api))["state"]
    assert ["asr", "session.end", "asr", "session.end", "session.closed"] == await kinds(api)


async def test_an_end_over_rest_waits_for_nobody(api: RestClient, asr: Producer) -> None:
    """`POST …/end` closes at once; who is still connected hears of it with the next event."""
    assert "ended" == (await api.end(reason="moderated"))["state"]
    await asr.send(final_transcript(2))
    await asr.expect_error("session_ended", seq=2)
    await asr.store(final_transcript(1))


@pytest.mark.parametrize("reason", ["idle", "max_duration", "hangup"])
async def test_a_producers_end_is_final(app: App, api: RestClient, asr: Producer, reason: str) -> None:
    """Whatever reason it gives, nothing brings the session back."""
    await asr.store(session_end(2, reason=reason))
    await over(api)
    async with connected_producer(app) as again:
        assert "ended" == (await again.open())["state"]
    assert ["session_ended"] == [error["code"] for error in (await api.send(final_transcript(1)))["errors"]]
    assert ["asr", "session.end", "session.closed"] == await kinds(api)


# Silence


async def test_a_session_closes_after_its_last_connection_went(app: App, api: RestClient) -> None:
    """The close says `idle`, and closes what was open."""
    async with open_producer(app, session=IDLE) as producer:
        await producer.store({"type": "llm.delta", "seq": 1, "turn_id": 1, "text": "Let me"})
    assert "idle" == (await over(api))["reason"]
    (message,) = await api.contents()
    assert message["metadata"]["interrupted"]


async def test_a_session_that_nobody_joined_closes(api: RestClient) -> None:
    """A session that was only created is silent from its creation."""
    await api.create(**IDLE)
    session = await over(api)
    assert "idle" == session["reason"]
    assert session["ended_at"] - session["started_at"] >= 200


async def test_a_connected_session_is_never_idle(app: App, api: RestClient) -> None:
    """As long as any connection is there, silence does not count, whichever went before."""
    async with open_producer(app, session=IDLE), connected_producer(app) as other:
        await other.open(producer="other")
        await other.socket.close()
        await api.create("later", idle_timeout=0.5)
        await over(api, "later")
        assert "running" == (await api.session())["state"]
    await over(api)


async def test_idle_timeout_0_is_never(api: RestClient) -> None:
    """A session may be silent for as long as it likes."""
    await api.create(idle_timeout=0)
    await api.create("other", idle_timeout=0.3)
    await over(api, "other")
    assert "running" == (await api.session())["state"]


async def test_events_over_http_are_heard(serve: Serve) -> None:
    """A producer without a websocket keeps its session open by sending."""
    clock = ManualClock()
    api = RestClient(await serve(clock))
    for name in ("s", "silent"):
        await api.create(name, idle_timeout=10)
    clock.wait(6)
    assert [] == (await api.send(final_transcript(1)))["errors"]
    clock.wait(6)
    await over(api, "silent")  # by the sweep that looks at every session
    assert [] == (await api.send(final_transcript(2)))["errors"]
    assert ["asr", "asr"] == await kinds(api)
    clock.wait(10)
    assert "idle" == (await over(api))["reason"]


async def test_the_timeout_may_change_during_the_call(app: App, api: RestClient) -> None:
    """An update of the configuration counts from then on."""
    async with open_producer(app) as producer:
        await producer.store({"type": "session.update", "seq": 1, **IDLE})
    assert "idle" == (await over(api))["reason"]


async def idle(app: App, api: RestClient, **config: object) -> None:
    """A session "s" that was cut off in the middle of a reply, and closed as idle."""
    async with open_producer(app, session=IDLE | config) as producer:
        await producer.store(final_transcript(1), {"type": "llm.delta", "seq": 2, "turn_id": 1, "text": "Let me"})
    await over(api)


async def test_a_producer_that_comes_back_reopens(app: App, api: RestClient) -> None:
    """Within the window an open brings the session back as if it had not closed, and the reply goes on."""
    await idle(app, api)
    async with connected_producer(app) as producer:
        ready = await producer.open()
        assert ("running", 3) == (ready["state"], ready["next_seq"])
        await producer.store({"type": "llm.done", "seq": 3, "turn_id": 1, "text": "Let me see."}, session_end(4))
    assert ["Line 1.", "Let me see."] == [message["content"] for message in await api.contents()]
    types = ["asr", "llm.delta", "session.closed", "session.reopened", "llm.done", "session.end", "session.closed"]
    assert types == await kinds(api)


async def test_a_reopened_session_shows_no_end(app: App, api: RestClient) -> None:
    """While it runs again it has neither an end nor a reason."""
    await idle(app, api)
    async with open_producer(app):
        session = await api.session()
        assert ("running", None, None) == (session["state"], session["reason"], session["ended_at"])
        assert ["Line 1."] == [message["content"] for message in await api.contents()]


async def test_a_new_event_over_http_reopens(app: App, api: RestClient) -> None:
    """A duplicate does not bring the session back, a new event does; without a connection it falls silent again."""
    await idle(app, api)
    assert {"next_seq": 3, "errors": []} == await api.send(final_transcript(1))
    assert "ended" == (await api.session())["state"]
    assert {"next_seq": 4, "errors": []} == await api.send(final_transcript(3))
    assert ["session.closed", "session.reopened", "asr"] == (await kinds(api))[2:5]
    assert "idle" == (await over(api))["reason"]


async def test_after_the_window_nothing_reopens(app: App, api: RestClient) -> None:
    """A producer that comes back too late finds the session ended, its duplicates are acknowledged."""
    await idle(app, api, reopen_window=0)
    async with connected_producer(app) as producer:
        assert "ended" == (await producer.open())["state"]
        await producer.store(final_transcript(1))
        await producer.send(final_transcript(3))
        await producer.expect_error("session_ended", seq=3)
    assert ["session_ended"] == [error["code"] for error in (await api.send(final_transcript(3)))["errors"]]
    assert "session.closed" == (await kinds(api))[-1]


async def test_every_close_makes_a_delivery(serve: Serve) -> None:
    """The receiver hears of the provisional close, and again of the next, each under an id of its own."""
    async with webhook_receiver() as receiver:
        app = await serve(webhook_url=receiver.url())
        api = RestClient(app)
        await idle(app, api)
        await receiver.wait(1)
        async with open_producer(app) as producer:
            await producer.store({"type": "llm.done", "seq": 3, "turn_id": 1, "text": "Let me see."}, session_end(4))
        assert [["Line 1.", "Let me"], ["Line 1.", "Let me see."]] == await noticed(receiver)


async def noticed(receiver: WebhookReceiver) -> list[list[str]]:
    """What two webhook events say, which must be different ones."""
    webhook_events = await receiver.wait(2)
    assert 2 == len({webhook_event.id for webhook_event in webhook_events})
    return [[message["content"] for message in webhook_event.payload["contents"]] for webhook_event in webhook_events]


async def test_the_longest_call_is_closed_while_connected(app: App, api: RestClient) -> None:
    """`max_duration` closes whatever is left, and that is final."""
    async with open_producer(app, session={"max_duration": 0.3}) as producer:
        await producer.store(final_transcript(1))
        assert "max_duration" == (await over(api))["reason"]
        await producer.send(final_transcript(2))
        await producer.expect_error("session_ended", seq=2)
        assert "ended" == (await producer.open())["state"]


async def test_the_longest_call_may_be_a_silent_one(api: RestClient) -> None:
    """A session that is never idle is closed after `max_duration` all the same."""
    await api.create(idle_timeout=0, max_duration=0.3)
    assert "max_duration" == (await over(api))["reason"]
