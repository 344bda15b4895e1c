"""What one project says changes nothing of what another one is answered."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import postgresql
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.needs import missing
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

SAID = ("Walnuts make me ill.", "I like jazz and walnuts.", "The train to Bonn was late, very late.")
QUERIES = ("walnuts", "late train", "jazz bonn", "ill")


@pytest.fixture(params=["memory:", "postgresql"])
async def app(request: pytest.FixtureRequest, serve: Serve, tmp_path: Any) -> Any:
    """A service on each engine."""
    if request.param == "memory:":
        yield await serve()
        return
    try:
        postgresql.server()
    except ImportError:
        missing("psycopg is not installed")
    with postgresql.database_of(tmp_path) as name:
        from tests.support.services import running_service

        async with running_service(store=postgresql.server().url(name)) as app:
            yield app


async def tell(client: RestClient, session: str, *texts: str) -> None:
    """A call in which the caller says these, and memories of the same."""
    await client.create(session, user_id="ann")
    await client.send(*(final(turn, text) for turn, text in enumerate(texts, 1)), session_id=session)
    await client.end(session)
    for number, text in enumerate(texts):
        memory = {"id": f"{session}-{number}", "text": text, "user_id": "ann", "kind": "fact"}
        assert 200 == (await client.post("/v1/memories", memory)).status


async def found_by(client: RestClient) -> list[Any]:
    """The answers to all queries, with their scores."""
    answers = []
    for query in QUERIES:
        for body in ({"query": query}, {"query": query, "user_id": "ann"}):
            answered = (await client.post("/v1/memories/search", body)).json["memories"]
            answers.append([(one["text"], one["kind"], one["score"]) for one in answered])
    near = {"text": "walnuts make me ill", "distance_threshold": 0.05}
    exact = (await client.post("/v1/long-term-memory/search", near)).json["memories"]
    assert SAID[0] in [one["text"] for one in exact]
    return [*answers, [(one["text"], one["dist"]) for one in exact]]


async def messages_found(client: RestClient, session: str, count: int) -> None:
    async def found() -> int:
        body = {"query": "walnuts walnut train", "kinds": ["message"], "limit": 50}
        return len((await client.post("/v1/memories/search", body)).json["memories"])

    await eventually(count, found)


async def test_scores_rest_on_what_the_project_says(app: App) -> None:
    """Another project says the same words many times over: neither order, scores nor exact matches change."""
    ours = await client_with_key(app, "admin", project="ours")
    theirs = await client_with_key(app, "admin", project="theirs")
    await tell(ours, "one", *SAID)
    await messages_found(ours, "one", 3)
    before = await found_by(ours)
    assert all(before)
    await tell(theirs, "two", *(f"Walnuts and walnuts, number {number}, ill jazz" for number in range(40)))
    await messages_found(theirs, "two", 40)
    assert before == await found_by(ours)


async def test_a_search_does_not_wait_for_what_another_project_said(app: App) -> None:
    """While that is being indexed, which may take long, what was said here just now is found."""
    ours = await client_with_key(app, "admin", project="ours")
    indexer = app.services.indexer
    async with indexer.turns.setdefault("theirs", asyncio.Lock()), asyncio.timeout(20):
        theirs = await client_with_key(app, "admin", project="theirs")
        await theirs.create("two")
        await theirs.send(final(1, "walnuts"), session_id="two")
        background = asyncio.create_task(indexer.index([*indexer.changed]))
        await ours.create("one")
        await ours.send(final(1, "walnuts"), session_id="one")
        found = (await ours.post("/v1/memories/search", {"query": "walnuts"})).json["memories"]
        assert ["one"] == [one["session_id"] for one in found]
        assert not background.done()
    await background
