"""Who may call: keys and scopes on every route, projects apart, and the rule for services without keys."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.callers.raw_http import raw_exchange
from tests.support.callers.rest import RestClient, client_with_key, fresh_id, make_key
from tests.support.events import final
from tests.support.routes import ROUTES
from tests.support.rows import all_rows, every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.security.access import ASK_AGAIN_MS, SCOPES, Access
from voicemem.store.sqlite.store import SqliteStore

HOOK = "https://receiver.example/hook"
NEEDED = {
    ("POST", "/v1/sessions"): "ingest",
    ("GET", "/v1/sessions"): "read",
    ("GET", "/v1/sessions/{id}"): "read",
    ("PATCH", "/v1/sessions/{id}"): "ingest",
    ("DELETE", "/v1/sessions/{id}"): "admin",
    ("POST", "/v1/sessions/{id}/end"): "ingest",
    ("GET", "/v1/sessions/{id}/history"): "read",
    ("GET", "/v1/sessions/{id}/context"): "read",
    ("GET", "/v1/sessions/{id}/turns"): "read",
    ("GET", "/v1/sessions/{id}/events"): "read",
    ("POST", "/v1/sessions/{id}/events"): "ingest",
    ("POST", "/v1/sessions/{id}/tokens"): "admin",
    ("GET", "/v1/keys"): "admin",
    ("POST", "/v1/keys"): "admin",
    ("DELETE", "/v1/keys/{key_id}"): "admin",
    ("GET", "/v1/agora-apps"): "admin",
    ("POST", "/v1/agora-apps"): "admin",
    ("DELETE", "/v1/agora-apps/{app_id}"): "admin",
    ("GET", "/v1/users/{user_id}/working-memory"): "read",
    ("PATCH", "/v1/users/{user_id}/working-memory"): "ingest",
    ("POST", "/v1/users/{user_id}/working-memory/tools"): "ingest",
    ("PATCH", "/v1/sessions/{id}/data"): "ingest",
    ("DELETE", "/v1/users/{user_id}"): "admin",
}
"""The scope of each route."""
GUARDED = [(route.method, route.path) for route in ROUTES if route.scope is not None]


def filled(path: str) -> str:
    return re.sub(r"\{\w+\}", "nobody", path)


# Scopes


@every_row(("method", "path"), NEEDED)
@every_row("scope", SCOPES)
async def test_every_route_asks_for_its_scope(app: App, method: str, path: str, scope: str) -> None:
    """A key with the route's scope, or admin, gets through; any other is told which scope it lacks."""
    api = await client_with_key(app, scope)
    answered = await api.call(method, filled(path))
    if scope in (NEEDED[method, path], "admin"):
        assert answered.status not in (401, 403)
    else:
        assert (403, "forbidden") == answered.problem
        assert NEEDED[method, path] in answered.json["detail"]


async def test_every_route_but_the_probes_needs_a_key(serve: Serve) -> None:
    """Without a key, with a wrong one or another scheme nothing is done, and the scheme is told."""
    with all_rows() as row:
        for first in range(0, len(GUARDED), 20):  # who tries more wrong keys in a minute has to wait
            app = await serve()
            key = await make_key(app, "admin")
            wrong: tuple[JsonObject, ...] = (
                {},
                {"Authorization": f"Bearer {key}x"},
                {"Authorization": f"Basic {key}"},
                {"X-Api-Key": key},
            )
            for method, path in GUARDED[first : first + 20]:
                with row(method, path):
                    for headers in wrong:
                        answered = await RestClient(app).call(method, filled(path), headers=headers)
                        assert (401, "unauthorized") == answered.problem
                        assert "Bearer" == answered.headers["WWW-Authenticate"]


async def test_a_key_in_the_query_or_a_cookie_is_none(serve: Serve) -> None:
    """Keys in addresses end up in logs, so they are never taken there."""
    app = await serve()
    key = await make_key(app, "admin")
    for name in ("token", "key", "api_key", "access_token", "authorization"):
        assert 401 == (await RestClient(app).get(f"/v1/sessions?{name}={key}")).problem[0]
    assert 401 == (await RestClient(app).get("/v1/sessions", {"Cookie": f"Authorization=Bearer {key}"})).problem[0]


async def test_several_scopes_add_up(serve: Serve) -> None:
    """A key for two things does both, and no third."""
    api = await client_with_key(await serve(), "ingest", "read")
    await api.create()
    assert "running" == (await api.session())["state"]
    assert (403, "forbidden") == (await api.delete("/v1/sessions/s")).problem


