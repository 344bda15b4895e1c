"""Events over HTTP, where the websocket cannot be reached: the same acks, the same order, and back again."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.callers.client_sessions import (
    acknowledged_seqs,
    client_for,
    numbered_transcript,
    send_transcripts,
    stored_transcripts,
    transcripts_up_to,
)
from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, make_key
from tests.support.servers.listeners import box_that_forbids_websockets
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.services import Serve
from tests.support.stores.failing import store_that_cannot_commit
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.client import Client, EventRefused, RequestRefused, SessionEnded, SessionErased, Superseded, Unreachable
from voicemem.runtime import now_ms

KEY = "0123456789abcdef"


class Network(NamedTuple):
    """A client whose two ways to the service are proxies."""

    websocket: NetworkProxy
    http: NetworkProxy
    client: Client

    async def uses(self, transport: str | None) -> None:
        """Wait until events go this way."""

        async def now() -> str | None:
            return self.client.transport

        await eventually(transport, now)


@asynccontextmanager
async def network_of(app: App, **more: Any) -> AsyncIterator[Network]:
    given = {"fallback_after": 2, **more}
    async with (
        NetworkProxy(app.ingest_address) as websocket,
        NetworkProxy(app.rest_address) as http,
        client_for(websocket.address, http.address, **given) as client,
    ):
        yield Network(websocket, http, client)


@pytest.fixture
async def network(app: App) -> AsyncIterator[Network]:
    """Two ways to the service, of which the websocket is closed."""
    async with network_of(app) as network:
        await network.websocket.down()
        yield network


async def test_a_call_over_http(app: App, network: Network) -> None:
    """A whole call without a websocket: opened, acknowledged, read, ended."""
    session = await network.client.open("s", config={"name": "Call"})
    assert ("http", None, None, 1) == (network.client.transport, session.epoch, session.incarnation, session.next_seq)
    assert [*range(1, 2001)] == await acknowledged_seqs(send_transcripts(session, range(1, 2001)))
    assert ["Line 2000."] == [one["content"] for one in (await session.history(limit=1))["contents"]]
    assert 2001 == await session.end("hangup")
    with pytest.raises(SessionEnded):
        await session.send(numbered_transcript(1))
    assert [*transcripts_up_to(2000), (2001, None)] == await stored_transcripts(app)
    shown = await RestClient(app).session()
    assert ({"name": "Call"}, "ended", "hangup") == (shown["config"], shown["state"], shown["reason"])


async def test_a_session_that_exists_is_gone_on_with(app: App, network: Network) -> None:
    """Over HTTP too a new process goes on behind what is stored, whatever configuration it would have given."""
    await RestClient(app).create(name="Other")
    await RestClient(app).send(*({"seq": n, **numbered_transcript(n)} for n in range(1, 8)))
    session = await network.client.open("s", config={"name": "Call"})
    assert (8, 8) == (session.next_seq, session.next_turn)
    await acknowledged_seqs(send_transcripts(session, range(8, 10)))
    assert transcripts_up_to(9) == await stored_transcripts(app)


async def test_the_websocket_takes_over_again(app: App, network: Network) -> None:
    """Once the websocket can be reached it is used, and nothing is stored twice or out of order."""
    session = await network.client.open("s")
    acks = send_transcripts(session, range(1, 51))
    await acknowledged_seqs(acks[:1])
    await network.websocket.up()
    for number in range(51, 151):
        acks.append(session.send(numbered_transcript(number)))
        await asyncio.sleep(0.005)
    assert [*range(1, 151)] == await acknowledged_seqs(acks)
    await network.uses("websocket")
    assert [151, 152] == await acknowledged_seqs(send_transcripts(session, [151, 152]))
    assert (1, app.services.store.directory.incarnation) == (session.epoch, session.incarnation)
    assert transcripts_up_to(152) == await stored_transcripts(app)


async def test_there_and_back_in_the_middle_of_a_call(app: App) -> None:
    """A call whose websocket comes and goes is stored once and in order."""
    async with network_of(app) as network:
        session = await network.client.open("s")
        acks = []
        for number in range(1, 301):
            acks.append(session.send(numbered_transcript(number)))
            await asyncio.sleep(0.005)
            if number % 100 == 20:
                await network.websocket.down()
            if number % 100 == 80:
                await network.websocket.up()
        assert [*range(1, 301)] == await acknowledged_seqs(acks)
    assert transcripts_up_to(300) == await stored_transcripts(app)


async def test_a_middle_box_that_forbids_websockets(app: App) -> None:
    """An answer that is not voicemem's is reason enough to use HTTP at once."""
    async with box_that_forbids_websockets() as blocked, client_for(blocked, app.rest_address) as client:
        assert [1, 2] == await acknowledged_seqs(send_transcripts(await client.open("s"), [1, 2]))
        assert "http" == client.transport


