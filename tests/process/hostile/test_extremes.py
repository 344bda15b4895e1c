"""A call of one extreme shape takes little memory from its first event until it is sent away and exported.

Each shape has a process of its own. Its bound is what it takes above the same process at rest, at its worst.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

from tests.support.events import event, final, typed
from tests.support.processes.measured_process import MIB, MeasuredProcess, measured_process
from tests.support.rows import every_row
from tests.support.servers.webhook_receiver import WebhookEvent, WebhookReceiver, webhook_receiver

EVENTS = (102, 103, 111, 112, 1001)
AT_ONCE = 500
READ = ("history", "turns?marks=true", "context?tools=true", "export?format=markdown", "export?format=jsonl")
WORDS = " ".join(f"{number * 7919 % 100_003:x}" for number in range(40_000))


class Shape(NamedTuple):
    """The events of a call, how many requests bring them, and how many MiB it may take."""

    name: str
    events: Callable[[], Iterable[Any]]
    most_mib: int
    at_once: int = AT_ONCE


def text(number: int, size: int) -> str:
    """A text like no other."""
    first = number * 613 % (len(WORDS) - size)
    return f"{number} {WORDS[first : first + size]}"


def calls_of_tools(count: int) -> Iterable[Any]:
    for n in range(count):
        about = {"call_id": f"c{n}"}
        yield event("tool.call", 1, n, name="find", arguments={"query": text(n, 200)}, **about)
        yield event("tool.result", 1, n, result=text(n, 200), **about)


SHAPES = [
    Shape(
        "one speaker's long texts in one turn",
        lambda: (final(1, text(n, 200_000), n, item=f"i{n}") for n in range(80)),
        130,
        4,
    ),
    Shape("many speakers in one turn", lambda: (final(1, text(n, 100), n, user=f"u{n}") for n in range(50_000)), 150),
    Shape("turns of many messages", lambda: (typed(n // 6_000, text(n, 100), n) for n in range(60_000)), 100),
    Shape("many tool calls with results in one turn", lambda: calls_of_tools(25_000), 100),
]


async def send(http: aiohttp.ClientSession, path: str, body: Any) -> None:
    async with http.post(path, data=msgspec.json.encode(body)) as answer:
        assert answer.status < 300, await answer.text()


async def read(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as answer:
        assert answer.status == 200, await answer.text()
        async for _ in answer.content.iter_any():
            pass


def kind_of(one: WebhookEvent) -> int:
    found = re.search(rb'"eventType":(\d+)', one.body[:500])
    assert found is not None
    return int(found[1])


async def whole_call(service: MeasuredProcess, receiver: WebhookReceiver, name: str, shape: Shape) -> None:
    """A call that is recorded, read in all forms, ended, delivered and erased."""
    async with aiohttp.ClientSession(service.url) as http:
        webhook = {"url": receiver.url(), "event_types": EVENTS, "include": ["tools"]}
        await send(http, "/v1/sessions", {"session_id": name, "webhook": webhook})
        events = iter(shape.events())
        while some := [*islice(events, shape.at_once)]:
            await send(http, f"/v1/sessions/{name}/events", some)
        for path in READ:
            await read(http, f"/v1/sessions/{name}/{path}")
        await send(http, f"/v1/sessions/{name}/end", {})
        while {kind_of(one) for one in receiver.webhook_events} < {*EVENTS}:
            await receiver.wait(len(receiver.webhook_events) + 1, 60)
        await read(http, "/v1/exports?format=vcon")
        async with http.delete(f"/v1/sessions/{name}") as answer:
            assert answer.status < 300, await answer.text()


@pytest.mark.long
@every_row("shape", SHAPES, ids=[shape.name for shape in SHAPES])
async def test_a_call_of_an_extreme_shape_takes_little_memory(shape: Shape, tmp_path: Path) -> None:
    """Whatever a turn is made of, and whatever is done with it, the process grows by less than the shape's bound."""
    store = f"sqlite:{tmp_path}/{SHAPES.index(shape)}.db"
    flags, rate = ("--allow-address", "127.0.0.0/8"), {"VOICEMEM_REQUEST_RATE": "0"}
    async with webhook_receiver() as receiver, measured_process(store, *flags, **rate) as service:
        await whole_call(service, receiver, "warm-up", Shape("small", lambda: calls_of_tools(3), 0))
        receiver.webhook_events.clear()
        before = service.memory()
        service.forget_peak()
        await whole_call(service, receiver, "extreme", shape)
        grown = (service.peak() - before) / MIB
        assert grown < shape.most_mib, grown