async def test_who_may_not_look_cannot_tell_what_is_there(serve: Serve) -> None:
    """A key without the scope gets the same answer for a session that is there and one that is not."""
    app = await serve()
    await (await client_with_key(app, "ingest")).create()
    api = await client_with_key(app, "ingest")
    there, nowhere = await api.get("/v1/sessions/s"), await api.get("/v1/sessions/nobody")
    assert (403, there.body) == (there.status, nowhere.body)


ODD_TOKENS = [b"\xff\xfe", "ключ".encode(), b"vm_\xc3\xa9", b"'; drop table keys; --", b"%00", b"x" * 8000]
ODD_TOKENS += [b"vm_" + b"0" * 12 + b"_" + b"0" * 40, b"null", b"Bearer x", b"a b c", b",", b"\t"]


@every_row("token", ODD_TOKENS, ids=lambda token: str(token[:20]))
async def test_odd_tokens_are_refused(app: App, token: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever bytes stand for a key, the answer is a 4xx that does not repeat them, and no log does."""
    await make_key(app, "admin")
    head = b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer "
    answer = await raw_exchange(app, head + token + b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] 40[01] ", answer)
    assert "ERROR" not in {record.levelname for record in caplog.records}


async def test_a_token_of_10_kb_is_refused_without_being_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """A header that is too long is a 4xx, of which nothing is repeated or logged."""
    app = await serve()
    await make_key(app, "admin")
    head = b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer "
    answer = await raw_exchange(app, head + b"hush" * 2500 + b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] 4\d\d ", answer)
    assert b"hush" not in answer
    assert "hush" not in caplog.text


# What makes the server call out

CALLING_OUT: list[JsonObject] = [
    {"llm": {"url": "https://llm.example/v1"}},
    {"llm": {"api_key": "sk-x"}},
    {"webhook": {"url": HOOK}},
    {"webhook": {"secret": "x"}},
    {"webhook": {"url": HOOK, "secret": "x", "contents": "standard"}},
    {"webhook": {"contents": "standard"}},
]


@every_row("config", CALLING_OUT, ids=str)
async def test_what_makes_the_server_call_out_needs_admin(app: App, config: JsonObject) -> None:
    """A key that may only send events sets no address and no secret, at creation or later."""
    session_id = fresh_id()
    ingest, admin = await client_with_key(app, "ingest", "read"), await client_with_key(app, "admin")
    assert (403, "forbidden") == (await ingest.post("/v1/sessions", {"session_id": session_id, **config})).problem
    assert 404 == (await ingest.get(f"/v1/sessions/{session_id}")).status
    await ingest.create(session_id)
    assert (403, "forbidden") == (await ingest.patch(f"/v1/sessions/{session_id}", config)).problem
    assert 200 == (await admin.patch(f"/v1/sessions/{session_id}", config)).status


@every_row(
    "patch",
    [
        {"webhook": None},
        {"webhook": {"url": None}},
        {"webhook": {"secret": None}},
        {"webhook": {"contents": "standard"}},
        {"llm": None},
        {"llm": {"api_key": None}},
        {"llm": {"url": None}},
    ],
    ids=str,
)
async def test_taking_it_away_needs_admin_too(app: App, patch: JsonObject) -> None:
    """Who may not set where the history goes cannot change or stop it either, by patch or by update."""
    session_id = fresh_id()
    ingest, admin = await client_with_key(app, "ingest"), await client_with_key(app, "admin")
    config: JsonObject = {
        "webhook": {"url": HOOK, "secret": "x"},
        "llm": {"url": "https://llm.example/v1", "api_key": "sk"},
    }
    before = await admin.create(session_id, **config)
    assert (403, "forbidden") == (await ingest.patch(f"/v1/sessions/{session_id}", patch)).problem
    errors = (await ingest.send({"type": "session.update", "seq": 1, **patch}, session_id=session_id))["errors"]
    assert ["forbidden"] == [error["code"] for error in errors]
    assert before["config"] == (await admin.session(session_id))["config"]


@pytest.mark.parametrize("config", [{"llm": {"model": "m"}}, {"system_messages": []}, {"labels": {"a": "1"}}])
async def test_other_settings_need_no_admin(serve: Serve, config: JsonObject) -> None:
    """What stays inside is set with ingest."""
    api = await client_with_key(await serve(), "ingest")
    assert 201 == (await api.post("/v1/sessions", {"session_id": "s", **config})).status
    assert 200 == (await api.patch("/v1/sessions/s", config)).status


# Projects


async def two_projects(serve: Serve) -> tuple[RestClient, RestClient]:
    """Admins of two projects of one service."""
    app = await serve()
    return await client_with_key(app, "admin", project="one"), await client_with_key(app, "admin", project="other")


@pytest.fixture
async def foreign(serve: Serve) -> tuple[RestClient, RestClient]:
    """The same two, of which the first has the session `theirs`."""
    one, other = await two_projects(serve)
    await one.create("theirs")
    return one, other


async def test_two_projects_may_use_the_same_id(serve: Serve) -> None:
    """Sessions with one id in two projects are two sessions, each with its own words."""
    one, other = await two_projects(serve)
    for api, text in ((one, "One."), (other, "Other.")):
        await api.create(name=text)
        await api.send(final(1, text, seq=1))
    assert [["One."], ["Other."]] == [[m["content"] for m in await api.contents()] for api in (one, other)]
    assert ["One.", "Other."] == [(await api.session())["config"]["name"] for api in (one, other)]


@every_row(("method", "path"), [pair for pair in GUARDED if "/sessions/{id}" in pair[1]])
async def test_a_session_of_another_project_is_not_there(
    foreign: tuple[RestClient, RestClient], method: str, path: str
) -> None:
    """Every route of a foreign session answers as for one that never was."""
    one, other = foreign
    theirs = await other.call(method, path.replace("{id}", "theirs"))
    nobodys = await other.call(method, path.replace("{id}", "nobodys"))
    assert (404, "unknown_session") == theirs.problem
    assert theirs.body == nobodys.body
    assert ("running", 0) == ((await one.session("theirs"))["state"], (await one.session("theirs"))["position"])


async def test_lists_show_ones_own_sessions_only(serve: Serve) -> None:
    """No filter reaches over the border of a project."""
    one, other = await two_projects(serve)
    await one.create("theirs", user_id="ann", labels={"a": "1"})
    await other.create("ours", user_id="ann", labels={"a": "1"})
    for query in ("", "?user_id=ann", "?label=a:1", "?state=running", "?started_after=0", "?limit=1"):
        sessions = (await other.get(f"/v1/sessions{query}")).json["sessions"]
        assert ["ours"] == [session["session_id"] for session in sessions]


async def test_erasing_in_one_project_leaves_the_other(serve: Serve) -> None:
    """Erased is the caller's session; the other with that id stays, and can still be made elsewhere."""
    one, other = await two_projects(serve)
    await one.create()
    await other.create()
    await one.delete("/v1/sessions/s")
    assert 404 == (await one.get("/v1/sessions/s")).status
    assert "running" == (await other.session())["state"]


async def test_etags_do_not_leak_over_projects(serve: Serve) -> None:
    """A tag of one project's session matches nothing in another."""
    one, other = await two_projects(serve)
    await one.create()
    await other.create()
    tag = (await one.get("/v1/sessions/s/history")).headers["ETag"]
    assert 200 == (await other.get("/v1/sessions/s/history", {"If-None-Match": tag})).status


# Keys come and go


async def test_a_revoked_key_is_refused_at_once(serve: Serve, tmp_path: Path) -> None:
    """A key that is revoked beside the running service does not serve one more request, also on an open connection."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    beside = SqliteStore(str(tmp_path / "v.db"), exclusive=False)
    try:
        key, text = await Access(beside.directory).create_key("default", "", ["read"])
        await asyncio.sleep(ASK_AGAIN_MS / 1000)
        url, headers = f"http://{app.rest_address}/v1/sessions", {"Authorization": f"Bearer {text}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(url) as answer:
                assert 200 == answer.status
            await beside.directory.revoke_key(key.id, 1)
            async with session.get(url) as answer:
                assert 401 == answer.status
    finally:
        await beside.close_store()


async def test_the_first_key_closes_a_running_service(serve: Serve, tmp_path: Path) -> None:
    """Once a first key, made beside the service, is noticed, no one gets in without one; revoking it opens nothing."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    await RestClient(app).create()
    beside = SqliteStore(str(tmp_path / "v.db"), exclusive=False)
    try:
        key, _ = await Access(beside.directory).create_key("default", "", ["read"])
        await asyncio.sleep(ASK_AGAIN_MS / 1000)
        assert (401, "unauthorized") == (await RestClient(app).get("/v1/sessions/s")).problem
        await beside.directory.revoke_key(key.id, 1)
        assert (401, "unauthorized") == (await RestClient(app).get("/v1/sessions/s")).problem
    finally:
        await beside.close_store()


async def test_the_operators_key_opens_everything_in_the_default_project(serve: Serve) -> None:
    """The key of the environment is an admin's, and no other project's."""
    app = await serve(admin_key="an operator's own key")
    admin, elsewhere = (
        RestClient(app, "an operator's own key"),
        await client_with_key(app, "admin", project="elsewhere"),
    )
    await admin.create(webhook={"url": HOOK})
    assert 404 == (await elsewhere.get("/v1/sessions/s")).status
    assert 204 == (await admin.delete("/v1/sessions/s")).status
    assert (401, "unauthorized") == (await RestClient(app).get("/v1/sessions")).problem
    assert (401, "unauthorized") == (await RestClient(app, "an operator's own kez").get("/v1/sessions")).problem


# Without keys: loopback only

FOREIGN_HOSTS = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0", "[::]"]
FOREIGN_HOSTS += [
    "evil.example:8080",
    "localhost@evil.example",
    "localhost:80:80",
    "",
    "[::1",
    "2130706433",
    "localhost/x",
]
ROUTE_PATHS = ["/v1/sessions", "/v1/sessions/s", "/v1/sessions/s/history", "/v1/sessions/s/events", "/livez"]


@every_row("host", FOREIGN_HOSTS)
async def test_without_keys_a_foreign_host_is_refused(api: RestClient, host: str) -> None:
    """A page whose name was bent to this machine (DNS rebinding) gets nothing."""
    for path in ROUTE_PATHS:
        assert (403, "foreign_host") == (await api.get(path, {"Host": host})).problem


@every_row("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "localhost."])
async def test_without_keys_loopback_hosts_are_served(api: RestClient, host: str) -> None:
    """However this machine is called, it is served, with and without a port."""
    assert 200 == (await api.get("/v1/sessions", {"Host": host})).status


FOREIGN_ORIGINS = ["https://evil.example", "http://localhost.evil.example", "null", "", "file://", "http://10.0.0.1"]
FOREIGN_ORIGINS += [
    "http://[::1",
    "http://[",
    "localhost",
    "//",
    "http://evil.example#localhost",
    "http://localhost@evil",
]


@every_row("origin", FOREIGN_ORIGINS)
async def test_without_keys_a_foreign_origin_is_refused(api: RestClient, origin: str) -> None:
    """A page from elsewhere cannot read or write through the browser of who runs the service."""
    for method, path in (("GET", "/v1/sessions"), ("POST", "/v1/sessions"), ("GET", "/livez")):
        assert (403, "foreign_origin") == (await api.call(method, path, headers={"Origin": origin})).problem
    assert [] == (await api.get("/v1/sessions")).json["sessions"]


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173"])
async def test_without_keys_pages_of_this_machine_are_served(serve: Serve, origin: str) -> None:
    """A developer's own page may call."""
    assert 201 == (await RestClient(await serve()).call("POST", "/v1/sessions", headers={"Origin": origin})).status


@pytest.mark.parametrize("settings", [{"insecure": True}, {"admin_key": "an operator's own key"}], ids=str)
async def test_with_a_key_or_insecure_every_host_is_served(serve: Serve, settings: dict[str, Any]) -> None:
    """Behind a name of its own the service answers whoever has a key, or everybody when it was told to."""
    api = RestClient(await serve(**settings), settings.get("admin_key"))
    headers = {"Host": "memory.example", "Origin": "https://app.example"}
    assert 200 == (await api.get("/v1/sessions", headers)).status


async def test_without_a_host_there_is_no_answer(serve: Serve) -> None:
    """A request of HTTP/1.0 without a Host is foreign."""
    answer = await raw_exchange(await serve(), b"GET /v1/sessions HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 403")


async def test_no_page_is_invited(serve: Serve) -> None:
    """No answer carries a header that lets pages of other origins read it."""
    answered = await RestClient(await serve()).get("/v1/sessions", {"Origin": "http://localhost:3000"})
    assert not [name for name in answered.headers if name.lower().startswith("access-control")]
