"""Parts of a journal over REST: types of events, one turn, backwards."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import delta, dialogue, done, event, final, tts
from tests.support.rows import every_row
from voicemem.protocol.types import JsonObject

CALL = [
    final(1, "Hi.", 1000), delta(1, "Hello.", 1100, item="a"), done(None, 1200, item="a"),
    tts(None, 1300, item="a", audio_ms=10), event("tool.call", 2, 1400, call_id="c", name="weather", arguments={}),
    event("tool.result", None, 1500, call_id="c", result="sunny"), final(2, "Rain?", 1600), final(3, "Bye.", 1700),
]  # fmt: skip


async def positions(api: RestClient, query: str) -> list[int]:
    return [row["position"] for row in await rows(api, query)]


async def rows(api: RestClient, query: str) -> list[JsonObject]:
    answered = await api.get(f"/v1/sessions/s/events?{query}")
    assert 200 == answered.status, answered.body
    return [json.loads(line) for line in answered.body.splitlines()]


@pytest.fixture
async def call(api: RestClient) -> RestClient:
    await api.create()
    await api.send(*CALL)
    return api


async def test_types_of_events(call: RestClient) -> None:
    """Names mean themselves, and with a star all that begin so; several mean any of them."""
    await call.post("/v1/sessions/s/forget", {"through_turn": 1})
    await call.patch("/v1/sessions/s/working-memory", {"content": "Tea."})
    assert [1, 7, 8] == await positions(call, "types=asr")
    assert [5, 6, 9, 10] == await positions(call, "types=tool.*,memory.*")
    assert [9] == await positions(call, "types=memory.forgotten,refused")
    assert [] == await positions(call, "types=refused")
    assert [5, 6] == await positions(call, "types=tool.*&native=true")


async def test_what_is_of_a_turn(call: RestClient) -> None:
    """Whatever names the turn, an item of it, or a tool call of it."""
    assert [1, 2, 3, 4] == await positions(call, "turn_id=1")
    assert [5, 6, 7] == await positions(call, "turn_id=2")
    assert [6] == await positions(call, "turn_id=2&types=tool.result&native=true")
    assert [] == await positions(call, "turn_id=9")


async def test_events_without_turns_stand_in_the_turn_that_they_began(api: RestClient) -> None:
    """An engine that numbers nothing has turns too."""
    await api.create()
    await api.send(final(None, "One.", 1000), delta(None, "Yes.", 1100), done(None, 1200), final(None, "Two.", 1300))
    assert [1, 2] == await positions(api, "turn_id=1")
    assert [4] == await positions(api, "turn_id=2")


async def test_backwards(call: RestClient) -> None:
    """The newest first, below a position, down to `after`; a limit counts what is left."""
    assert list(range(8, 0, -1)) == await positions(call, "before=9007199254740991")
    assert [4, 3] == await positions(call, "before=5&limit=2")
    assert [4, 3] == await positions(call, "before=5&after=2")
    assert [8, 7] == await positions(call, "before=99&types=asr&limit=2")
    assert [] == await positions(call, "before=1")
    forwards, backwards = await rows(call, "after=0"), await rows(call, "before=99")
    assert forwards == backwards[::-1]


async def test_a_limit_counts_what_is_wanted(call: RestClient) -> None:
    """Entries that are left out do not count."""
    assert [1, 7] == await positions(call, "types=asr&limit=2")
    assert [7] == await positions(call, "types=asr&limit=1&after=1")


async def test_pages_of_large_entries_come_in_order(api: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that comes short is read in parts; nothing is missing or doubled."""
    monkeypatch.setattr("voicemem.sessions.journal_pages.PAGE", 7)
    monkeypatch.setattr("voicemem.store.runs.PAGE_BYTES", 500)
    await api.create()
    for turn in range(1, 13):
        await api.send(*dialogue(1), final(turn, "x" * (turn % 4) * 200))
    end = (await api.session())["position"]
    assert list(range(end, 0, -1)) == await positions(api, f"before={end + 1}")
    assert list(range(1, end + 1)) == await positions(api, "after=0")
    assert 12 == len(await rows(api, f"before={end + 1}&types=llm.done"))


@every_row("query", ["types=", "types=a,,b", "types=*", "types=ASR", "before=0", "turn_id=-1", "before=9&native=true"])
async def test_what_is_no_part(call: RestClient, query: str) -> None:
    """It is refused."""
    assert (400, "invalid_query") == (await call.get(f"/v1/sessions/s/events?{query}")).problem


@pytest.mark.parametrize("query", ["types=asr", "turn_id=0", "before=9"])
async def test_a_tail_has_no_parts(call: RestClient, query: str) -> None:
    """It follows everything."""
    answered = await call.get(f"/v1/sessions/s/events?{query}", {"Accept": "text/event-stream"})
    assert (400, "invalid_query") == answered.problem
