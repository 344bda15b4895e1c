"""Tails of several sessions find new ones by key: neither clocks nor the order of their becoming visible matter."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient
from tests.support.callers.tail_reader import SEVERAL, Tail, entries, open_tail, refused_tail
from tests.support.clock import NOW, ManualClock
from tests.support.events import final
from tests.support.services import ANY_PORT
from voicemem.app import App, running
from voicemem.config.service import Settings
from voicemem.config.session import validate_config
from voicemem.sessions.tails.several import SETTLED_AFTER, TailOfSeveral

pytestmark = pytest.mark.usefixtures("often")
YEAR_S = 365 * 24 * 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(clock: ManualClock) -> AsyncIterator[App]:
    """A service under a clock that the test moves."""
    async with running(Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT), clock) as app:
        yield app


@pytest.fixture
def api(app: App) -> RestClient:
    return RestClient(app)


async def call(api: RestClient, name: str, **config: Any) -> None:
    """A session with one event, which lasts longer than clocks are moved."""
    await api.create(name, idle_timeout=0, max_duration=3 * YEAR_S, **config)
    await api.send(final(1, name), session_id=name)


async def restore(api: RestClient, source: str, name: str) -> None:
    checkpoint = (await api.get(f"/v1/sessions/{source}/checkpoint")).json
    assert 201 == (await api.post("/v1/restore", {"checkpoint": checkpoint, "session_id": name})).status


async def test_a_start_in_the_future_hides_nothing(api: RestClient, clock: ManualClock) -> None:
    """A session that was made while the clock was ahead, or restored from then, hides none that begins later."""
    async with open_tail(api, SEVERAL) as before:
        clock.wait(YEAR_S)
        await call(api, "ahead")
        clock.wait(-YEAR_S)
        await restore(api, "ahead", "restored")
        told = await before.some(2)
        async with open_tail(api, SEVERAL) as after:
            assert {("ahead", 1), ("restored", 1)} == set(entries(await after.some(2)))
            await call(api, "next")
            await api.create("quiet")
            await api.end("quiet")  # no one rings for it
            told += await before.some(3)
            assert {("next", 1), ("quiet", 1)} == set(entries(await after.some(3)))
    assert {("ahead", 1), ("restored", 1), ("next", 1), ("quiet", 1)} == set(entries(told))
    async with open_tail(api, SEVERAL, told[0].id) as resumed:
        assert [("next", 1), ("quiet", 1), ("restored", 1)] == sorted(entries(await resumed.some(4)))


async def test_a_restored_call_that_goes_on_is_followed(api: RestClient, clock: ManualClock) -> None:
    """A call that began long ago and was restored just now is sent from its first event, and on."""
    await call(api, "long-ago")
    clock.wait(3600)
    await call(api, "newer")
    async with open_tail(api, f"{SEVERAL}?user_id=u") as tail, open_tail(api, SEVERAL) as every:
        await every.some(2)
        await restore(api, "long-ago", "restored")
        assert [("restored", 1)] == entries(await every.some(1))
        await api.send(final(2, "On."), session_id="restored")
        assert [("restored", 2)] == entries(await every.some(1))
        await call(api, "theirs", user_id="u")
        assert [("theirs", 1)] == entries(await tail.some(1))


async def test_a_clock_that_is_set_back_loses_no_call(api: RestClient, clock: ManualClock) -> None:
    """A minute back in the middle of a tail: sessions that begin then are sent as any others."""
    async with open_tail(api, SEVERAL) as tail:
        await call(api, "before")
        await tail.some(1)
        clock.wait(-60)
        await api.create("quiet")
        await api.end("quiet")
        assert [("quiet", 1)] == entries(await tail.some(2))
        await call(api, "after")
        assert [("after", 1)] == entries(await tail.some(1))


async def test_a_tail_is_resumed_after_a_restart_whatever_the_clock_says(tmp_path: Path, clock: ManualClock) -> None:
    """What began before the restart, under a clock that is ahead, and after it, an hour back, is sent once each."""
    settings = Settings(store=f"sqlite:{tmp_path / 'calls.db'}", rest=ANY_PORT, ingest=ANY_PORT)
    async with running(settings, clock) as app:
        api = RestClient(app)
        await call(api, "one")
        clock.wait(YEAR_S)
        await call(api, "ahead")
        async with open_tail(api, SEVERAL) as tail:
            told = await tail.some(2)
        await call(api, "away")
    clock.wait(-YEAR_S - 3600)
    async with running(settings, clock) as app:
        api = RestClient(app)
        await call(api, "back")
        async with open_tail(api, SEVERAL, told[-1].id) as tail:
            assert {("away", 1), ("back", 1)} == set(entries(await tail.some(2)))
            await api.send(final(2, "More."), session_id="one")
            assert [("one", 2)] == entries(await tail.some(1))


async def test_places_of_the_form_before_are_resumed(api: RestClient, app: App) -> None:
    """A place that names no keys but those of followed sessions goes on where it was, and misses nothing."""
    for name in ("a", "b", "c"):
        await call(api, name)
    keys = await app.services.store.journal.list_keys_after("default", 0, 10)
    place = f"{app.services.store.directory.incarnation}.{keys[1]}_{keys[0]}-0_{keys[1]}-1"
    async with open_tail(api, SEVERAL, place) as tail:
        assert {("a", 1), ("c", 1)} == set(entries(await tail.some(2)))


async def test_a_place_that_names_unknown_sessions_is_refused(api: RestClient, app: App) -> None:
    """Keys that no session of the project has were never given out."""
    await call(api, "a")
    here = app.services.store.directory.incarnation
    for place in (f"{here}.7", f"{here}.1_7", f"{here}.1_7-0", f"{here}.{10**15}"):
        assert (400, "invalid_position") == await refused_tail(api, SEVERAL, place), place


async def test_erased_sessions_are_passed_over(api: RestClient) -> None:
    """One that is erased before it is found is not sent; one that is followed ends; a place that knows both holds."""
    async with open_tail(api, SEVERAL) as tail:
        await call(api, "a")
        place = (await tail.some(1))[0].id
        await api.delete("/v1/sessions/a")
        assert ["erased"] == [one.data["state"] for one in await tail.some(1)]
        after = tail.id
    await call(api, "b")
    await api.delete("/v1/sessions/b")
    await call(api, "c")
    async with open_tail(api, SEVERAL, place) as tail:
        assert [("end", "a"), ("entry", "c")] == sorted(
            (one.event, one.data["session_id"]) for one in await tail.some(2)
        )
    async with open_tail(api, SEVERAL, after) as tail:
        assert [("c", 1)] == entries(await tail.some(1))


class LateKeys:
    """Lets keys become visible when a test says so, as those of another node do."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hidden: set[int] = set()
        self.loaded = self.listed = 0
        journal = app.services.store.journal
        self.watch(monkeypatch, journal, "list_newest_keys", lambda key: key)
        self.watch(monkeypatch, journal, "list_keys_after", lambda key: key)
        self.watch(monkeypatch, journal, "find_sessions", lambda stream: stream.key)
        self.watch(monkeypatch, journal, "list_sessions", lambda stream: stream.key)

    def watch(self, monkeypatch: pytest.MonkeyPatch, journal: Any, name: str, key_of: Callable[[Any], int]) -> None:
        original = getattr(journal, name)

        async def visible(*asked: Any) -> list[Any]:
            found = [one for one in await original(*asked) if key_of(one) not in self.hidden]
            self.listed += len(found) * name.startswith("list")
            self.loaded += len(found) * (not name.endswith("keys") and not name.endswith("after"))
            return found

        monkeypatch.setattr(journal, name, visible)


