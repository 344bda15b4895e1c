"""The list of sessions as it changes."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.service.tails.test_session_tail import nobody_tails
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.callers.tail_reader import Tail, open_tail
from tests.support.events import dialogue, partial
from tests.support.services import Serve
from voicemem.app import App
from voicemem.server.rest import sessions as live

LIST = "/v1/sessions?fields=overview"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is looked at often."""
    monkeypatch.setattr(live, "PAUSE_S", 0.01)


async def until(tail: Tail, **expected: Any) -> Any:
    """The first row, or gone session, that is like this; everything before is passed over."""
    while (told := await tail.next()) is not None:
        if expected.items() <= told.data.items():
            return told
    raise AssertionError(expected)


async def test_all_rows_are_told_first_and_then_those_that_change(api: RestClient, app: App) -> None:
    """A new call, what is said in it, its end, and its erasure; no one listens when the reader has gone."""
    await api.create("old")
    async with open_tail(api, LIST) as tail:
        rows = [(told.event, told.data["session_id"]) for told in await tail.some(2)]
        assert [("session", "old"), ("session", "s")] == rows or [("session", "s"), ("session", "old")] == rows
        await api.create("new", user_id="ann")
        assert ("session", "ann") == ((told := await until(tail, session_id="new")).event, told.data["user_id"])
        await api.send(*dialogue(2), partial(3, "And", 9), session_id="new")
        await api.contents("new")
        while (told := await until(tail, session_id="new")).data["figures"] is None:
            await api.send(partial(3, "And then", 9), session_id="new")
        assert {"role": "user", "text": "And then", "open": True}.keys() == told.data["figures"]["last"].keys()
        await api.end("new")
        assert "session" == (await until(tail, session_id="new", state="ended")).event
        await api.delete("/v1/sessions/new")
        assert "gone" == (await until(tail, session_id="new", erased=True)).event
    await nobody_tails(app)
    assert [] == app.services.sessions.list_listeners


async def test_a_session_that_matches_no_more_is_gone(api: RestClient) -> None:
    """It was not erased; sessions that never matched are not told of."""
    await api.create("mine", user_id="ann")
    async with open_tail(api, f"{LIST}&state=running&user_id=ann") as tail:
        await tail.some(1)
        await api.create("theirs", user_id="bob")
        await api.end("theirs")
        await api.end("mine")
        told = await tail.next()
        while told is not None and told.event != "gone":
            assert "mine" == told.data["session_id"]
            told = await tail.next()
        assert told is not None
        assert {"session_id": "mine", "erased": False} == told.data


async def test_what_is_pushed_off_the_page_is_not_gone(api: RestClient) -> None:
    """A list of one row follows the newest session only."""
    await api.create("first")
    async with open_tail(api, f"{LIST}&limit=1") as tail:
        await tail.some(1)
        for name in ("second", "third"):
            await api.create(name)
            assert ("session", name) == ((told := await until(tail, session_id=name)).event, told.data["session_id"])
        await api.end("third")
        assert "session" == (await until(tail, session_id="third", state="ended")).event


async def test_projects_do_not_follow_each_other(serve: Serve) -> None:
    """A key's list has the rows of its project only."""
    app = await serve()
    one = await client_with_key(app, "admin", project="one")
    other = await client_with_key(app, "admin", project="other")
    async with open_tail(one, LIST) as tail:
        await other.create("theirs")
        await one.create("mine")
        assert "mine" == (await tail.some(1))[0].data["session_id"]


async def test_a_list_ends_with_its_service(api: RestClient, app: App) -> None:
    """Its reader is told to come back."""
    async with open_tail(api, LIST) as tail:
        await tail.some(1)
        app.services.draining.set()
        assert "goaway" == (await tail.rest())[-1].event