# What HTTP answers


async def test_refused_events_say_why(app: App, network: Network) -> None:
    """An event that is refused raises, and those around it are stored."""
    session = await network.client.open("s")
    one, bad, two = (
        session.send(numbered_transcript(1)),
        session.send({"type": "no.such.type"}),
        session.send(numbered_transcript(3)),
    )
    with pytest.raises(EventRefused) as refused:
        await bad
    assert ("unknown_type", 2) == (refused.value.code, refused.value.seq)
    assert [1, 3] == await acknowledged_seqs([one, two])


async def test_a_session_that_others_end(app: App, network: Network) -> None:
    """What was sent before the end is stored, what comes after raises."""
    session = await network.client.open("s")
    await acknowledged_seqs(send_transcripts(session, [1]))
    await RestClient(app).end()
    for ack in send_transcripts(session, [2, 3]):
        with pytest.raises(SessionEnded):
            await ack
    assert ("ended", transcripts_up_to(1)) == (session.state, await stored_transcripts(app))


async def test_a_session_that_is_erased(app: App, network: Network) -> None:
    """A session that is erased takes nothing more, and is not made again."""
    session = await network.client.open("s")
    await acknowledged_seqs(send_transcripts(session, [1]))
    await RestClient(app).delete("/v1/sessions/s")
    with pytest.raises(SessionErased):
        await session.send(numbered_transcript(2))
    with pytest.raises(SessionErased):
        await network.client.open("s")


async def test_a_bad_configuration_is_refused(network: Network) -> None:
    """An open that the server does not take raises what it said."""
    with pytest.raises(RequestRefused) as refused:
        await network.client.open("s", config={"no_such_setting": 1})
    assert ("invalid_field", 400) == (refused.value.code, refused.value.status)


async def test_a_wrong_key_is_no_endless_loop(serve: Serve) -> None:
    """Over HTTP too, who is not let in is told so."""
    async with network_of(await serve(admin_key=KEY)) as network:
        await network.websocket.down()
        with pytest.raises(RequestRefused) as refused:
            await network.client.open("s")
        assert ("unauthorized", 401) == (refused.value.code, refused.value.status)


async def test_a_key_may_be_revoked_in_the_middle(serve: Serve) -> None:
    """A client whose key is taken away fails, with everything that waits."""
    app = await serve(admin_key=KEY)
    key = await make_key(app, "ingest")
    async with network_of(app, key=key) as network:
        await network.websocket.down()
        session = await network.client.open("s")
        assert 1 == session.next_turn
        await acknowledged_seqs(send_transcripts(session, [1]))
        (one,) = [one for one in await app.services.store.directory.list_keys() if one.name == "test"]
        await app.services.store.directory.revoke_key(one.id, now_ms())
        with pytest.raises(RequestRefused) as refused:
            await session.send(numbered_transcript(2))
        assert "unauthorized" == refused.value.code
        with pytest.raises(RequestRefused):
            await network.client.open("t")


