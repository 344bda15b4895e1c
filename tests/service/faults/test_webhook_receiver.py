"""Faults of the webhook receiver (list E): the real sender and outbox against a receiver that misbehaves once and is
well afterwards. Whatever it did, the webhook arrives with one id and one content, and nothing grows without bound."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import gzip
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.callers.rest import LOOPBACK
from tests.support.clock import NOW, ManualClock
from tests.support.servers.certificates import self_signed_tls
from tests.support.servers.faulty_receivers import abort_connection, read_body, tcp_receiver
from tests.support.servers.resolver import FakeResolver
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, body_without_send_time, webhook_receiver
from tests.support.stores.outbox_rig import OutboxRig
from voicemem.security.address_guard import allowed_networks
from voicemem.store.sqlite.store import InMemoryStore
from voicemem.webhooks.outbox import RETRY_DELAYS_S
from voicemem.webhooks.requests import WebhookSender, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TIMEOUT_S = 1.0
"""Instead of 15 s."""
DAY_S = 86_400.0
MIB = 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
Misbehave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def office() -> AsyncIterator[OutboxRig]:
    """An empty store, a time that tests say, and the sender with a short time limit."""
    store = InMemoryStore()
    async with WebhookSender(allowed=allowed_networks(LOOPBACK), timeout_s=TIMEOUT_S) as sender:
        yield OutboxRig(store, sender, ManualClock())
    await store.close_store()


class Once:
    """A receiver on raw TCP that misbehaves on its first connection."""

    def __init__(self, misbehave: Misbehave) -> None:
        self.misbehave = misbehave
        self.bodies: list[bytes] = []
        self.calls = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        first = self.calls == 1
        self.bodies.append(await read_body(reader))
        if first:
            await self.misbehave(reader, writer)
        else:
            writer.write(OK)
            await writer.drain()


# What a receiver can do wrong with a request that it has read


async def nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def drip_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def drip_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while not reader.at_eof():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def answer(head: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 " + head + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    abort_connection(writer)


async def reset_in_head(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-")
    await writer.drain()
    await asyncio.sleep(0.05)
    abort_connection(writer)


async def pour(head: bytes, piece: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As many bytes as are taken."""
    writer.write(head)
    while not reader.at_eof():
        writer.write(piece)
        await writer.drain()


def after(seconds: float) -> bytes:
    """An HTTP date."""
    return format_datetime(datetime.fromtimestamp(NOW / 1000 + seconds, UTC), usegmt=True).encode()


BOMB = gzip.compress(bytes(50 * MIB), 9)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ZIPPED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB)


class Case(NamedTuple):
    """What a receiver does, and what the service makes of it: what it logs, and when it tries again."""

    fault: int
    name: str
    misbehave: Misbehave
    status: int | None
    error: str | None
    delay_s: float | None
    """With a jitter of one half: the schedule's own delay, a wish and a tenth. None when nothing follows."""
    delivered: bool = False


