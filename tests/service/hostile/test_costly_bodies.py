"""Bad input 137 to 140: bodies and frames that would be many objects, counted in what is allocated for them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.callers.bad_input import MIB, BadFrame, check_refusal, over_websocket_and_http
from tests.support.callers.rest import RestClient
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App

MANY = {
    "objects": b"[" + b"{}," * 340_000 + b"{}]",
    "numbers": b"[" + b"0," * 500_000 + b"0]",
    "texts": b"[" + b'"",' * 340_000 + b'""]',
    "lists": b'[{"a":[' + b"[[[]]]," * 140_000 + b"0]}]",
    "names": b"[{" + b",".join(b'"%d":0' % number for number in range(90_000)) + b',"a":[' + b"0," * 60_000 + b"0]}]",
}
PLACES = ["/v1/sessions", "/v1/sessions/s/messages", "/v1/sessions/s/fork", "/v1/sessions/s/chat/completions"]
HEAD = (
    b'{"checkpoint":{"voicemem":"checkpoint","version":1,"session":{"session_id":"s","state":"running","reason":null,'
    b'"started_at":1,"ended_at":null,"config":{}},"events":['
)
RESTORES = {
    "numbers": HEAD + b"0," * 8_000_000 + b'0],"sha256":""}}',
    "objects": HEAD + b"{}," * 5_000_000 + b'{}],"sha256":""}}',
    "one entry": HEAD + b'{"a":[' + b"[]," * 5_000_000 + b'0]}],"sha256":""}}',
    "a configuration": HEAD.replace(b'"config":{', b'"config":{"a":[' + b"0," * 8_000_000 + b"0]") + b"]}}",
    "names": b'{"checkpoint":{' + b'"voicemem":"checkpoint",' * 600_000 + b'"a":0}}',
}


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    """Fail if more than this is allocated at a time until the end of the block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


@over_websocket_and_http(BadFrame(f"137 {name}", frame, "too_big") for name, frame in MANY.items())
async def test_frames_of_many_values(app: App, caplog: pytest.LogCaptureFixture, bad: BadFrame, way: str) -> None:
    """A frame of a mebibyte that would be hundreds of thousands of objects is refused before any is made."""
    await check_refusal(app, bad, way, caplog)


@every_row("name", MANY)
@every_row("path", PLACES)
async def test_138_bodies_of_many_values(in_session: RestClient, path: str, name: str) -> None:
    """Wherever a body is read it is refused, with memory for a few copies of the text and nothing else."""
    body = b'{"a":' + MANY[name] + b"}"
    packed = gzip.compress(body)
    with little_memory(24 * MIB):
        answered = await in_session.call("POST", path, {"Content-Encoding": "gzip"}, data=packed)
    assert (413, "too_big") == answered.problem
    assert "values" in answered.json["detail"]


@pytest.mark.parametrize("name", RESTORES)
async def test_139_checkpoints_of_many_values(serve: Serve, name: str) -> None:
    """A few KiB that unpack to 16 MiB take the memory of their text, and are refused at the first bad entry."""
    api = RestClient(await serve())
    packed = gzip.compress(RESTORES[name])
    with little_memory(4 * len(RESTORES[name])):
        answered = await api.call("POST", "/v1/restore", {"Content-Encoding": "gzip"}, data=packed)
    assert answered.problem in ((400, "invalid_checkpoint"), (400, "invalid_json"))
    assert [] == (await api.get("/v1/sessions")).json["sessions"]


async def test_140_lines_of_nothing(serve: Serve) -> None:
    """A body of empty lines is refused before it is split."""
    api = RestClient(await serve())
    await api.create()
    with little_memory(6 * MIB):
        answered = await api.post("/v1/sessions/s/events", b'{"type":"interrupt"}' + b"\n" * (MIB - 100))
    assert (413, "too_big") == answered.problem
