"""The client against a running service: open, send, acknowledge, refuse, end, read, close."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support.callers.client_sessions import (
    acknowledged_seqs,
    behind_proxy,
    client_for,
    client_to,
    nested,
    numbered_transcript,
    send_transcripts,
    stored_transcripts,
    transcripts_up_to,
)
from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, make_key
from tests.support.services import Serve
from tests.support.stores.failing import store_that_cannot_commit
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.client import (
    BufferFull,
    Client,
    ClientError,
    Closed,
    EventRefused,
    RequestRefused,
    SessionEnded,
    SessionErased,
    Superseded,
    Unacknowledged,
    Unreachable,
)
from voicemem.protocol.types import JsonObject

KEY = "0123456789abcdef"


# Opening


async def test_a_new_session_begins_at_its_beginning(app: App) -> None:
    """After an open everything that a producer needs to know is there."""
    async with client_to(app) as client:
        session = await client.open("s", producer="asr", config={"name": "Call"})
        assert ("s", "asr", "running") == (session.session_id, session.producer, session.state)
        assert (1, 1, 1, 0) == (session.epoch, session.next_seq, session.next_turn, session.unacknowledged)
        assert app.services.store.directory.incarnation == session.incarnation
        assert "websocket" == client.transport
    assert {"name": "Call"} == (await RestClient(app).session("s"))["config"]


async def test_a_session_without_id_gets_one(app: App) -> None:
    """Each open without an id makes a session of its own."""
    async with client_to(app) as client:
        ids = {(await client.open()).session_id for _ in range(3)}
    assert 3 == len(ids)
    assert ["running"] * 3 == [(await RestClient(app).session(one))["state"] for one in ids]


async def test_a_process_that_starts_anew_goes_on(app: App) -> None:
    """Without a buffer a client goes on behind what an earlier one has sent, and so do its turns."""
    async with client_to(app) as client:
        await acknowledged_seqs(send_transcripts(await client.open("s"), range(1, 8)))
    async with client_to(app) as client:
        session = await client.open("s", config={"name": "ignored, since it exists"})
        assert (2, 8, 8) == (session.epoch, session.next_seq, session.next_turn)
        await acknowledged_seqs(send_transcripts(session, range(8, 10)))
    assert transcripts_up_to(9) == await stored_transcripts(app)


async def test_many_sessions_share_one_connection(app: App) -> None:
    """A client makes one connection, whatever it opens, and two producers of one session do not mix."""
    async with behind_proxy(app) as (proxy, client):
        sessions = [await client.open(f"s{n}") for n in range(5)] + [await client.open("s0", producer="llm")]
        acks = [ack for session in sessions for ack in send_transcripts(session, range(1, 21))]
        assert [*range(1, 21)] * 6 == await acknowledged_seqs(acks)
        assert 1 == proxy.accepted
    for n in range(1, 5):
        assert transcripts_up_to(20) == await stored_transcripts(app, f"s{n}")
    rows = [row for row in await RestClient(app).journal("s0") if row["producer"] == "llm"]
    assert [*range(1, 21)] == [row["seq"] for row in rows]


@pytest.mark.parametrize("given", [{"session_id": "a b"}, {"session_id": "x" * 129}, {"producer": ""}], ids=str)
async def test_an_impossible_name_is_said_at_once(app: App, given: JsonObject) -> None:
    """A session or producer that no server would take is an error before anything is sent."""
    async with client_to(app) as client:
        with pytest.raises(ValueError, match="characters"):
            await client.open(**given)


async def test_a_session_is_open_once(app: App) -> None:
    """A client does not supersede itself; after the end the session is opened again only by who says so, to read it."""
    async with client_to(app) as client:
        session = await client.open("s")
        with pytest.raises(ValueError, match="open already"):
            await client.open("s")
        await session.end()
        with pytest.raises(SessionEnded, match=r"session s has ended.*session_id of its own"):
            await client.open("s", producer="other")
        again = await client.open("s", allow_ended=True)
        assert ("ended", "ended") == (again.state, (await again.history())["state"])


async def test_a_bad_configuration_is_refused(app: App) -> None:
    """An open that the server does not take raises what the server said, and the next one works."""
    async with client_to(app) as client:
        with pytest.raises(RequestRefused) as refused:
            await client.open("s", config={"no_such_setting": 1})
        assert "invalid_field" == refused.value.code
        with pytest.raises(RequestRefused) as refused:
            await client.open("s", config={"name": nested(40)})
        assert "too_deep" == refused.value.code
        assert 1 == (await client.open("s")).epoch


async def test_an_open_that_is_cancelled_leaves_nothing(app: App) -> None:
    """Whoever does not want to wait for an open can try again."""
    async with behind_proxy(app) as (proxy, client):
        proxy.to_client.latency_s = 0.3
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.open("s"), 0.1)
        proxy.to_client.latency_s = 0
        await acknowledged_seqs(send_transcripts(await client.open("s"), range(1, 3)))


@pytest.mark.parametrize("url", ["http://127.0.0.1:8765", "127.0.0.1:8765", "ws://"])
def test_an_ingest_url_is_checked(url: str) -> None:
    """What is no websocket URL is said at once."""
    with pytest.raises(ValueError, match="ws://"):
        Client(url)


# Sending


async def test_send_only_takes(app: App) -> None:
    """`send` fills in seq and time, keeps what it was given as it was, and waits for nothing."""
    async with client_to(app) as client:
        session = await client.open("s")
        event, before = numbered_transcript(3), time.time_ns() // 1_000_000
        first, second = session.send(event), session.send(numbered_transcript(4, ts=7))
        assert ((1, 2), (False, False), 2) == ((first.seq, second.seq), (first.done(), second.done()), 2)
        assert (3, 5, numbered_transcript(3)) == (session.next_seq, session.next_turn, event)
        event["text"] = "changed later"
        assert [1, 2] == await acknowledged_seqs([first, second])
        assert (True, 0, 0) == (second.done(), session.unacknowledged, session.unacknowledged_bytes)
    one, two = [row["event"] for row in await RestClient(app).journal()]
    assert (before <= one["ts"] <= time.time_ns() // 1_000_000, "Line 3.", 7) == (True, one["text"], two["ts"])


async def test_an_ack_can_be_awaited_by_many_and_again(app: App) -> None:
    """Whoever awaits an ack gets the seq, and one who gives up takes nothing from the others."""
    async with client_to(app) as client:
        session = await client.open("s")
        ack = session.send(numbered_transcript(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_for(ack), 0)
        both = await asyncio.gather(wait_for(ack), wait_for(ack))
        assert [1, 1] == [*both]
        assert 1 == await ack


async def wait_for(ack: Any) -> int:
    return int(await ack)


async def test_a_refused_event_says_why(app: App) -> None:
    """An event that the server refuses raises its code, detail and seq; those around it are stored."""
    async with client_to(app) as client:
        session = await client.open("s")
        before, bad, after = (
            session.send(numbered_transcript(1)),
            session.send({"type": "no.such.type"}),
            session.send(numbered_transcript(3)),
        )
        with pytest.raises(EventRefused) as refused:
            await bad
        assert ("unknown_type", 2) == (refused.value.code, refused.value.seq)
        assert refused.value.detail
        assert [1, 3] == await acknowledged_seqs([before, after])
        await session.flush()
        last = session.send({"type": "asr"})
        await session.flush()
        assert (True, 0) == (last.done(), session.unacknowledged)
    assert [(1, "Line 1."), (2, None), (3, "Line 3.")] == (await stored_transcripts(app))[:3]


async def test_a_full_buffer_says_so_at_once(app: App) -> None:
    """Over the bound in events `send` takes nothing but the end, and says so at once; then all is stored."""
    async with behind_proxy(app, max_events=5) as (proxy, client):
        session = await client.open("s")
        await proxy.down()
        send_transcripts(session, range(1, 6))
        with pytest.raises(BufferFull):
            await session.send(numbered_transcript(6))
        assert (5, 6, 1.0) == (session.unacknowledged, session.next_seq, session.fullness)
        end = session.send({"type": "session.end"})
        assert 6 == end.seq
        await proxy.up()
        assert 6 == await end.result(timeout=10)
        assert 0.0 == session.fullness
    assert [*transcripts_up_to(5), (6, None)] == await stored_transcripts(app)


async def test_the_buffer_is_bounded_in_bytes(app: App) -> None:
    """Large events fill the buffer as many do."""
    async with behind_proxy(app, max_bytes=10_000) as (proxy, client):
        session = await client.open("s")
        await proxy.down()
        send_transcripts(session, range(1, 3), metadata={"x": "y" * 4_000})
        with pytest.raises(BufferFull):
            await session.send(numbered_transcript(3, metadata={"x": "y" * 4_000}))
        assert 8_000 < session.unacknowledged_bytes < 10_000
        await proxy.up()
        await asyncio.wait_for(session.flush(), 10)


# The end


async def test_the_end(app: App) -> None:
    """`end` is the last event, names the one before, and gives its reason; nothing can be sent after it."""
    async with client_to(app) as client:
        session = await client.open("s")
        send_transcripts(session, range(1, 4))
        ending = asyncio.create_task(session.end(reason="hangup"))
        await asyncio.sleep(0)
        with pytest.raises(SessionEnded):
            await session.send(numbered_transcript(4))
        assert 4 == await ending
        assert "ended" == session.state
        with pytest.raises(SessionEnded):
            await session.end()
    last = (await RestClient(app).journal())[3]["event"]
    assert ("session.end", 3, "hangup") == (last["type"], last["last_seq"], last["reason"])
    shown = await RestClient(app).session()
    assert ("ended", "hangup") == (shown["state"], shown["reason"])


async def test_a_session_that_others_end_takes_no_more(app: App) -> None:
    """When the session was ended over REST, what was sent before is stored, and what comes after raises."""
    async with client_to(app) as client:
        session, other = await client.open("s"), await client.open("other")
        await acknowledged_seqs(send_transcripts(session, range(1, 4)))
        await RestClient(app).end()
        late = send_transcripts(session, range(4, 3_000))
        for ack in late:
            with pytest.raises(SessionEnded):
                await ack
        assert ("ended", 0) == (session.state, session.unacknowledged)
        with pytest.raises(SessionEnded):
            await session.send(numbered_transcript(5))
        assert [1, 2] == await acknowledged_seqs(send_transcripts(other, [1, 2]))
    assert transcripts_up_to(3) == await stored_transcripts(app)


async def test_an_erased_session_takes_no_more(app: App) -> None:
    """When the session is erased its producer is told, and it cannot be opened again."""
    async with client_to(app) as client:
        session = await client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        await RestClient(app).delete("/v1/sessions/s")
        with pytest.raises(SessionErased):
            await session.send(numbered_transcript(2))
        with pytest.raises(SessionErased):
            await session.send(numbered_transcript(3))
        with pytest.raises(SessionErased):
            await client.open("s")


async def test_another_process_takes_over(app: App) -> None:
    """Once superseded, a client raises for all that is and will be sent, and never opens the session again."""
    async with client_to(app) as client:
        session, other = await client.open("s"), await client.open("other")
        await acknowledged_seqs(send_transcripts(session, [1]))
        async with connected_producer(app) as stranger:
            assert 2 == (await stranger.open("s"))["epoch"]
            with pytest.raises(Superseded):
                await session.send(numbered_transcript(2))
            with pytest.raises(Superseded):
                await session.send(numbered_transcript(3))
            with pytest.raises(Superseded):
                await session.flush()
            assert [1] == await acknowledged_seqs(send_transcripts(other, [1]))
            assert 3 == (await stranger.open("s"))["epoch"]
    assert transcripts_up_to(1) == await stored_transcripts(app)


# Reading


async def test_reading_what_was_acknowledged(app: App) -> None:
    """History and context show what is on disk, in the way that was asked for."""
    async with client_to(app) as client:
        session = await client.open("s", config={"llm": {"model": "m"}})
        send_transcripts(session, range(1, 4))
        session.send({"type": "llm.delta", "turn_id": 3, "text": "Well"})
        await session.flush()
        assert [f"Line {n}." for n in (1, 2, 3)] == [one["content"] for one in (await session.history())["contents"]]
        opened = await session.history(open=True, fields="standard", after_turn=2, limit=1)
        assert [{"role": "assistant", "content": "Well"}] == opened["contents"]
        body = await session.context(style="anthropic", max_history=1, enrich=["timestamps", "users"])
        assert ("m", "user", 1) == (body["model"], body["messages"][0]["role"], len(body["messages"]))
        recent = await session.context(policy="recent", max_messages=2, data=True)
        assert 2 == len(recent["messages"])
        window = await session.context(policy="window", max_tokens=1_000, context_window=8_000, usage=True)
        assert ("window", 8_000, []) == (window["policy"], window["context_window"], window["left_out"])
        assert [1, 2, 3] == [turn["turn_id"] for turn in await session.turns()]
        assert all(turn["marks"]["user_final"] for turn in await session.turns(marks=True))
        assert [] == (await session.memory())["summaries"]
        await session.end()

        async def state() -> Any:
            return (await session.history())["state"]

        await eventually("ended", state)  # the close is a commit of its own, behind the end's


async def test_a_refused_request_says_why(app: App) -> None:
    """An error answer has its code, detail and status."""
    async with client_to(app) as client:
        session = await client.open("s")
        with pytest.raises(RequestRefused) as refused:
            await session.context(enrich=["no_such_enricher"])
        assert ("invalid_query", 400) == (refused.value.code, refused.value.status)
        await RestClient(app).delete("/v1/sessions/s")
        with pytest.raises(RequestRefused) as refused:
            await session.history()
        assert ("unknown_session", 404) == (refused.value.code, refused.value.status)


async def test_reading_needs_a_rest_url(app: App) -> None:
    """A client without the URL of the REST API sends, and cannot read."""
    async with client_for(app.ingest_address) as client:
        session = await client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        with pytest.raises(ClientError, match="no_rest_url"):
            await session.history()


# Keys


async def test_a_key_lets_in(serve: Serve) -> None:
    """The key goes with the websocket and with requests."""
    app = await serve(admin_key=KEY)
    async with client_to(app, key=KEY) as client:
        session = await client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        assert 1 == len((await session.history())["contents"])


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_a_wrong_key_is_no_endless_loop(serve: Serve, key: str | None) -> None:
    """Whoever is not let in is told so at once, and from then on."""
    app = await serve(admin_key=KEY)
    async with client_to(app, key=key) as client:
        for _ in range(2):
            with pytest.raises(RequestRefused) as refused:
                await client.open("s")
            assert "unauthorized" == refused.value.code


async def test_a_key_without_the_scope_is_told(serve: Serve) -> None:
    """A key that may only read is no key for events."""
    app = await serve(admin_key=KEY)
    async with client_to(app, key=await make_key(app, "read")) as client:
        with pytest.raises(RequestRefused) as refused:
            await client.open("s")
        assert ("forbidden", 403) == (refused.value.code, refused.value.status)


# Closing


async def test_close_waits_for_what_was_sent(app: App) -> None:
    """Leaving the block waits until everything is on disk."""
    async with behind_proxy(app) as (proxy, client):
        proxy.to_client.latency_s = 0.1
        session = await client.open("s")
        acks = send_transcripts(session, range(1, 11))
    assert [*range(1, 11)] == await acknowledged_seqs(acks)
    with pytest.raises(Closed):
        await session.send(numbered_transcript(11))
    with pytest.raises(Closed):
        await client.open("t")


async def test_close_says_what_was_not_acknowledged(app: App) -> None:
    """After its time a close gives up, and says how much of which session; the acks raise too."""
    async with behind_proxy(app) as (proxy, client):
        session, quiet = await client.open("s"), await client.open("quiet")
        await acknowledged_seqs(send_transcripts(quiet, [1]))
        await proxy.down()
        acks = send_transcripts(session, range(1, 4))
        with pytest.raises(Unacknowledged) as told:
            await client.close(timeout=0.1)
        assert {"s": 3} == told.value.events
        for ack in acks:
            with pytest.raises(Closed):
                await ack
        await client.close()


async def test_an_error_in_the_block_is_not_hidden(app: App) -> None:
    """What went wrong in the block matters more than what was not acknowledged."""
    with pytest.raises(RuntimeError, match="mine"):
        await fail_in_the_block(app)


async def fail_in_the_block(app: App) -> None:
    async with behind_proxy(app) as (proxy, _), client_for(proxy.address, close_timeout_s=0.1) as client:
        session = await client.open("s")
        await proxy.down()
        session.send(numbered_transcript(1))
        raise RuntimeError("mine")


async def test_a_client_gives_up_when_told_to(app: App) -> None:
    """With a deadline, a server that stays away is an error, for opens as for acks."""
    async with behind_proxy(app, give_up_after_s=0.2) as (proxy, client):
        session = await client.open("s")
        await proxy.down()
        ack = session.send(numbered_transcript(1))
        with pytest.raises(Unreachable):
            await ack
        with pytest.raises(Unreachable):
            await client.open("t")
        with pytest.raises(Unreachable):
            await session.send(numbered_transcript(2))


async def test_a_store_that_is_down_acknowledges_nothing(serve: Serve, tmp_path: Any) -> None:
    """While the store is down nothing is acknowledged and nothing lost; once it is back all is stored."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with client_to(app) as client:
        session = await client.open("s")
        async with store_that_cannot_commit(app):
            acks = send_transcripts(session, range(1, 6))
            await asyncio.sleep(0.3)
            assert [False] * 5 == [ack.done() for ack in acks]
        assert [*range(1, 6)] == await acknowledged_seqs(acks)
    assert transcripts_up_to(5) == await stored_transcripts(app)
