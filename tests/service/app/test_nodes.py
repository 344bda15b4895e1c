"""Several whole services on one store: calls whose producers sit on both, and nodes that come and go."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from tests.support.callers.gateway import ask, openai_client, user_message
from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.callers.tail_reader import open_tail
from tests.support.events import final_transcript, session_end
from tests.support.servers.llm_server import Script, llm_server
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, webhook_receiver
from tests.support.services import node_on
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.runtime import now_ms
from voicemem.sessions.tails import tail as tails
from voicemem.store.records import Node
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.store.streams import Stream


@pytest.fixture
async def store() -> AsyncIterator[InMemoryStore]:
    """A store that several nodes may have."""
    store = InMemoryStore(exclusive=False)
    yield store
    await store.close_store()


@pytest.fixture
async def nodes(store: InMemoryStore) -> AsyncIterator[tuple[App, App]]:
    """Two services on it."""
    async with node_on(store) as one, node_on(store) as other:
        yield one, other


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    """A receiver of webhooks."""
    async with webhook_receiver() as receiver:
        yield receiver


async def row(store: InMemoryStore, session_id: str = "s") -> Stream:
    stream = await store.journal.find_session("default", session_id)
    assert stream is not None
    return stream


async def hang_up(producer: Producer, store: InMemoryStore, left: set[str]) -> None:
    """Close a connection on purpose, and wait until these producers are left that are connected."""

    async def connected() -> set[str]:
        query = "select name from producers where node is not null"
        return await store.database.read(lambda connection: {str(name) for (name,) in connection.rows(query)})

    await producer.socket.close()
    await eventually(left, connected)


async def test_last_words_of_a_producer_on_another_node_are_stored(nodes: tuple[App, App]) -> None:
    """An end on one node waits for a producer that is connected to the other."""
    here, there = nodes
    async with open_producer(here, producer="asr") as asr, open_producer(there, producer="llm") as llm:
        await asr.store(final_transcript(1), session_end(2))
        await llm.store(final_transcript(1), session_end(2))
        await eventually("ended", RestClient(here).state)
    kinds = [entry["event"]["type"] for entry in await RestClient(there).journal()]
    assert ["asr", "session.end", "asr", "session.end", "session.closed"] == kinds


async def test_a_call_with_a_quiet_producer_elsewhere_is_not_silent(
    nodes: tuple[App, App], store: InMemoryStore
) -> None:
    """A session falls silent with its last connection, whichever node that is on."""
    here, there = nodes
    async with open_producer(here, producer="asr") as asr, open_producer(there, producer="llm") as llm:
        await hang_up(asr, store, {"llm"})
        assert None is (await row(store)).silent_since_ms
        await hang_up(llm, store, set())
        assert None is not (await row(store)).silent_since_ms


async def test_a_producer_that_has_moved_is_connected(nodes: tuple[App, App], store: InMemoryStore) -> None:
    """Its old connection is told that it is superseded, although it sends nothing, and its end changes nothing."""
    here, there = nodes
    async with open_producer(here) as before, open_producer(there) as now:
        await before.expect_error("superseded")
        await before.socket.close()
        await eventually(0, lambda: asyncio.sleep(0, len(here.services.presence.connected)))
        assert None is (await row(store)).silent_since_ms
        await now.store(final_transcript(1))


async def test_the_start_of_a_node_changes_nothing_for_others(nodes: tuple[App, App], store: InMemoryStore) -> None:
    """A session that runs quietly on another node is not silent, and an end that waits is not put off."""
    async with open_producer(nodes[0]), open_producer(nodes[0], "t", producer="a") as other:
        await open_producer(nodes[1], "t", producer="b").__aenter__()
        await other.store(session_end(1))
        before = await row(store, "t")
        async with node_on(store):
            assert None is (await row(store)).silent_since_ms
            assert before.ending_ms == (await row(store, "t")).ending_ms


async def test_the_start_of_a_node_sends_nothing_twice(store: InMemoryStore, hook: WebhookReceiver) -> None:
    """What a node is sending is leased to it, also while another one starts."""
    gate = asyncio.Event()
    hook.replies = [Reply(gate=gate)]
    async with node_on(store, webhook_url=hook.url()) as here:
        async with open_producer(here) as producer:
            await producer.store(final_transcript(1), session_end(2))
        await hook.wait(1)
        async with node_on(store, webhook_url=hook.url()) as there:
            assert 0 == await there.services.outbox.start_due()
            gate.set()
            await eventually([], lambda: pending(store))
    assert 1 == len(hook.webhook_events)


async def pending(store: InMemoryStore) -> list[str]:
    deliveries = await store.deliveries.list_deliveries((await row(store)).key)
    return [delivery.notice_id for delivery in deliveries if delivery.state == "pending"]


async def test_a_node_without_a_webhook_leaves_that_of_others(store: InMemoryStore, hook: WebhookReceiver) -> None:
    """The operator's webhook is one for all nodes: it stays until a node is told to turn it off."""
    async with node_on(store, webhook_url=hook.url()) as here, node_on(store):
        async with open_producer(here) as producer:
            await producer.store(final_transcript(1), session_end(2))
        await hook.wait(1)
        async with node_on(store, webhook_url="none"):
            assert await store.endpoints.find_operator_endpoint() is None