CASES = (
    Case(50, "never answers", nothing, None, "timeout", 5.5),
    Case(51, "drips its head", drip_head, None, "timeout", 5.5),
    Case(51, "drips its body", drip_body, 200, None, None, delivered=True),
    Case(52, "500", partial(answer, b"500 Oh"), 500, None, 0),
    Case(53, "503", partial(answer, b"503 Busy"), 503, None, 5.5),
    Case(53, "503, seconds", partial(answer, b"503 Busy\r\nRetry-After: 120"), 503, None, 132),
    Case(53, "503, fraction", partial(answer, b"503 Busy\r\nRetry-After: 7.5"), 503, None, 8.25),
    Case(53, "503, date", partial(answer, b"503 Busy\r\nRetry-After: " + after(600)), 503, None, 660),
    Case(53, "503, past date", partial(answer, b"503 Busy\r\nRetry-After: " + after(-600)), 503, None, 5.5),
    Case(53, "503, 10 years", partial(answer, b"503 Busy\r\nRetry-After: 315360000"), 503, None, DAY_S),
    Case(53, "503, date in 10 years", partial(answer, b"503 Busy\r\nRetry-After: " + after(3e8)), 503, None, DAY_S),
    Case(53, "503, negative", partial(answer, b"503 Busy\r\nRetry-After: -5"), 503, None, 5.5),
    Case(53, "503, garbage", partial(answer, b"503 Busy\r\nRetry-After: \xff soon;"), 503, None, 5.5),
    Case(53, "503, digits", partial(answer, b"503 Busy\r\nRetry-After: " + b"9" * 4000), 503, None, DAY_S),
    Case(54, "429", partial(answer, b"429 Slow Down"), 429, None, 5.5),
    Case(54, "429, seconds", partial(answer, b"429 Slow Down\r\nRetry-After: 30"), 429, None, 33),
    Case(55, "410", partial(answer, b"410 Gone"), 410, None, None),
    Case(57, "endless body", partial(pour, CHUNKED, b"10000\r\n" + b"x" * 65_536 + b"\r\n"), 200, None, None, True),
    Case(
        57,
        "endless head",
        partial(pour, b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 4000 + b"\r\n"),
        None,
        "bad_answer",
        0,
    ),
    Case(57, "gzip bomb", partial(pour, ZIPPED, BOMB), 200, None, None, True),
    Case(58, "processed, then a reset", reset, None, "reset", 0),
    Case(58, "processed, then a reset in the head", reset_in_head, None, "reset", 0),
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=pytest.mark.fault(case.fault)) for case in CASES]
)
async def test_a_receiver_that_misbehaves_once(office: OutboxRig, case: Case) -> None:
    """The attempt is bounded in time and memory, logged, and followed by a good one at the time that it should be."""
    receiver = Once(case.misbehave)
    async with tcp_receiver(receiver) as url:
        await office.store.directory.set_operator_endpoint(url, SECRET)
        key = await office.closed()
        tracemalloc.start()
        async with asyncio.timeout(30):
            assert 1 == await office.attempt()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * MIB  # the receiver's own buffers included
        delivery = await office.delivery(key)
        assert [(case.status, case.error)] == [(one.status, one.error) for one in delivery.attempts]
        assert len(delivery.attempts[0].excerpt) <= 256
        assert case.delay_s == await due_in_s(office)
        if case.delay_s is not None:
            await good_attempt(office, case.delay_s)
            assert 2 == receiver.calls
        expected = "delivered" if case.delivered or case.delay_s is not None else "failed"
        assert expected == (await office.delivery(key)).state
    assert 1 == len({body_without_send_time(body) for body in receiver.bodies})


async def due_in_s(office: OutboxRig) -> float | None:
    due = await office.due_in_s()
    return None if due is None else round(due, 3)


async def good_attempt(office: OutboxRig, delay_s: float) -> None:
    """The next attempt is made when it is due, and not before."""
    if delay_s:
        office.clock.wait(delay_s - 0.5)
        assert 0 == await office.attempt()
        office.clock.wait(0.5)
    assert 1 == await office.attempt()


# Where there is no one to talk to


@pytest.mark.fault(47)
async def test_a_receiver_that_refuses_connections(office: OutboxRig) -> None:
    """No one listens; when someone does, the webhook event comes."""
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    await office.store.directory.set_operator_endpoint(f"http://127.0.0.1:{port}/hook", SECRET)
    key = await office.closed()
    await office.attempt()
    bodies = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await read_body(reader))
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", port):
        assert 1 == await office.attempt()
    delivery = await office.delivery(key)
    assert ("delivered", ["refused", None]) == (delivery.state, [one.error for one in delivery.attempts])
    assert 1 == len(bodies)


