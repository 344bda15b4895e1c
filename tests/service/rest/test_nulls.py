"""Null in the bodies of REST, as programs without types and LLMs in strict mode write what they leave out."""

from typing import Any

import pytest

from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key
from tests.support.events import dialogue
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller who may do everything, and a call."""
    app = await serve(allow_addresses=LOOPBACK)
    api = await client_with_key(app, "ingest", "read", "admin")
    await api.create(working_memory={"format": "text"})
    await api.send(*dialogue(2))
    return api


def nulls(*names: str) -> JsonObject:
    return dict.fromkeys(names)


LIMITS = ("events_per_second", "bytes_per_second", "open_sessions", "sessions_per_day")
TAKEN: list[tuple[str, str, JsonObject]] = [
    ("POST", "/v1/keys", nulls("name", "scopes", *LIMITS)),
    ("POST", "/v1/keys", {"events_per_second": 5.0}),
    ("POST", "/v1/sessions/s/tokens", nulls("ttl_seconds", "memories")),
    ("POST", "/v1/sessions/s/tokens", {"ttl_seconds": 60.0}),
    (
        "POST",
        "/v1/webhooks",
        {"url": "http://127.0.0.1:65530/", **nulls("description", "event_types", "contents", "enabled", "secret")},
    ),
    ("PUT", "/v1/hooks/retell/secret", nulls("secret", "overlap_seconds")),
    ("PUT", "/v1/sessions/s/working-memory", {"content": "tea", **nulls("format", "template", "schema")}),
    ("PUT", "/v1/sessions/s/working-memory", {"content": None, "format": "markdown"}),
    ("POST", "/v1/sessions/s/messages", {"role": "user", "content": "Hi.", **nulls("type", "tool_calls", "turn_id")}),
    ("POST", "/v1/sessions/s/messages", {"type": "tool.call", "call_id": "c", "name": "f", "arguments": None}),
    ("POST", "/v1/sessions/s/messages", {"role": "user", "content": "Ho.", "turn_id": 3.0, "timestamp": 5.0}),
    ("POST", "/v1/sessions/s/fork", {"at_turn": 1.0, **nulls("session_id", "llm", "labels", "idle_timeout")}),
    ("POST", "/v1/sessions", nulls("session_id", "user_id", "system_messages", "memory", "working_memory")),
    ("POST", "/v1/sessions", {"llm": {"max_history": 5.0, "style": None}, "memory": {"max_messages": 4.0}}),
    (
        "POST",
        "/v1/memories/search",
        {"query": "tea", "limit": 3.0, **nulls("kinds", "topics", "entities", "since", "superseded", "mode")},
    ),
    ("POST", "/v1/sessions/s/end", {"reason": None}),
]


@every_row(("method", "path", "body"), TAKEN, ids=str)
async def test_null_for_an_optional_field_is_as_if_it_were_left_out(
    api: RestClient, method: str, path: str, body: JsonObject
) -> None:
    """In every body of POST and PUT, and 5.0 is 5."""
    answered = await api.call(method, path, json=body)
    assert 200 <= answered.status < 300, answered.json


async def test_a_null_result_is_a_result(api: RestClient) -> None:
    """A field of any type may be null: a tool that returns nothing has answered."""
    entries = [
        {"type": "tool.call", "call_id": "c", "name": "f", "arguments": {}},
        {"type": "tool.result", "call_id": "c", "result": None},
    ]
    await api.post("/v1/sessions/s/messages", entries)
    assert {"type": "tool.result", "call_id": "c", "result": None}.items() <= (await api.journal())[-1]["event"].items()


REFUSED: list[tuple[str, str, JsonObject, str]] = [
    *(("POST", "/v1/sessions/s/forget", {name: None}, name) for name in ("through_turn", "keep_last", "everything")),
    *(
        ("POST", "/v1/users/ann/memories/forget", {"query": "tea", name: None}, name)
        for name in ("kinds", "topics", "before", "namespace", "max_age_days", "budget", "dry_run")
    ),
    *(("POST", "/v1/memories/search", {"query": "a", n: None}, n) for n in ("user_id", "session_id", "namespace")),
    ("POST", "/v1/memories/search", {"query": None}, "query"),
    ("POST", "/v1/sessions/s/fork", {"at_turn": None}, "at_turn"),
]


@every_row(("method", "path", "body", "name"), REFUSED, ids=str)
async def test_null_is_refused_where_absence_would_mean_more(
    api: RestClient, method: str, path: str, body: JsonObject, name: str
) -> None:
    """More would be forgotten or found; and where something is required. The sentence names the field."""
    before = (await api.session())["position"]
    answered = await api.call(method, path, json=body)
    assert answered.problem == (400, "invalid_field")
    assert answered.json["detail"].endswith(f", not null: `{name}`")
    assert before == (await api.session())["position"]


async def test_null_in_a_patch_clears_what_may_be_empty(api: RestClient) -> None:
    """And is refused for what may not."""
    given: Any = {"text": "Ann likes tea.", "user_id": "ann", "topics": ["tea"], "entities": ["Ann"]}
    (memory,) = (await api.post("/v1/memories", given)).json["memories"]
    cleared = (await api.patch(f"/v1/memories/{memory['id']}", nulls("topics", "entities", "supersedes"))).json
    assert [cleared[name] for name in ("topics", "entities", "supersedes")] == [[], [], []]
    webhook = (await api.post("/v1/webhooks", {"url": "http://127.0.0.1:65530/", "description": "ours"})).json
    assert (await api.patch(f"/v1/webhooks/{webhook['id']}", {"description": None})).json["description"] == ""
    key = (await api.post("/v1/keys", {})).json
    for path, names in (
        (f"memories/{memory['id']}", ("text", "kind", "said_at", "confidence", "pinned")),
        (f"webhooks/{webhook['id']}", ("url", "event_types", "contents", "enabled")),
        (f"keys/{key['id']}", LIMITS),
    ):
        for name in names:
            assert (await api.patch(f"/v1/{path}", {name: None})).problem == (400, "invalid_field")
