"""A project that has used up a quota: no way in is a side door."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.callers.signed_hooks import BODIES, SECRET, body_of, send_hook, signature_of
from tests.support.events import final
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App

QUOTA = (429, "quota_exceeded")
BYTES = 100_000
LARGE = "x" * 50_000
CALL = "/v1/sessions/call"
AGENTS = "/api/conversational-ai-agent/v2/projects/default"


class Way(NamedTuple):
    """A request that stores something for its caller."""

    method: str
    path: str
    body: Any


WAYS = (
    Way("PATCH", CALL, {"system_messages": [{"role": "system", "content": LARGE}]}),
    Way("PUT", f"{CALL}/data", {"text": LARGE}),
    Way("PATCH", f"{CALL}/data", {"text": LARGE}),
    Way("PUT", f"{CALL}/working-memory", {"content": LARGE}),
    Way("PATCH", f"{CALL}/working-memory", {"content": LARGE}),
    Way("PUT", "/v1/users/ann/working-memory", {"content": LARGE}),
    Way("PATCH", "/v1/users/ann/working-memory", {"content": LARGE}),
    Way("PUT", "/v1/users/new-{number}/working-memory", {"content": LARGE}),
    Way("POST", "/v1/memories", {"text": "{number} " + "word " * 150, "user_id": "ann"}),
    Way("POST", "/v1/memories", {"text": "{number} " + "word " * 150, "session_id": "call"}),
    Way("POST", f"{CALL}/messages", {"role": "user", "content": LARGE}),
    Way("POST", "/v1/sessions", {"session_id": "new-{number}", "labels": {"a": "x" * 500}}),
    Way("POST", f"{CALL}/fork", {"session_id": "fork-{number}", "at_turn": 1}),
    Way("PUT", "/v1/working-memory/ams", {"messages": [], "data": {"text": LARGE}}),
    Way("PUT", "/v1/working-memory/new-{number}", {"messages": [{"role": "user", "content": LARGE}]}),
    Way("POST", "/v1/long-term-memory/", {"memories": [{"id": "m-{number}", "text": "word " * 150}]}),
    Way("POST", "/v1/summary-views", {"name": "v", "source": "long_term", "group_by": ["user_id"], "prompt": LARGE}),
    Way("POST", f"{AGENTS}/join", {"name": "agent-{number}", "properties": {"channel": "c"}}),
    Way("POST", f"{AGENTS}/agents/call/speak", {"text": "x" * 500}),
)


def numbered(value: Any, number: int) -> Any:
    return json.loads(json.dumps(value).replace("{number}", str(number)))


async def fill(api: RestClient) -> None:
    """Use up the bytes of the project."""
    await api.create("call", user_id="ann")
    assert 200 == (await api.call("PUT", "/v1/working-memory/ams", json={"messages": []})).status
    for seq in (1, 2, 3):
        await api.send(final(seq, LARGE, seq=seq), session_id="call")


@every_row("way", WAYS)
async def test_nothing_is_stored_for_a_full_project(serve: Serve, way: Way) -> None:
    """Each way in is refused with the quota, however often it is tried; reading goes on."""
    app = await serve(stored_bytes=BYTES)
    api = RestClient(app)
    await fill(api)
    before = await api.session("call")
    for number in range(3):
        path, body = way.path.replace("{number}", str(number)), numbered(way.body, number)
        answered = await api.call(way.method, path, json=body)
        assert 429 == answered.status, answered.body
        assert answered.json["reason"] in ("quota_exceeded", "ConcurrencyLimitExceeded")  # the latter is Agora's word
    assert before == await api.session("call")
    assert 200 == (await api.get(f"{CALL}/context")).status


async def test_what_frees_bytes_is_taken(serve: Serve) -> None:
    """Forgetting, emptying, ending, erasing."""
    app = await serve(stored_bytes=BYTES)
    api = RestClient(app)
    await api.create("call", user_id="ann")
    kept = (await api.post("/v1/memories", {"text": "Ann likes tea.", "user_id": "ann"})).json["memories"][0]["id"]
    await api.call("PUT", "/v1/users/ann/working-memory", json={"content": "Tea."})
    for seq in (1, 2, 3):
        await api.send(final(seq, LARGE, seq=seq), session_id="call")
    assert 204 == (await api.delete(f"/v1/memories/{kept}")).status
    assert 200 == (await api.delete("/v1/users/ann/working-memory")).status
    assert 200 == (await api.post(f"{CALL}/forget", {"keep_last": 1})).status
    assert 200 == (await api.post(f"{CALL}/end")).status
    assert 204 == (await api.delete(CALL)).status


async def test_refused_events_take_no_room(serve: Serve) -> None:
    """Of hundreds of small events in a request, good and bad ones, a gap stays for each batch; the call can end."""
    app = await serve(stored_bytes=BYTES)
    api = RestClient(app)
    await fill(api)
    seq = 4
    for number in range(20):
        events = [{"type": "no-such-type" if number % 2 else "asr", "seq": seq + place} for place in range(900)]
        answered = await api.post(f"{CALL}/events", events)
        assert (422, "events_refused") == answered.problem
        seq += len(events)
        assert seq == answered.json["next_seq"]
    rows = await api.journal("call")
    assert {"session.gap"} == {row["event"]["type"] for row in rows[2:]}
    assert len(rows) <= 3 + 20 * 2
    for number in range(3):  # a name that is new, as at an open of it
        events = [final(1, "Hi.", seq=1), {"type": "no-such-type", "seq": 2}, final(1, "Hi.", seq=3)]
        answered = await api.post(f"{CALL}/events?producer=new-{number}", events)
        codes = [error["code"] for error in answered.json["errors"]]
        assert (1, ["quota_exceeded", "unknown_type", "quota_exceeded"]) == (answered.json["next_seq"], codes)
    assert rows == await api.journal("call")
    async with connected_producer(app) as producer:
        await producer.open("call")
        await producer.store({"type": "session.end", "seq": seq})


@every_row("dialect", sorted({*BODIES} - {"livekit-agents"}))  # whose token stands where a key does
async def test_webhooks_count_as_other_ways_in(serve: Serve, dialect: str) -> None:
    """A session that one begins is one of the day; a key's own quota holds for what comes with it."""
    app = await serve(hook_secrets=(f"{dialect}={SECRET}",), sessions_per_day=3)
    admin = await client_with_key(app, "admin")
    made = (await admin.post("/v1/keys", {"name": "k", "scopes": ["ingest"], "sessions_per_day": 1})).json
    keyed = RestClient(app, made["key"])

    async def begin(api: RestClient, call: str, query: str = "") -> Any:
        body = body_of(dialect, call)
        return await send_hook(api, dialect, body, signature_of(dialect, body), query)

    assert 200 == (await begin(keyed, "call-1", "?session_id=mine-1")).status
    assert QUOTA == (await begin(keyed, "call-2", "?session_id=mine-2")).problem
    assert [200, 200, 429] == [(await begin(RestClient(app), f"call-{number}")).status for number in (3, 4, 5)]
    assert QUOTA == (await admin.post("/v1/sessions", {})).problem
    assert 200 == (await begin(RestClient(app), "call-3")).status


async def test_restored_calls_are_of_today(serve: Serve) -> None:
    """A checkpoint says when its call started; that does not make room for more of them."""
    app: App = await serve(sessions_per_day=3)
    api = RestClient(app)
    await api.create("call")
    await api.send(final(1, "Hi."), session_id="call")
    checkpoint = (await api.get(f"{CALL}/checkpoint")).json
    restored: Mapping[str, Any] = {"checkpoint": checkpoint}
    assert [201, 201, 429, 429] == [(await api.post("/v1/restore", restored)).status for _ in range(4)]
    assert QUOTA == (await api.post(f"{CALL}/fork", {"at_turn": 1})).problem
