"""Looking at a context without a trace."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, context_texts
from tests.support.events import dialogue
from tests.support.servers.llm_server import LlmServer, Script, llm_server
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.store.sqlite.store import SqliteStore

DUE = {"policy": "summary", "max_tokens": 40, "keep_recent": 2}


async def stored(app: App) -> dict[str, list[Any]]:
    """All rows of all tables of the service's store."""
    store = app.services.store
    assert isinstance(store, SqliteStore)

    def job(connection: Any) -> dict[str, list[Any]]:
        tables = [name for (name,) in connection.rows("select name from sqlite_schema where type = 'table'")]
        return {name: connection.rows(f"select * from {name}") for name in tables}

    return await store.database.read(job)


async def test_a_peek_journals_nothing_and_asks_no_llm(serve: Serve) -> None:
    """Journal and store stay as they were, whatever is asked for, also while something could be carried over."""
    async with llm_server(Script(["A summary."])) as llm:
        app = await serve(llm_url=llm.url, llm_model="small")
        api = RestClient(app)
        await api.create("earlier", user_id="ann")
        await api.post("/v1/sessions/earlier/messages", {"role": "user", "content": "I like tea."})
        await api.end("earlier")
        await api.create("s", user_id="ann", memory_from={}, idle_timeout=0)
        await api.send(*dialogue(2))
        before = await stored(app)
        queries = ("", "&usage=true", "&usage=true&policy=summary&max_tokens=10", "&tools=true&data=true&style=gemini")
        peeks = [await api.context(f"?peek=true{more}") for more in queries]
        assert before == await stored(app)
        assert [None] * 4 == [peek["carried"] for peek in peeks]
        assert ["Q1", "A1", "Q2", "A2"] == context_texts(peeks[0])
        assert ({}, []) == (app.services.summaries.jobs, llm.requests)

        whole = await api.context()
        assert "I like tea." in context_texts(whole)[0]
        assert whole == await api.context("?peek=true")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background looks for summaries that are due all the time."""
    monkeypatch.setattr("voicemem.services.LOOK_INTERVAL_S", 0.01)


@pytest.mark.usefixtures("impatient")
async def test_a_peek_starts_no_summary(serve: Serve, tmp_path: Path) -> None:
    """One that is due is shown as due, and starts when someone asks without peeking."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store) as without_llm:
        api = RestClient(without_llm)
        await api.create(memory=DUE, idle_timeout=0)
        await api.send(*(event | {"text": "word " * 8} if "text" in event else event for event in dialogue(6)))
    async with llm_server(Script(["A summary."])) as llm:
        app = await serve(store=store, llm_url=llm.url, llm_model="small")
        api = RestClient(app)
        before = await stored(app)
        assert "due" == (await api.context("?usage=true&peek=true"))["summary"]["state"]
        assert {} == app.services.summaries.changed
        await app.services.summaries.check_changed()
        assert ({}, [], before) == (app.services.summaries.jobs, llm.requests, await stored(app))
        await check_that_it_starts(api, llm)


async def check_that_it_starts(api: RestClient, llm: LlmServer) -> None:
    """Whoever asks without peeking has the summary written."""
    await api.context("?usage=true")

    async def count() -> int:
        return len(llm.requests)

    await eventually(1, count)


@pytest.mark.parametrize("config", [{"memory_from": {}}, {"user_id": "ann"}, {}])
async def test_where_nothing_is_carried_a_peek_says_nothing_of_it(serve: Serve, config: dict[str, Any]) -> None:
    """Without `memory_from`, and without a user, it is the context."""
    api = RestClient(await serve())
    await api.create(**config)
    await api.send(*dialogue(1))
    assert await api.context() == await api.context("?peek=true")
