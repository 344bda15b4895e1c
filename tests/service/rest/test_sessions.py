"""Sessions over REST: create, list, read, change, end, erase."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.support.callers.producer import send_over_websocket
from tests.support.callers.raw_http import raw_exchange
from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.rows import every_row
from tests.support.samples.session_configs import BAD_CONFIGS, SECRETS, URL, listed
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of an empty service."""
    return RestClient(await serve())


# Create


async def test_create_answers_201_with_the_session(api: RestClient) -> None:
    """A new session is shown as it is: running, empty, with its configuration."""
    answered = await api.post("/v1/sessions", {"session_id": "s", "name": "Call", "labels": {"line": "7"}})
    session = answered.json
    assert 201 == answered.status
    assert session.pop("started_at") > 1_700_000_000_000
    config = {"name": "Call", "labels": {"line": "7"}}
    assert {
        "session_id": "s",
        "state": "running",
        "reason": None,
        "ended_at": None,
        "position": 0,
        "config": config,
    } == session


@pytest.mark.parametrize("body", [b"", b"{}", b' {"session_id": null} '])
async def test_without_an_id_the_service_makes_one(api: RestClient, body: bytes) -> None:
    """An id of its own is given to every session that brings none."""
    ids = {(await api.post("/v1/sessions", body)).json["session_id"] for _ in range(3)}
    assert 3 == len(ids)
    assert all(re.fullmatch("[A-Za-z0-9._:-]{16,128}", one) for one in ids)


async def test_the_same_again_answers_200(api: RestClient) -> None:
    """Creating is safe to repeat, also when the keys come in another order and the call has ended."""
    config = {"name": "Call", "labels": {"a": "1", "b": "2"}, **SECRETS}
    created = await api.create(**config)
    again = await api.post("/v1/sessions", {**dict(reversed(config.items())), "session_id": "s"})
    assert (200, created) == (again.status, again.json)
    ended = await api.end()
    again = await api.post("/v1/sessions", {"session_id": "s", **config})
    assert (200, ended) == (again.status, again.json)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"name": "other"},
        {"name": "Call", "channel": "c"},
        {"name": "Call", "llm": {"api_key": "sk-other"}},
        {"name": "Call", "llm": {}, "webhook": {"secret": "x"}},
    ],
)
async def test_another_configuration_answers_409(api: RestClient, other: JsonObject) -> None:
    """An id that is taken by a different session is a conflict, also when only a secret differs."""
    before = await api.create(name="Call", llm={"api_key": "sk-one"})
    assert (409, "session_exists") == (await api.post("/v1/sessions", {"session_id": "s", **other})).problem
    assert before == await api.session()


async def test_true_is_not_one(api: RestClient) -> None:
    """Configurations are compared as JSON, where a boolean is no number."""
    await api.create(llm={"params": {"stream": 1}})
    again = await api.post("/v1/sessions", {"session_id": "s", "llm": {"params": {"stream": True}}})
    assert 409 == again.status


@every_row("field", ["name", "llm", "webhook", "labels", "interruptable", "idle_timeout"])
async def test_a_null_in_a_new_configuration_is_a_field_left_out(api: RestClient, field: str) -> None:
    """Nothing can be taken away from a session that is not there yet."""
    answered = await api.post("/v1/sessions", {"session_id": f"without-{field}", field: None})
    assert 201 == answered.status
    assert {} == answered.json["config"]


async def test_a_null_secret_can_be_repeated(api: RestClient) -> None:
    """The same body twice is the same session, whatever is null in it."""
    body = {"session_id": "s", "webhook": {"url": URL, "secret": None}}
    assert [201, 200] == [(await api.post("/v1/sessions", body)).status for _ in range(2)]


async def test_of_many_creates_at_once_one_is_first(api: RestClient) -> None:
    """However many callers create the same session at one time, there is one."""
    answers = await asyncio.gather(*(api.post("/v1/sessions", {"session_id": "s"}) for _ in range(10)))
    assert [200] * 9 + [201] == sorted(one.status for one in answers)


async def test_a_session_made_over_the_websocket_is_there(serve: Serve) -> None:
    """Both ways in make the same sessions."""
    app = await serve()
    await send_over_websocket(app, [final(1, "Hi.")], session={"name": "Call"})
    assert {"name": "Call"} == (await RestClient(app).session())["config"]
    assert 200 == (await RestClient(app).post("/v1/sessions", {"session_id": "s", "name": "Call"})).status


BAD_IDS = ["", ".", "..", "a b", "a/b", "ä", "a\n", "a\0", "x" * 129, "a%2Fb", "😀", 7, True, [], {}]


@every_row("session_id", BAD_IDS)
async def test_ids_that_cannot_be_are_refused(api: RestClient, session_id: Any) -> None:
    """A session id is 1 to 128 safe characters, and no segment that clients take out of paths."""
    assert (400, "invalid_field") == (await api.post("/v1/sessions", {"session_id": session_id})).problem
    assert [] == await listed(api)


@every_row("session_id", ["x" * 128, "...", ".a", "-", "a:b", "call.2026-11-21:07"])
async def test_every_allowed_id_can_be_read_again(app: App, session_id: str) -> None:
    """What may be an id works in a path, dots included."""
    await RestClient(app).create(session_id)
    raw = f"GET /v1/sessions/{session_id} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await raw_exchange(app, raw.encode())
    assert answer.startswith(b"HTTP/1.1 200")
    assert f'"session_id":"{session_id}"'.encode() in answer


@every_row("config", BAD_CONFIGS, ids=str)
async def test_bad_configurations_are_refused(api: RestClient, config: JsonObject) -> None:
    """What a session cannot be configured with is a 400, and makes no session."""
    assert (400, "invalid_field") == (await api.post("/v1/sessions", {"session_id": "s", **config})).problem
    assert [] == await listed(api)


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://[::1]/", "http://169.254.169.254/", "http://localhost/"])
async def test_private_receivers_are_refused(api: RestClient, url: str) -> None:
    """An address inside the operator's network cannot be a session's receiver, at creation or later."""
    hook = {"webhook": {"url": url}}
    assert (400, "address_not_allowed") == (await api.post("/v1/sessions", {"session_id": "no", **hook})).problem
    await api.create()
    refused = await api.patch("/v1/sessions/s", hook)
    assert ((400, "address_not_allowed"), True) == (refused.problem, "--allow-address" in refused.json["detail"])
    (error,) = (await api.send({"type": "session.update", "seq": 1, **hook}))["errors"]
    assert "address_not_allowed" == error["code"]
    assert {} == (await api.session())["config"]


# Read


@pytest.mark.parametrize("path", ["", "/history", "/context", "/turns", "/events"])
async def test_a_session_that_is_not_there_is_404(api: RestClient, path: str) -> None:
    """Nothing can be read of a session that was never made."""
    assert (404, "unknown_session") == (await api.get(f"/v1/sessions/nobody{path}")).problem


async def test_a_session_shows_what_was_acknowledged(api: RestClient) -> None:
    """Position and state are those after the last acknowledged event."""
    await api.create()
    for seq in range(1, 4):
        await api.send(final(seq, "Hi.", seq=seq))
        assert seq == (await api.session())["position"]
