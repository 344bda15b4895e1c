"""Several projects on one service: the same names everywhere, and no one ever sees another's."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key, make_key
from tests.support.events import delta, done, final
from tests.support.rows import every_row
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

PROJECTS = ("one", "other")
READS = ("", "/history", "/history?fields=standard", "/context", "/turns", "/events")
LABELS = {"tier": "gold"}


def call_of(project: str) -> list[dict[str, Any]]:
    """The same call in every project, but for one word."""
    return [final(1, f"Hello from {project}."), delta(1, f"Hello, {project}."), done(1)]


@pytest.fixture
async def both(serve: Serve, tmp_path: Path) -> tuple[App, RestClient, RestClient]:
    """A service with two projects, each with a session `s` of the same user and labels."""
    app = await serve(store=f"sqlite:{tmp_path}/db", allow_addresses=LOOPBACK)
    callers = [await client_with_key(app, "admin", project=project) for project in PROJECTS]
    for project, api in zip(PROJECTS, callers, strict=True):
        await api.create(user_id="u", labels=LABELS, name=f"of {project}")
        await api.send(*call_of(project))
    return app, callers[0], callers[1]


async def test_reads_of_one_name_are_each_projects_own(both: tuple[App, RestClient, RestClient]) -> None:
    """Every read of `s`, asked in turns and twice (kept answers too), has the caller's words and never the other's."""
    _, *callers = both
    for _ in range(2):
        for path in READS:
            for project, stranger, api in zip(PROJECTS, reversed(PROJECTS), callers, strict=True):
                answered = await api.get(f"/v1/sessions/s{path}")
                assert 200 == answered.status
                assert f"from {stranger}".encode() not in answered.body
                assert f"of {stranger}".encode() not in answered.body
                if path not in ("", "/turns"):
                    assert f"Hello from {project}.".encode() in answered.body


@every_row(
    "query",
    ["", "?user_id=u", "?label=tier:gold", "?state=running", "?started_after=0", "?limit=1", "?user_id=u&limit=1000"],
)
async def test_lists_are_each_projects_own(both: tuple[App, RestClient, RestClient], query: str) -> None:
    """Whatever is asked for, a list has the caller's sessions only, and ends with them."""
    _, *callers = both
    for project, api in zip(PROJECTS, callers, strict=True):
        page = (await api.get(f"/v1/sessions{query}")).json
        assert [f"of {project}"] == [session["config"]["name"] for session in page["sessions"]]
        assert page["next_cursor"] is None


async def test_what_one_does_to_its_session_leaves_the_others_alone(both: tuple[App, RestClient, RestClient]) -> None:
    """Changing, ending and erasing are for one project; the erased id lives on in the other."""
    _, one, other = both
    assert 200 == (await one.patch("/v1/sessions/s", {"name": "changed"})).status
    assert ("of other", 3) == ((await other.session())["config"]["name"], (await other.session())["position"])
    assert "ended" == (await one.end())["state"]
    assert "running" == (await other.session())["state"]
    assert 204 == (await one.delete("/v1/sessions/s")).status
    assert 404 == (await one.get("/v1/sessions/s/history")).status
    assert ["Hello from other.", "Hello, other."] == [message["content"] for message in await other.contents()]
    assert [] == (await other.send(final(2, "Still here.")))["errors"]
    assert (410, "session_erased") == (await one.post("/v1/sessions", {"session_id": "s"})).problem


async def opened(app: App, project: str) -> ClientConnection:
    """A websocket with a key of this project, on which `s` is open."""
    headers = {"Authorization": f"Bearer {await make_key(app, 'ingest', project=project)}"}
    socket = await connect(f"ws://{app.ingest_address}/v1/ingest", additional_headers=headers)
    await socket.send(json.dumps({"type": "session.open", "session_id": "s", "producer": "p"}))
    assert "session.ready" == json.loads(await socket.recv())["type"]
    return socket