async def test_a_store_that_is_down(serve: Serve, tmp_path: Path) -> None:
    """While the store is down nothing is acknowledged; once it is back all is stored."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with network_of(app) as network:
        await network.websocket.down()
        session = await network.client.open("s")
        async with store_that_cannot_commit(app):
            acks = send_transcripts(session, [1, 2])
            await asyncio.sleep(0.3)
            assert [False, False] == [ack.done() for ack in acks]
        assert [1, 2] == await acknowledged_seqs(acks)
    assert transcripts_up_to(2) == await stored_transcripts(app)


async def test_answers_that_are_lost(app: App) -> None:
    """A body whose answer is lost is posted again, and its events are stored once."""
    async with network_of(app, request_timeout_s=0.3) as network:
        await network.websocket.down()
        session = await network.client.open("s")
        network.http.to_client.swallow = True
        acks = send_transcripts(session, range(1, 21))
        await eventually(transcripts_up_to(20), lambda: stored_transcripts(app))
        network.http.to_client.swallow = False
        assert [*range(1, 21)] == await acknowledged_seqs(acks)
    assert transcripts_up_to(20) == await stored_transcripts(app)


async def test_nothing_can_be_reached(app: App, network: Network) -> None:
    """While neither way is open events are kept; they go by the first that opens."""
    session = await network.client.open("s")
    await network.http.down()
    acks = send_transcripts(session, range(1, 11))
    await asyncio.sleep(0.1)
    assert not acks[0].done()
    await network.http.up()
    assert [*range(1, 11)] == await acknowledged_seqs(acks)
    assert transcripts_up_to(10) == await stored_transcripts(app)


async def test_giving_up(app: App) -> None:
    """With a deadline, a client that reaches the server on no way fails."""
    async with network_of(app, give_up_after_s=0.3) as network:
        await network.websocket.down()
        session = await network.client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        await network.http.down()
        with pytest.raises(Unreachable):
            await session.send(numbered_transcript(2))


async def test_reading_is_tried_again(app: App) -> None:
    """A history whose connection breaks is asked for again; one that is refused is not."""
    async with network_of(app) as network:
        session = await network.client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        network.http.to_client.limit_bytes, network.http.to_client.limit_once = 10, True
        assert 1 == len((await session.history())["contents"])
        assert network.http.to_client.limit_bytes is None
        await network.http.down()
        with pytest.raises(Unreachable):
            await session.history()


# Epochs


async def test_a_stranger_is_noticed_over_http(app: App) -> None:
    """A session that was opened by websocket is fenced over HTTP too: who is superseded is told."""
    async with network_of(app) as network:
        session = await network.client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        await network.websocket.down()
        assert [2] == await acknowledged_seqs(send_transcripts(session, [2]))
        await network.uses("http")
        async with connected_producer(app) as stranger:
            await stranger.open("s")
            with pytest.raises(Superseded):
                await session.send(numbered_transcript(3))
            await network.websocket.up()
            await network.uses("websocket")
            assert 3 == (await stranger.open("s"))["epoch"]
    assert transcripts_up_to(2) == await stored_transcripts(app)


async def test_a_client_does_not_supersede_itself(app: App) -> None:
    """An open whose answer was lost may have raised the epoch; over HTTP the client then does not insist on its own."""
    async with network_of(app, connect_timeout_s=0.5) as network:
        session = await network.client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        network.websocket.to_client.limit_bytes = 240  # the handshake's answer comes through, no more
        network.websocket.cut()
        await eventually(True, lambda: epoch_is_above(app, 1))
        await network.websocket.down()
        assert [2, 3] == await acknowledged_seqs(send_transcripts(session, [2, 3]))
        assert "http" == network.client.transport
    assert transcripts_up_to(3) == await stored_transcripts(app)


async def epoch_is_above(app: App, epoch: int) -> bool:
    """Whether the producer's epoch is another one: an event that is there is no duplicate any more, but superseded."""
    answer = await RestClient(app).send({"seq": 1, **numbered_transcript(1)}, query=f"?epoch={epoch}")
    return [error["code"] for error in answer["errors"]] == ["superseded"]
