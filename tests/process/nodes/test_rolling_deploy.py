"""Every node of a PostgreSQL store is stopped and replaced in turn, while calls run on them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from bench.harness.node_processes import Proxy
from tests.support.callers.producer import open_producer
from tests.support.callers.rest import RestClient
from tests.support.postgresql import database_of, server
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.waiting import eventually
from voicemem.client import Client, Options
from voicemem.client.session import ProducerSession
from voicemem.config.service import Address

pytestmark = pytest.mark.postgresql
CALLS = 4
QUIET = "quiet"
IDLE_S = 2
"""A session without any producer is closed after this: also one whose node is replaced must not count as such."""
OPTIONS = Options(open_timeout_s=15, close_timeout_s=15)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with database_of(tmp_path) as name:
        yield server().url(name)


class Fleet:
    """Two nodes behind a proxy, each on ports that the node after it takes over."""

    def __init__(self, url: str, folder: Path, hook: WebhookReceiver) -> None:
        self.url = url
        self.folder = folder
        self.hook = hook
        ports = free_ports(4)
        self.ports = [(ports[0], ports[1]), (ports[2], ports[3])]
        self.nodes: list[ServiceProcess] = []
        self.proxy = Proxy([Address("127.0.0.1", ingest) for _, ingest in self.ports])
        self.stack = AsyncExitStack()
        self.started = count(1)

    async def start(self, place: int) -> ServiceProcess:
        """A new node at a place."""
        rest, ingest = self.ports[place]
        return await self.stack.enter_async_context(
            running_process(
                self.folder / f"node-{next(self.started)}",
                *("--webhook-url", self.hook.url()),
                url=self.url,
                rest=rest,
                ingest=ingest,
            )
        )

    async def replace(self, place: int) -> None:
        """Stop a node as an operator does, and start another in its place."""
        assert 0 == await self.nodes[place].stop()
        self.nodes[place] = await self.start(place)
        assert 200 == (await self.nodes[place].api.get("/readyz")).status


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    """The operator's receiver."""
    async with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
async def fleet(url: str, tmp_path: Path, hook: WebhookReceiver) -> AsyncIterator[Fleet]:
    """Two nodes that run."""
    one = Fleet(url, tmp_path, hook)
    async with one.stack:
        one.nodes = list(await asyncio.gather(one.start(0), one.start(1)))
        await one.proxy.start()
        one.stack.push_async_callback(one.proxy.stop)
        yield one


class Caller:
    """A call that goes on all the time: its producers speak in turn, each over the connection that it gets."""

    def __init__(self, producers: dict[str, ProducerSession]) -> None:
        self.producers = producers
        self.sent: Counter[str] = Counter()
        self.over = asyncio.Event()

    async def speak(self) -> None:
        for turn in count(1):
            for name, producer in self.producers.items():
                event = {"type": "asr", "text": f"Line {turn}.", "final": True}
                await producer.send({**event} if name == "asr" else {"type": "llm.done", "text": f"Answer {turn}."})
                self.sent[name] += 1
            if self.over.is_set():
                break
            await asyncio.sleep(0.01)
        for name, producer in self.producers.items():
            self.sent[name] += 1
            await producer.end("hangup")


@asynccontextmanager
async def opened(fleet: Fleet, session_id: str) -> AsyncIterator[Caller]:
    """A call whose two producers sit on two nodes."""
    async with AsyncExitStack() as stack:
        producers, nodes = {}, set()
        for name in ("asr", "llm"):
            client = await stack.enter_async_context(Client(f"ws://{fleet.proxy.address}", options=OPTIONS))
            config = {"idle_timeout": IDLE_S}
            producers[name] = await client.open(session_id, producer=name, config=config)
            nodes.add(fleet.proxy.newest)
        assert 2 == len(nodes)
        yield Caller(producers)


async def journal(api: RestClient, session_id: str) -> tuple[Counter[tuple[str | None, int | None]], list[str]]:
    """How often each event is stored, and what the service itself has written."""
    lines = (await api.get(f"/v1/sessions/{session_id}/events")).lines
    stored = Counter((one["producer"], one["seq"]) for one in lines if one["seq"])
    return stored, [one["event"]["type"] for one in lines if not one["seq"]]


async def test_a_rolling_deploy_loses_no_event_and_closes_no_session(fleet: Fleet, hook: WebhookReceiver) -> None:
    """Both nodes are replaced; calls go on, also quiet ones, nothing is stored twice, and each webhook comes once."""
    async with AsyncExitStack() as stack:
        callers = {f"call-{one}": await stack.enter_async_context(opened(fleet, f"call-{one}")) for one in range(CALLS)}
        quiet = await stack.enter_async_context(opened(fleet, QUIET))
        speaking = [asyncio.create_task(caller.speak()) for caller in callers.values()]
        await fleet.replace(0)
        callers["call-0"].over.set()  # this one ends while the second node is replaced
        await fleet.replace(1)
        await asyncio.sleep(IDLE_S)  # were a session taken for silent, it would be closed by now
        for caller in callers.values():
            caller.over.set()
        await asyncio.gather(*speaking)
        assert [2, 3] == sorted(producer.epoch or 0 for producer in quiet.producers.values())  # one moved twice
        await quiet.producers["asr"].send({"type": "asr", "turn_id": 1, "text": "Still here.", "final": True})
        quiet.sent["asr"] += 1
        quiet.over.set()
        for name, producer in quiet.producers.items():
            quiet.sent[name] += 1
            await producer.end("hangup")
    api = fleet.nodes[0].api
    for session_id, caller in {**callers, QUIET: quiet}.items():
        stored, own = await journal(api, session_id)
        assert Counter((name, seq) for name, last in caller.sent.items() for seq in range(1, last + 1)) == stored
        assert ["session.closed"] == own
    expected = {session_id: 1 for session_id in (*callers, QUIET)}
    await eventually(expected, lambda: heard(hook))
    assert 0 == await fleet.nodes[0].stop()
    assert expected == await heard(hook)


async def heard(hook: WebhookReceiver) -> Counter[str]:
    """How often each session's webhook came."""
    return Counter(webhook_event.payload["agent_id"] for webhook_event in hook.webhook_events)


async def test_a_node_that_drains_says_goodbye_and_its_producer_goes_on_elsewhere(fleet: Fleet) -> None:
    """SIGTERM: goaway, what was sent is acknowledged, 1012; the other node takes the producer where it stood."""
    one, other = fleet.nodes
    async with open_producer(other, producer="llm") as llm, open_producer(one, producer="asr") as asr:
        await asr.store({"seq": 1, "type": "asr", "turn_id": 1, "text": "Hello?", "final": True})
        stopping = asyncio.create_task(one.stop())
        code, frames = await asr.closed()
        assert (1012, ["goaway"]) == (code, [frame["type"] for frame in frames])
        async with open_producer(other, producer="asr") as moved:
            assert 0 == await stopping
            await moved.store({"seq": 2, "type": "asr", "turn_id": 2, "text": "Are you there?", "final": True})
            await llm.store({"seq": 1, "type": "llm.done", "turn_id": 2, "text": "I am."})
            assert "running" == (await other.api.session("s"))["state"]
    contents = (await other.api.get("/v1/sessions/s/history")).json["contents"]
    assert ["Hello?", "Are you there?", "I am."] == [one["content"] for one in contents]
