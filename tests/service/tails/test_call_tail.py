"""Tails of a call: all that a page shows of it, in one stream."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.callers.rest import RestClient
from tests.support.callers.tail_reader import ONE, Tail, TailEvent, open_tail, refused_tail
from tests.support.events import delta, done, event, final, interrupt, partial, resume, tts
from tests.support.samples.history_reader import HistoryReader, exact_json
from voicemem.app import App
from voicemem.protocol.types import JsonObject

CALL = f"{ONE}?view=call"
EVENTS = [
    partial(1, "How", 1000), final(1, "How are you?", 1400), delta(1, "Fine, ", 1700), delta(1, "thank you.", 1750),
    event("metric", 1, 1800, name="e2e", latency_ms=400), done(1, 1800), tts(1, 1900, heard_text="Fine, "),
    interrupt(1, 2200), resume(1, 2500), event("tool.call", 2, 2700, call_id="a", name="weather", arguments={}),
    final(2, "Good.", 2900), event("tool.result", 2, 3000, call_id="a", result="sunny"), delta(2, "Yes.", 3100),
    done(2, 3400), tts(2, 3900, done=True), partial(3, "Well", 4200),
]  # fmt: skip


class CallReader:
    """Keeps a call as a page does."""

    def __init__(self) -> None:
        self.messages = HistoryReader()
        self.turns: dict[int, JsonObject] = {}
        self.memory: JsonObject = {}
        self.state: JsonObject = {}
        self.told: list[str] = []

    def take(self, told: TailEvent) -> None:
        self.told.append(told.event)
        match told.event:
            case "messages":
                self.messages.take(told.data)
            case "turn":
                row = {name: value for name, value in told.data.items() if name not in ("session_id", "position")}
                self.turns[row["turn_id"]] = row
            case "memory":
                self.memory = told.data
            case "state":
                self.state = told.data

    async def catch_up(self, tail: Tail, api: RestClient) -> None:
        """Read until all is as the service tells it to whoever asks."""
        while not await self.is_current(api):
            (told,) = await tail.some(1)
            self.take(told)

    async def is_current(self, api: RestClient) -> bool:
        session, memory = await api.session(), (await api.get("/v1/sessions/s/memory")).json
        turns = (await api.get("/v1/sessions/s/turns?marks=true")).json["turns"]
        return (
            exact_json(await api.contents(query="?open=true")) == exact_json(self.messages.shown())
            and turns == [row for _, row in sorted(self.turns.items())]
            and {**memory, "position": 0} == {**self.memory, "position": 0}
            and session["state"] == self.state.get("state")
        )


async def test_a_reader_has_the_whole_call_after_each_event(api: RestClient) -> None:
    """Messages, turns, the rest of the memory and the state are those of REST, whatever is sent or changed."""
    reader = CallReader()
    async with open_tail(api, CALL) as tail:
        await reader.catch_up(tail, api)
        for one in EVENTS:
            await api.send(one)
            await reader.catch_up(tail, api)
        await api.patch("/v1/sessions/s/working-memory", {"content": "Tea."})
        await reader.catch_up(tail, api)
        assert 1 == reader.memory["working_memory"]["version"]
        await api.post("/v1/sessions/s/forget", {"through_turn": 1})
        await reader.catch_up(tail, api)
        assert 1 == reader.memory["forgotten"][0]["through_turn"]


async def test_everything_comes_first_and_then_what_changes(api: RestClient) -> None:
    """The first piece has all; an event that changes one turn tells of that turn alone, and the memory stays untold."""
    await api.send(*EVENTS)
    reader = CallReader()
    async with open_tail(api, CALL) as tail:
        await reader.catch_up(tail, api)
        assert ["turn", "turn", "turn", "memory", "state", "messages"] == reader.told
        reader.told.clear()
        await api.send(final(3, "Well, then.", 4500))
        await reader.catch_up(tail, api)
        assert ["turn", "messages"] == reader.told


async def test_the_end_is_told_and_ends_it(api: RestClient) -> None:
    """A state says that the call has ended; then the tail ends as others do."""
    await api.send(*EVENTS)
    async with open_tail(api, CALL) as tail:
        reader = CallReader()
        await reader.catch_up(tail, api)
        ended = await api.end(reason="hangup")
        for told in await tail.rest():
            reader.take(told)
    assert ("ended", "hangup", ended["ended_at"]) == tuple(
        reader.state[name] for name in ("state", "reason", "ended_at")
    )
    assert "end" == reader.told[-1]
    assert await reader.is_current(api)


async def test_an_erased_call_is_told(api: RestClient) -> None:
    """Nothing more comes of it."""
    await api.send(*EVENTS[:3])
    async with open_tail(api, CALL) as tail:
        await CallReader().catch_up(tail, api)
        await api.delete("/v1/sessions/s")
        assert ("end", "erased") == [(one.event, one.data["state"]) for one in await tail.rest()][-1]


async def test_a_reader_that_returns_misses_nothing(api: RestClient) -> None:
    """Wherever it was cut off it is sent the turns, the memory and the state again, and of the messages what is new."""
    reader = CallReader()
    await api.send(*EVENTS[:4])
    async with open_tail(api, CALL) as tail:
        await reader.catch_up(tail, api)
        place = tail.id
    await api.send(*EVENTS[4:])
    async with open_tail(api, CALL, place) as tail:
        await reader.catch_up(tail, api)


async def test_readers_of_one_call_share_what_is_kept(app: App, api: RestClient) -> None:
    """Each has the whole call, also one that came later."""
    first, second = CallReader(), CallReader()
    await api.send(*EVENTS[:6])
    async with open_tail(api, CALL) as one:
        await first.catch_up(one, api)
        async with open_tail(api, CALL) as other:
            await second.catch_up(other, api)
            await api.send(*EVENTS[6:])
            await second.catch_up(other, api)
        await first.catch_up(one, api)
        assert 1 == len(app.services.tails.sources.followed.turns)


async def test_a_document_of_the_user_is_followed(api: RestClient) -> None:
    """It may be changed where no event of the call says so."""
    await api.create("shared", user_id="ann", working_memory={"scope": "user"})
    async with open_tail(api, "/v1/sessions/shared/events?view=call") as tail:
        told = await tail.some(2)
        assert ["memory", "state"] == [one.event for one in told]
        await api.patch("/v1/users/ann/working-memory", {"content": "Tea."})
        (changed,) = await tail.some(1)
        assert ("memory", 1) == (changed.event, changed.data["working_memory"]["version"])


async def test_only_one_call_is_followed_so(api: RestClient) -> None:
    """A tail of several sessions has no such view."""
    assert (400, "invalid_query") == await refused_tail(api, "/v1/events?view=call")