@pytest.mark.fault(48)
async def test_a_name_that_does_not_resolve(office: OutboxRig) -> None:
    """A name server that fails is a failed attempt; the webhook event comes when it is back."""
    async with webhook_receiver() as hook, WebhookSender(resolver=FakeResolver([], ["127.0.0.1"])) as sender:
        await office.store.directory.set_operator_endpoint(hook.url(host="receiver.example"), SECRET)
        key = await office.closed()
        outbox = office.another(sender=sender)
        assert [1, 1] == [await office.attempt(outbox), await office.attempt(outbox)]
    delivery = await office.delivery(key)
    assert ("delivered", ["dns", None]) == (delivery.state, [one.error for one in delivery.attempts])
    assert 1 == len(hook.webhook_events)


@pytest.mark.fault(49)
async def test_a_certificate_that_nobody_vouches_for(office: OutboxRig, tmp_path: Path) -> None:
    """No byte of the webhook goes to a receiver that cannot be trusted; it is tried again until that is put right."""
    got = bytearray()

    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        got.extend(await reader.read())

    async with tcp_receiver(talk, self_signed_tls(tmp_path)) as url:
        await office.store.directory.set_operator_endpoint(url.replace("http:", "https:"), SECRET)
        key = await office.closed()
        await office.attempt()
    async with webhook_receiver() as hook:
        await office.store.directory.set_operator_endpoint(hook.url(), SECRET)
        assert 1 == await office.attempt()
    delivery = await office.delivery(key)
    assert ("delivered", ["tls", None]) == (delivery.state, [one.error for one in delivery.attempts])
    assert (b"", 1) == (bytes(got), len(hook.webhook_events))


@pytest.mark.fault(56)
@pytest.mark.parametrize("status", [b"301", b"302", b"303", b"307", b"308"])
async def test_a_redirect_to_an_internal_address(office: OutboxRig, status: bytes) -> None:
    """It is not followed, neither with the body nor without."""
    async with webhook_receiver() as inside:
        redirect = status + b" Elsewhere\r\nLocation: " + inside.url("/admin").encode()
        receiver = Once(partial(answer, redirect))
        async with tcp_receiver(receiver) as url:
            await office.store.directory.set_operator_endpoint(url, SECRET)
            key = await office.closed()
            assert [1, 1] == [await office.attempt(), await office.attempt()]
    delivery = await office.delivery(key)
    assert ("delivered", ["redirect", None]) == (delivery.state, [one.error for one in delivery.attempts])
    assert ([], 2) == (inside.webhook_events, receiver.calls)


@pytest.mark.fault(59)
async def test_a_name_that_moves_inside_between_two_attempts(office: OutboxRig) -> None:
    """The address of every connection is looked at, whatever the name meant before."""
    allowed = allowed_networks(["127.0.0.9"])  # where no one listens
    async with (
        webhook_receiver() as inside,
        WebhookSender(resolver=FakeResolver(["127.0.0.9"]), allowed=allowed, timeout_s=TIMEOUT_S) as before,
        WebhookSender(resolver=FakeResolver(["127.0.0.1"]), allowed=allowed, timeout_s=TIMEOUT_S) as after_it_moved,
    ):
        key = await office.closed(webhook={"url": inside.url(host="rebinding.example")})
        assert 1 == await office.attempt(office.another(sender=before))
        assert 1 == await office.attempt(office.another(sender=after_it_moved))
    errors = [attempt.error for attempt in (await office.delivery(key)).attempts]
    assert (["refused", "address_not_allowed"], []) == (errors, inside.webhook_events)


# An endpoint that changes between attempts


@pytest.fixture
async def failing() -> AsyncIterator[WebhookReceiver]:
    """A receiver that fails until it is told otherwise."""
    async with webhook_receiver() as receiver:
        receiver.otherwise = Reply(503)
        yield receiver


@pytest.mark.fault(60)
async def test_an_endpoint_that_is_deleted_between_attempts(office: OutboxRig, failing: WebhookReceiver) -> None:
    """Who is no receiver any more is not called again."""
    await office.store.directory.set_operator_endpoint(failing.url(), SECRET)
    await office.closed()
    await office.attempt()
    await office.store.directory.turn_off_operator_endpoint()
    office.clock.wait(DAY_S)
    assert [0, 1] == [await office.attempt(), len(failing.webhook_events)]
    assert await office.due_in_s() is None