async def test_one_name_is_given_once(nodes: tuple[App, App]) -> None:
    """Of several joins under one name at once, on any node, one gets it."""
    given = {"name": "desk"}
    joins = [app.services.sessions.create("default", None, given, takes_name=True) for app in nodes * 5]
    joined = await asyncio.gather(*joins, return_exceptions=True)
    assert 1 == sum(isinstance(one, tuple) for one in joined)
    assert ["session_exists"] * 9 == [one.code for one in joined if isinstance(one, Refused)]


async def test_tails_are_woken_by_other_nodes(nodes: tuple[App, App], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node journals is told by the tails of another at once, and not only at their next look by themselves."""
    monkeypatch.setattr(tails, "POLL_S", 3600.0)
    here, there = nodes
    async with open_producer(there) as producer, open_tail(RestClient(here)) as tail:
        for seq in range(1, 4):
            await producer.store(final_transcript(seq))
            told = await tail.next()
            assert told is not None
            assert seq == told.data["seq"]


async def test_tails_are_told_of_erasures_on_other_nodes(
    nodes: tuple[App, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that another node erases ends in the tail at once."""
    monkeypatch.setattr(tails, "POLL_S", 3600.0)
    here, there = nodes
    async with open_producer(there) as producer, open_tail(RestClient(here)) as tail:
        await producer.store(final_transcript(1))
        told = await tail.next()
        assert told is not None
        assert 1 == told.data["seq"]
        await RestClient(there).delete("/v1/sessions/s")
        told = await tail.next()
        assert told is not None
        assert ("end", "erased") == (told.event, told.data["state"])


async def test_a_node_that_is_gone_is_retired(store: InMemoryStore) -> None:
    """Its producers count as gone once its lease is over, so their sessions fall silent, and close."""
    now = now_ms()
    async with node_on(store) as app:
        await store.nodes.start_node(Node(token="gone", started_ms=now - 20_000, expires_ms=now + 500), now)
        config = validate_config({"idle_timeout": 0.2})
        await store.journal.open_producer("default", "s", "main", config, None, now, None, "gone")
        await eventually(["gone"], lambda: tokens(store, but=app))
        await eventually([], lambda: tokens(store, but=app))
        await eventually("ended", RestClient(app).state)
        assert "idle" == (await RestClient(app).session())["reason"]


async def tokens(store: InMemoryStore, but: App) -> list[str]:
    """The nodes that are registered besides one."""
    return [node.token for node in await store.nodes.list_nodes() if node.token != but.services.node.token]


async def test_a_node_that_was_taken_for_dead_starts_again(nodes: tuple[App, App], store: InMemoryStore) -> None:
    """It closes its connections, so that producers open again, and goes on under another token."""
    here = nodes[0]
    before = here.services.node.token
    async with open_producer(here) as producer:
        await store.nodes.retire_node(before, now_ms())
        assert None is not (await row(store)).silent_since_ms
        assert 1012 == (await producer.closed())[0]
    assert before != here.services.node.token
    async with open_producer(here):
        assert None is (await row(store)).silent_since_ms
    assert {app.services.node.token for app in nodes} == {node.token for node in await store.nodes.list_nodes()}


async def test_each_node_names_itself_in_its_metrics(nodes: tuple[App, App]) -> None:
    """By the token that `/readyz` says, also when it goes on under another one; a node that is alone has no name."""

    async def names(app: App) -> list[str]:
        shown = (await RestClient(app).get("/metrics")).body.decode()
        return re.findall(r'^voicemem_node_info\{address="127.0.0.1:\d+",node="(\w+)"\} 1\.0', shown, re.MULTILINE)

    for app in nodes:
        assert [app.services.node.token] == await names(app)
        assert app.services.node.token == (await RestClient(app).get("/readyz")).json["node"]
    here = nodes[0].services.node
    before = here.token
    await here.store.nodes.retire_node(before, now_ms())
    await eventually(True, lambda: asyncio.sleep(0, here.token != before))
    assert [here.token] == await names(nodes[0])


async def test_another_incarnation_is_told_to_everybody(nodes: tuple[App, App], store: InMemoryStore) -> None:
    """Producers open again, and see it; tails end, and their places are refused; nothing cached is believed."""
    here = nodes[0]
    before, api = store.directory.incarnation, RestClient(here)
    async with open_producer(here) as producer, open_tail(api) as tail:
        await producer.store(final_transcript(1, "Hello.", turn_id=1))
        assert 1 == len(await tail.some(1))
        assert ["Hello."] == [one["content"] for one in await api.contents()]
        assert here.services.read_models.cached
        await store.nodes.renew_incarnation(now_ms())
        assert 1012 == (await producer.closed())[0]
        await tail.rest()
        assert {} == here.services.read_models.cached
    async with connected_producer(here) as producer:
        ready = await producer.open("s", from_seq=3)
        assert (3, store.directory.incarnation) == (ready["next_seq"], ready["incarnation"])
    assert before != store.directory.incarnation
    assert "session.gap" in [entry["event"]["type"] for entry in await api.journal()]


async def test_nodes_share_the_rates_of_keys(store: InMemoryStore) -> None:
    """Each gives an equal part from its start on, and all of it again once it is alone."""
    async with node_on(store) as here:
        share = here.services.limits.share
        async with node_on(store) as there:
            assert 2 == there.services.limits.share.nodes
            await eventually(2, lambda: asyncio.sleep(0, share.nodes))
        await eventually(1, lambda: asyncio.sleep(0, share.nodes))


async def test_a_clean_stop_leaves_nothing_to_wait_for(store: InMemoryStore) -> None:
    """The node is forgotten at once, and its producers are expected elsewhere."""
    async with node_on(store) as here:
        async with node_on(store) as there, connected_producer(there) as producer:
            await producer.open()
        assert [here.services.node.token] == [node.token for node in await store.nodes.list_nodes()]
        assert None is not (await row(store)).silent_since_ms


async def test_a_reply_under_way_on_another_node_is_not_closed(store: InMemoryStore) -> None:
    """A request of the same session to another node leaves it as it is, and its words are taken once."""
    async with (
        llm_server(Script(["One. ", "Two."], hold_after=2)) as llm,
        node_on(store, llm_url=llm.url) as here,
        node_on(store, llm_url=llm.url) as there,
        openai_client(here) as client,
        openai_client(there) as other,
    ):
        api = RestClient(here)
        await api.create()
        stream = await client.chat.completions.create(model="any", messages=user_message("Hi."), stream=True)
        await anext(stream)
        await eventually(["message", "llm.delta"], lambda: kinds(api))
        llm.then(Script(["Yes."], id="other"))
        assert "Yes." == await ask(other, "And now?")
        ends = [entry["event"] for entry in await api.journal() if entry["event"]["type"] == "llm.done"]
        assert ["other"] == [end["item"] for end in ends]
        llm.go_on.set()
        assert "One. Two." == "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        await eventually(set(), lambda: replies(store))


async def replies(store: InMemoryStore) -> set[str]:
    return await store.claims.list_replies((await row(store)).key)


async def kinds(api: RestClient) -> list[str]:
    return [entry["event"]["type"] for entry in await api.journal()]


class TimedStore(InMemoryStore):
    """A store with a clock of its own, an hour ahead of everybody's."""

    async def read_clock(self) -> int | None:
        return now_ms() + 3_600_000


async def test_nodes_go_by_the_clock_of_the_store() -> None:
    """However wrong their own clocks are, they agree on the time."""
    store = TimedStore(exclusive=False)
    async with (
        node_on(store, clock=lambda: now_ms() - 300_000) as slow,
        node_on(store, clock=lambda: now_ms() + 300_000) as fast,
    ):
        for app in (slow, fast):
            assert abs(app.services.runtime.clock() - now_ms() - 3_600_000) < 60_000
            await RestClient(app).create(app.services.node.token)
        await slow.services.node.beat()
        assert 2 == len(await store.nodes.list_nodes())
    await store.close_store()
