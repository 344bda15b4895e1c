"""The turns of a call over REST, and when their parts were."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, event, final, interrupt, partial, resume, tts
from voicemem.protocol.types import JsonObject

CALL = [
    partial(1, "How", 1000), final(1, "How is the weather?", 1400),
    event("tool.call", 1, 1500, call_id="a", name="weather", arguments={}),
    event("tool.result", 1, 1650, call_id="a", result={"error": "no such town"}),
    delta(1, "I do not know.", 1700), done(1, 1900), tts(1, 2000, audio_ms=0),
    interrupt(1, 2300), resume(1, 2600), tts(1, 3200, done=True),
]  # fmt: skip


async def turn_of(api: RestClient, query: str = "") -> JsonObject:
    answered = await api.get(f"/v1/sessions/s/turns{query}")
    assert 200 == answered.status
    (turn,) = answered.json["turns"]
    return dict(turn)


async def test_marks_say_when_the_parts_of_a_turn_were(api: RestClient) -> None:
    """With marks=true each turn has the times of its parts and of its tool calls, all on the producer's clock."""
    await api.create()
    await api.send(*CALL)
    turn = await turn_of(api, "?marks=true")
    expected: JsonObject = {
        "user_started": 1000, "user_ended": 1400, "user_final": 1400, "llm_first": 1700, "llm_done": 1900,
        "heard_first": 2000, "heard_last": 3200, "cut": None, "resumed": 2600, "estimated": [],
    }  # fmt: skip
    assert expected == turn["marks"]
    assert [{"name": "weather", "call_id": "a", "started": 1500, "ended": 1650, "failed": True}] == turn["tools"]


async def test_without_marks_there_are_none(api: RestClient) -> None:
    """The turns stay as they were, and have the number of their false alarms; so have the statistics."""
    await api.create()
    await api.send(*CALL)
    turn = await turn_of(api)
    waited = "reply_after_ms", "reply_after_by"
    assert ["agent_id", "channel", "turn_id", "start", "end", "metrics", *waited, "false_alarms"] == list(turn)
    assert (600, "marks") == tuple(turn[name] for name in waited)
    assert (1, "ok") == (turn["false_alarms"], turn["end"]["type"])
    statistics = (await api.get("/v1/sessions/s/stats")).json
    assert 1 == statistics["false_alarms"]
    assert {"count": 1, "p50": 600, "p90": 600, "p99": 600, "max": 600} == statistics["reply_after"]


async def test_a_turn_that_begins_has_no_marks_yet(api: RestClient) -> None:
    """What has not been is null."""
    await api.create()
    await api.send(partial(1, "How", 1000))
    turn = await turn_of(api, "?marks=true")
    assert {1000, None} == {value for name, value in turn["marks"].items() if name != "estimated"}
    assert (None, [], 0) == (turn["end"], turn["tools"], turn["false_alarms"])