@pytest.mark.fault(60)
async def test_an_endpoint_that_is_disabled_during_an_attempt(office: OutboxRig, failing: WebhookReceiver) -> None:
    """An attempt that fails after its endpoint was disabled by another one's 410 is the last."""
    gate = asyncio.Event()
    failing.replies = [Reply(503, gate=gate), Reply(410)]
    await office.store.directory.set_operator_endpoint(failing.url(), SECRET)
    slow = await office.closed("slow", "n1")
    attempt = asyncio.create_task(office.attempt())
    await failing.wait(1)
    gone = await office.closed("gone", "n2")
    await office.attempt(office.another())
    gate.set()
    await attempt
    office.clock.wait(DAY_S)
    assert [0, 2] == [await office.attempt(), len(failing.webhook_events)]
    assert ["failed", "failed"] == [(await office.delivery(key)).state for key in (slow, gone)]


@pytest.mark.fault(60)
async def test_a_session_that_is_erased_during_an_attempt(office: OutboxRig, failing: WebhookReceiver) -> None:
    """Its attempt comes to its end, and nothing of it is kept or sent again."""
    gate = asyncio.Event()
    failing.replies = [Reply(503, gate=gate)]
    await office.store.directory.set_operator_endpoint(failing.url(), SECRET)
    key = await office.closed()
    attempt = asyncio.create_task(office.attempt())
    await failing.wait(1)
    await office.store.retention.erase(key, office.clock())
    gate.set()
    await attempt
    office.clock.wait(DAY_S)
    assert [0, 1] == [await office.attempt(), len(failing.webhook_events)]
    assert [] == await office.store.deliveries.list_deliveries(key)


@pytest.mark.fault(61)
async def test_a_secret_that_is_changed_during_an_attempt(office: OutboxRig, failing: WebhookReceiver) -> None:
    """The attempt under way has the old signature, the next one the new: the same bytes, but for their time."""
    gate = asyncio.Event()
    failing.replies = [Reply(500, gate=gate), Reply()]
    await office.store.directory.set_operator_endpoint(failing.url(), "the old one")
    await office.closed()
    attempt = asyncio.create_task(office.attempt())
    await failing.wait(1)
    await office.store.directory.set_operator_endpoint(failing.url(), "the new one")
    gate.set()
    await attempt
    await office.attempt()
    first, second = failing.webhook_events
    assert body_without_send_time(first.body) == body_without_send_time(second.body)
    assert all(verify(first.headers, first.body, "the old one", NOW // 1000).values())
    assert all(verify(second.headers, second.body, "the new one", NOW // 1000).values())


@pytest.mark.fault(62)
async def test_a_receiver_that_is_dead_for_five_days(office: OutboxRig, failing: WebhookReceiver) -> None:
    """After three days it is not called for an old close any more, which stays there as failed; a new one arrives."""
    await office.store.directory.set_operator_endpoint(failing.url(), SECRET)
    old = await office.closed("old", "n1")
    began = office.clock()
    while office.clock() - began < 5 * DAY_S * 1000:
        await office.attempt()
        office.clock.wait(60 if office.clock() - began < 3_600_000 else 1800)
    delivery = await office.delivery(old)
    assert ("failed", len(RETRY_DELAYS_S) + 1) == (delivery.state, len(delivery.attempts))
    failing.otherwise = Reply()
    new = await office.closed("new", "n2")
    assert [1, 0] == [await office.attempt(), await office.attempt()]
    assert ["failed", "delivered"] == [(await office.delivery(key)).state for key in (old, new)]
    assert "n2" == failing.webhook_events[-1].id
    assert 1 == len(
        {
            body_without_send_time(webhook_event.body)
            for webhook_event in failing.webhook_events
            if webhook_event.id == "n1"
        }
    )
