"""Two projects on one service: every byte that one is answered is what it would be answered alone.

A seed draws requests of both, over all routes, scopes and a few ids that both use. They are sent to one service, and
those of the first project alone to another. `make soak` draws more.
"""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import postgresql
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.clock import ManualClock
from tests.support.events import delta, done, final
from tests.support.needs import missing
from tests.support.profiles import seeds
from tests.support.routes import ROUTES
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

OURS, THEIRS = "ours", "theirs"
STEPS = 160
SCOPES = ("read", "ingest", "admin")
IDS = {
    "id": ("a", "b", "c", "none"),
    "user_id": ("ann", "bob", "none"),
    "memory_id": ("m1", "m2", "none"),
    "dialect": ("vapi", "retell", "none"),
}
TEXTS = ("Walnuts make me ill.", "I like jazz.", "The train to Bonn was late.", "My code is 4711.")
OF_ALL = ("/livez", "/readyz", "/metrics", "/asyncapi.json", "/openapi.json", "/v1/operations")
"""Those about the service, which no project has for itself."""
NEVER_ENDS = ("/v1/events",)
RANDOM = frozenset(["next", "key", "secret", "token", "certificate", "app_id", "key_id", "incarnation"])
"""Fields with what a service draws at random, or keys with a secret of its store."""


class Step(NamedTuple):
    """A request of one of the projects."""

    project: str
    scope: str
    method: str
    path: str
    body: Any


def drawn_steps(seed: int) -> list[Step]:
    """The requests of a seed, those of both projects mixed."""
    draw = random.Random(seed)
    routes = [route for route in ROUTES if route.path not in (*OF_ALL, *NEVER_ENDS)]
    steps = []
    for _ in range(STEPS):
        project, scope = draw.choice((OURS, THEIRS)), draw.choice((*SCOPES, "admin", "admin"))
        route = draw.choice(routes)
        makers = [name for name in BODIES if draw.random() < 0.5]
        method, path = draw.choice(makers) if makers else (route.method, route.path)
        for name, ids in IDS.items():
            path = path.replace(f"{{{name}}}", draw.choice(ids))
        path = path.replace("{", "").replace("}", "")
        template = (method, next((one for one in BODIES if one[0] == method and matches(one[1], path)), ("", ""))[1])
        make = BODIES.get(template)
        body = None if method in ("GET", "DELETE") else {} if make is None else make(draw)
        steps.append(Step(project, scope, method, path, body))
    return steps


def matches(template: str, path: str) -> bool:
    parts, given = template.split("/"), path.split("/")
    return len(parts) == len(given) and all(a == b or a.startswith("{") for a, b in zip(parts, given, strict=True))


def new_session(draw: random.Random) -> Any:
    return {
        "session_id": draw.choice(IDS["id"][:3]),
        "user_id": draw.choice(IDS["user_id"]),
        "labels": {"namespace": "n"},
        "memory_from": {},
        "memory": {"memories": {}},
    }


def new_events(draw: random.Random) -> Any:
    turn = draw.randrange(1, 9)
    return [final(turn, draw.choice(TEXTS)), delta(turn, draw.choice(TEXTS)), done(turn)]


def new_memory(draw: random.Random) -> Any:
    named = {"id": draw.choice(IDS["memory_id"][:2])} if draw.random() < 0.5 else {}
    return {"text": draw.choice(TEXTS), "kind": "fact", "user_id": draw.choice(IDS["user_id"]), **named}


def a_search(draw: random.Random) -> Any:
    return {"query": draw.choice(TEXTS), "kinds": ["fact"], "user_id": draw.choice((None, *IDS["user_id"]))}


BODIES = {
    ("POST", "/v1/sessions"): new_session,
    ("POST", "/v1/sessions/{id}/events"): new_events,
    ("POST", "/v1/sessions/{id}/messages"): lambda draw: {"role": "user", "content": draw.choice(TEXTS)},
    ("PUT", "/v1/sessions/{id}/data"): lambda draw: {"data": {"a": draw.choice(TEXTS)}},
    ("PUT", "/v1/sessions/{id}/working-memory"): lambda draw: {"content": draw.choice(TEXTS)},
    ("PUT", "/v1/users/{user_id}/working-memory"): lambda draw: {"content": draw.choice(TEXTS)},
    ("PATCH", "/v1/sessions/{id}"): lambda draw: {"labels": {"ticket": str(draw.randrange(9))}},
    ("POST", "/v1/sessions/{id}/fork"): lambda draw: {"session_id": draw.choice(IDS["id"][:3])},
    ("POST", "/v1/memories"): new_memory,
    ("POST", "/v1/memories/search"): a_search,
    ("GET", "/v1/sessions/{id}/context"): None,
    ("GET", "/v1/sessions/{id}/history"): None,
    ("GET", "/v1/users/{user_id}/memories"): None,
    ("GET", "/v1/sessions"): None,
    ("POST", "/v1/sessions/{id}/end"): lambda draw: {},
}
"""The requests that are drawn more often, with bodies that are taken."""


