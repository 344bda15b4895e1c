"""Agora's paths: keys, scopes, projects, and paths that do not exist."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import base64

import pytest

from tests.support.callers.agora_rest import AGENTS, BASE, JOIN, agora_problem, joined, joining
from tests.support.callers.rest import RestClient, make_key
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App

KEY = "sixteen letters and more"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


GOOD_HEADERS = [
    f"agora token={KEY}",
    f'agora token="{KEY}"',
    f'Agora  Token = "{KEY}"',
    f"Bearer {KEY}",
    basic("customer", KEY),
    basic("", KEY),
]
BAD_HEADERS = [
    None,
    "",
    "Basic",
    "Basic %%%",
    "Basic " + base64.b64encode(KEY.encode()).decode(),
    basic(KEY, ""),
    basic("customer", KEY.upper()),
    "Basic " + base64.b64encode(b"\xff:\xff").decode(),
    "agora",
    "agora token=",
    'agora token=""',
    f"agora key={KEY}",
    f"token={KEY}",
    KEY,
]


@pytest.fixture
async def locked(serve: Serve) -> App:
    """A service that asks for a key."""
    return await serve(admin_key=KEY)


@every_row("header", GOOD_HEADERS)
async def test_keys_are_taken_as_agoras_clients_send_them(locked: App, header: str) -> None:
    """As the password of Basic, as a token in quotes or without, and as Bearer."""
    path = f"{AGENTS.replace('any', 'default')}"
    answered = await RestClient(locked).get(path, {"Authorization": header})
    assert 200 == answered.status


@every_row("header", BAD_HEADERS)
async def test_what_is_no_key_is_refused(locked: App, header: str | None) -> None:
    """Everything else is 401, for agents that are there and for those that are not."""
    path = f"{AGENTS.replace('any', 'default')}"
    headers = {} if header is None else {"Authorization": header}
    assert (401, "InvalidPermission") == agora_problem(await RestClient(locked).get(path, headers))
    assert (401, "InvalidPermission") == agora_problem(
        await RestClient(locked).call("POST", f"{path}/x/leave", headers)
    )


async def test_a_header_with_agoras_schemes_opens_nothing_else(serve: Serve) -> None:
    """Below /v1 a key is a Bearer token."""
    app = await serve(admin_key=KEY)
    assert 401 == (await RestClient(app).get("/v1/sessions", {"Authorization": f"agora token={KEY}"})).status


async def test_scopes_hold_here_too(serve: Serve) -> None:
    """A key that may only read joins nothing, and what makes the server call out needs admin."""
    app = await serve()
    path = BASE.replace("any", "default")
    readers = RestClient(app, await make_key(app, "read"))
    writers = RestClient(app, await make_key(app, "ingest"))
    assert (403, "InvalidPermission") == agora_problem(await readers.post(f"{path}/join", joining()))
    assert (403, "InvalidPermission") == agora_problem(await writers.post(f"{path}/join", JOIN))
    assert 200 == (await writers.post(f"{path}/join", joining())).status
    assert (403, "InvalidPermission") == agora_problem(await writers.get(f"{path}/agents"))
    assert 1 == (await readers.get(f"{path}/agents")).json["data"]["count"]


async def test_without_keys_every_path_means_the_one_project(serve: Serve) -> None:
    """Whatever the App ID, whichever the base, and whatever stands in the header."""
    app = await serve()
    agent = await joined(RestClient(app))
    for base in ("/api", "/cn/api"):
        path = f"{base}/conversational-ai-agent/v2/projects/other/agents/{agent}"
        assert 200 == (await RestClient(app).get(path, {"Authorization": "Basic none"})).status


async def test_pages_from_elsewhere_are_refused(serve: Serve) -> None:
    """Without keys a browser's page from another host reaches nothing here either."""
    answered = await RestClient(await serve()).get(AGENTS, {"Origin": "https://elsewhere.example"})
    assert (403, "InvalidPermission") == agora_problem(answered)


async def test_paths_that_are_not_here(serve: Serve) -> None:
    """Other paths and methods get REST's own errors, which have detail and reason too."""
    api = RestClient(await serve())
    assert (404, "not_found") == (await api.get(f"{BASE}/agent")).problem
    assert (405, "method_not_allowed") == (await api.get(f"{BASE}/join")).problem