async def test_keys_that_become_visible_out_of_order_are_found(
    api: RestClient, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lower key that comes after a higher one is found, also by a tail that was resumed in between."""
    late = LateKeys(app, monkeypatch)
    async with open_tail(api, SEVERAL) as tail:
        await api.create("first")
        (first,) = await app.services.store.journal.list_newest_keys("default", 1)
        late.hidden |= {first + 1, first + 2}
        await api.create("late")
        await api.end("late")
        await api.create("later")
        await api.end("later")
        await call(api, "newest")
        told = await tail.some(1)
        late.hidden.discard(first + 1)
        assert [("late", 1)] == entries(await tail.some(2))
        place = tail.id
    late.hidden.clear()
    async with open_tail(api, SEVERAL, place) as tail:
        assert [("later", 1)] == entries(await tail.some(2))
    async with open_tail(api, SEVERAL, told[0].id) as tail:
        assert [("late", 1), ("later", 1)] == sorted(entries(await tail.some(4)))


async def look_around(app: App, times: int) -> None:
    """Let the only open tail look for new sessions."""
    (tail,) = app.services.tails.open_tails
    assert isinstance(tail, TailOfSeveral)
    for _ in range(times):
        await tail.poll()


async def begun(tail: Tail, api: RestClient) -> None:
    """Wait until a tail has begun."""
    await call(api, "begun", user_id="u")
    assert [("begun", 1)] == entries(await tail.some(1))


async def test_the_sessions_of_a_project_cost_nothing_at_a_look(
    api: RestClient, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10,000 sessions a look that finds nothing lists a bounded number of keys and loads none."""
    monkeypatch.setattr("voicemem.sessions.tails.tail.POLL_S", 3600)
    store, nothing = app.services.store, validate_config({"idle_timeout": 0})
    await asyncio.gather(*(store.journal.create_session("default", f"s{n}", nothing, NOW) for n in range(10_000)))
    async with open_tail(api, f"{SEVERAL}?user_id=u") as tail:
        await begun(tail, api)
        await look_around(app, 1)
        late = LateKeys(app, monkeypatch)
        await look_around(app, 10)
        assert (0, True) == (late.loaded, late.listed <= 10 * 300)
        await asyncio.gather(*(store.journal.create_session("default", f"t{n}", nothing, NOW) for n in range(1_000)))
        await look_around(app, 1)
        assert 1_000 == late.loaded
        (followed,) = app.services.tails.open_tails
        assert isinstance(followed, TailOfSeveral)
        await look_around(app, SETTLED_AFTER)
        assert len(followed.known.seen) <= 256
        assert len(followed.cursor) < 1_000