COUNTED_LATER = ("access_count", "last_accessed")
FIRST_MS = 1_700_000_000_000
"""Larger numbers are times."""


def timeless(value: Any) -> Any:
    """A value of JSON without times, since no test moves the clock of a database, and without what is counted later."""
    if isinstance(value, dict):
        return {name: timeless(one) for name, one in value.items() if name not in COUNTED_LATER}
    if isinstance(value, list | tuple):
        return [timeless(one) for one in value]
    return "time" if type(value) is int and value > FIRST_MS else value


def masked(value: Any) -> Any:
    """A value of JSON without what is random."""
    if isinstance(value, dict):
        return {name: type(one).__name__ if name in RANDOM else masked(one) for name, one in value.items()}
    return [masked(one) for one in value] if isinstance(value, list) else value


def shown(body: bytes) -> Any:
    try:
        return [masked(json.loads(line)) for line in body.splitlines()]
    except ValueError:
        return body


async def answers(app: App, steps: list[Step], pause_s: float) -> list[Any]:
    """The answers to our requests, with the step that each is to; the last are searches in what was said."""
    clients = {
        (project, scope): await client_with_key(app, scope, project=project)
        for project in (OURS, THEIRS)
        for scope in SCOPES
    }
    found: list[Any] = []
    for step in steps:
        client = clients[step.project, step.scope]
        more = {} if step.body is None else {"json": step.body}
        await asyncio.sleep(pause_s)
        answered = await client.call(step.method, step.path, **more)
        if step.path.endswith("/end") and answered.status < 300:
            await ended(clients[step.project, "admin"], step.path.split("/")[3])
        if step.project == OURS:
            found.append((step, answered.status, answered.headers.get("Content-Type"), shown(answered.body)))
    return found


async def ended(client: RestClient, session_id: str) -> None:
    """Wait for the close of a session, which follows its end."""

    async def is_running() -> bool:
        answered = await client.get(f"/v1/sessions/{session_id}")
        return answered.status == 200 and bool(answered.json["state"] == "running")

    await eventually(False, is_running)


async def searched(app: App) -> list[Any]:
    """What our searches find, once everything that was said is indexed."""
    client = await client_with_key(app, "read", project=OURS)
    answered = [await client.post("/v1/memories/search", {"query": text, "limit": 50}) for text in TEXTS]
    return [shown(one.body) for one in answered]


@pytest.fixture(params=["memory:", "postgresql"])
def two_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The URLs of two stores of an engine."""
    if request.param == "memory:":
        yield ["memory:", "memory:"]
        return
    try:
        server = postgresql.server()
    except ImportError:
        missing("psycopg is not installed")
    folders = tmp_path / "alone", tmp_path / "beside"
    with ExitStack() as stack:
        yield [server.url(stack.enter_context(postgresql.database_of(folder))) for folder in folders]


@pytest.mark.parametrize("seed", seeds(4))
async def test_another_project_changes_no_byte(serve: Serve, two_stores: list[str], seed: int) -> None:
    """Whatever it sends, with whichever key, about whichever ids, on each engine."""
    steps, is_postgresql = drawn_steps(seed), two_stores[0] != "memory:"
    if is_postgresql:  # where time passes: a context waits half a second for memories, which searches find as well
        steps = [one._replace(body=without_recall(one.body)) for one in steps]
    clock = None if is_postgresql else ManualClock()
    alone, beside = [await serve(clock, store=store) for store in two_stores]
    pause_s = 0.002 if is_postgresql else 0.0  # what is made in one ms of its clock has no order
    comparable = timeless if is_postgresql else list
    expected = comparable(await answers(alone, [step for step in steps if step.project == OURS], pause_s))
    got = comparable(await answers(beside, steps, pause_s))
    assert [] == [(one, other) for one, other in zip(expected, got, strict=True) if one != other]
    await eventually(True, lambda: same_searches(alone, beside))


def without_recall(body: Any) -> Any:
    return {name: one for name, one in body.items() if name != "memory"} if isinstance(body, dict) else body


async def same_searches(one: App, other: App) -> bool:
    return bool(timeless(await searched(one)) == timeless(await searched(other)))