async def test_producers_of_one_name_write_into_their_own_project(both: tuple[App, RestClient, RestClient]) -> None:
    """The same producer, session and seq on two connections are two journals, and each ends its own session."""
    app, *callers = both
    sockets = [await opened(app, project) for project in PROJECTS]
    for project, socket in zip(PROJECTS, sockets, strict=True):
        await socket.send(json.dumps({"seq": 1, **final(2, f"By {project}.")}))
        ack = json.loads(await socket.recv())
        assert ("ack", 1) == (ack["type"], ack["seq"])
    for project, api in zip(PROJECTS, callers, strict=True):
        assert f"By {project}." == (await api.contents())[-1]["content"]
    await sockets[0].send(json.dumps({"seq": 2, "type": "session.end", "last_seq": 1}))
    await sockets[0].recv()

    async def state() -> str:
        return str((await callers[0].session())["state"])

    await eventually("ended", state)
    assert "running" == (await callers[1].session())["state"]
    for socket in sockets:
        await socket.close()


async def test_webhooks_and_their_secrets_are_each_sessions_own(serve: Serve) -> None:
    """Two projects with the same session id: each receiver gets its own memory, under another signature."""
    app = await serve(allow_addresses=LOOPBACK)
    async with webhook_receiver() as hook:
        for project in PROJECTS:
            api = await client_with_key(app, "admin", project=project)
            await api.create(webhook={"url": hook.url(f"/{project}"), "secret": f"secret of {project}"})
            await api.send(*call_of(project))
            await api.end()
        told = {webhook_event.path: webhook_event for webhook_event in await hook.wait(2)}
    for project in PROJECTS:
        assert f"Hello from {project}." == told[f"/{project}"].payload["contents"][0]["content"]
    assert 2 == len({webhook_event.id for webhook_event in told.values()})


async def test_an_endpoint_that_is_gone_in_one_project_is_not_in_the_other(serve: Serve) -> None:
    """A 410 to one session's receiver disables no other session's, though it has the same address."""
    app = await serve(allow_addresses=LOOPBACK)
    async with webhook_receiver() as hook:
        for project, status in zip(PROJECTS, (410, 200), strict=True):
            await one_end(app, hook, project, status)
        assert ["of one", "of other"] == [webhook_event.payload["name"] for webhook_event in await hook.wait(2)]


async def one_end(app: App, hook: WebhookReceiver, project: str, status: int) -> None:
    """A session of this project ends, and its receiver answers so."""
    before = len(hook.webhook_events)
    hook.otherwise = hook.otherwise._replace(status=status)
    api = await client_with_key(app, "admin", project=project)
    await api.create(name=f"of {project}", webhook={"url": hook.url()})
    await api.end()
    await hook.wait(before + 1)


async def test_revoking_a_key_of_one_project_closes_nothing_in_the_other(serve: Serve) -> None:
    """Keys of projects come and go alone."""
    app = await serve()
    keys = [await app.services.access.create_key(project, "test", ["admin"]) for project in PROJECTS]
    await app.services.store.directory.revoke_key(keys[0][0].id, app.services.runtime.clock())
    assert [401, 200] == [(await RestClient(app, text).get("/v1/sessions")).status for _, text in keys]


async def test_what_is_cached_of_one_project_is_not_served_to_the_other(
    both: tuple[App, RestClient, RestClient],
) -> None:
    """After the store is forgotten and read again, and with each other's ETags, answers are the caller's own."""
    app, one, other = both
    tags = [(await api.get("/v1/sessions/s/history")).headers["ETag"] for api in (one, other)]
    app.services.read_models.discard_all()
    for api, own, stranger, project in zip((one, other), tags, reversed(tags), PROJECTS, strict=True):
        assert 304 == (await api.get("/v1/sessions/s/history", {"If-None-Match": own})).status
        answered = await api.get("/v1/sessions/s/history", {"If-None-Match": stranger})
        assert 200 == answered.status, "another session's ETag holds for this one"
        assert f"Hello from {project}.".encode() in answered.body
