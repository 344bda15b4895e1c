"""vCon, held to the draft; tests/process/packaging has the package `vcon` read it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from msgspec import structs

from tests.support.checks.vcon import check_vcon
from tests.support.events import event, final, message, typed
from tests.support.profiles import examples
from tests.support.samples.exported_calls import EVENTS, JOKE, START, TEXTS, call_after, call_from, said
from tests.support.strategies import PRODUCER_JOURNALS
from tests.support.transcripts import entries
from voicemem.exports.call import Call
from voicemem.exports.vcon import vcon
from voicemem.protocol.events import JournaledEvent
from voicemem.transcript.fold import fold_all
from voicemem.transcript.messages import Summary
from voicemem.transcript.state import State


def written(call: Call) -> dict[str, Any]:
    """The vCon of a call, which holds to the draft."""
    text = "".join(vcon(call))
    assert 1 == text.count("\n")
    one: dict[str, Any] = json.loads(text)
    check_vcon(one)
    return one


def of_kind(one: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each for each in one["analysis"] if each["type"] == kind]


def test_what_was_heard_is_the_dialog() -> None:
    """A text for each utterance, from its party, with its time; the user's id is that of the caller."""
    one = written(call_after(*EVENTS, user_id="ann", name="Front desk"))
    assert "Front desk" == one["subject"]
    assert [("Agent", None), ("Caller", "ann")] == [(each["name"], each.get("uuid")) for each in one["parties"]]
    assert [
        ("2026-09-21T14:13:20.000Z", None, [1], "Tell me a joke."),
        ("2026-09-21T14:13:22.000Z", 3.0, [0], "Why did the scarecrow "),
        ("2026-09-21T14:13:26.000Z", None, [1], "Stop."),
    ] == [(each["start"], each.get("duration"), each["parties"], each["body"]) for each in one["dialog"]]


def test_an_interruption_is_an_analysis_of_its_dialog() -> None:
    """With what was not heard, and how it is known."""
    (found,) = of_kind(written(call_after(*EVENTS)), "interruption")
    assert 1 == found["dialog"]
    assert {
        "turn_id": 2,
        "interrupted_at": "2026-09-21T14:13:25.000Z",
        "heard": "Why did the scarecrow ",
        "unheard": JOKE[22:],
        "generated": JOKE,
        "heard_by": "exact",
    } == found["body"]


def test_tool_calls_the_summary_and_the_session_are_analysis_too() -> None:
    """Each names the dialog that it is about."""
    call = structs.replace(call_after(*EVENTS, labels={"line": "shop"}), summary=Summary(2, "They joked.", 2))
    one = written(call)
    (tool,), (summary,), (session,) = (of_kind(one, kind) for kind in ("tool_call", "summary", "session"))
    assert ([2], "find", ["none"]) == (tool["dialog"], tool["body"]["name"], tool["body"]["result"])
    assert ([0, 1], "They joked.") == (summary["dialog"], summary["body"])
    assert ([0, 1, 2], {"line": "shop"}) == (session["dialog"], session["body"]["labels"])


def test_a_vcon_grows_as_its_call_does() -> None:
    """Also where one turn has many messages and many tool calls: each of these names the beginning of it."""
    told = [typed(1, f"Line {n}.", START + n) for n in range(500)]
    tools = [event("tool.call", 1, call_id=f"{n}", name="find", arguments={}) for n in range(500)]
    found = of_kind(written(call_after(*told, *tools)), "tool_call")
    assert [[*range(64)]] * 500 == [tool["dialog"] for tool in found]


def test_each_caller_is_a_party() -> None:
    """Also one who is called like the agent."""
    call = call_after(final(1, "Hi.", START, user="Ann"), final(2, "Hello.", START + 1, user="Agent"))
    one = written(call)
    assert ["Agent", "Ann", "Agent"] == [each["name"] for each in one["parties"]]
    assert [[1], [2]] == [each["parties"] for each in one["dialog"]]


def test_a_call_in_which_nothing_was_said_is_a_vcon() -> None:
    """With its parties, and without dialog."""
    assert [] == written(call_after())["dialog"]


def test_the_same_call_is_the_same_vcon_and_another_is_not() -> None:
    """So receivers can tell whether they have it."""
    one, again = ("".join(vcon(call_after(*EVENTS))) for _ in range(2))
    assert one == again
    others = {written(call_after(**facts))["uuid"] for facts in ({}, {"session_id": "x"}, {"started_ms": START + 1})}
    assert 3 == len(others)


@given(TEXTS, TEXTS)
def test_texts_are_as_they_were_said(text: str, unheard: str) -> None:
    """Nothing is taken out or changed."""
    call = said(text, "x ", unheard)
    assert [one.heard for one in call.utterances] == [each["body"] for each in written(call)["dialog"]]


@examples(0.2)
@given(PRODUCER_JOURNALS)
def test_every_call_is_a_vcon(journal: list[JournaledEvent]) -> None:
    """Whatever its producers said, and whatever times they gave."""
    written(call_from(fold_all(State(), entries(journal))))


def test_a_recording_is_a_dialog_of_all_parties() -> None:
    """It stands behind the texts, with its address; without one there is none."""
    plain, one = written(call_after(*EVENTS)), written(call_after(*EVENTS, recording="https://example.com/a.mp3"))
    assert plain["dialog"] == one["dialog"][:-1]
    assert one["dialog"][-1] == {
        "type": "recording",
        "start": "2026-09-21T14:13:20.000Z",
        "duration": 6.0,
        "parties": [0, 1],
        "url": "https://example.com/a.mp3",
    }


def test_latencies_are_an_analysis_of_their_turn() -> None:
    """How long the caller waited, and what the stack reported."""
    stages = {"llm_ttft": 210, "e2e": 650}
    measured = [event("metric", 2, START, name=name, latency_ms=ms) for name, ms in stages.items()]
    (found,) = of_kind(written(call_after(*EVENTS, *measured)), "latency")
    assert found["dialog"] == [1]
    assert found["body"] == {
        "turn_id": 2,
        "reply_after_ms": 650,
        "reply_after_by": "reported",
        "e2e_latency_ms": 650,
        "segmented_latency_ms": {"llm_ttft": 210},
    }


def test_agents_are_parties_by_name() -> None:
    """One who is called like a caller is another party; a reply of no named agent is the agent's."""
    named = [message(4, "Yes?", START + 9_000, metadata={"agent": name}) for name in ("billing", "Caller", " ")]
    one = written(call_after(*EVENTS, *named))
    assert ["Agent", "Caller", "billing", "Caller"] == [each["name"] for each in one["parties"]]
    assert [[2], [3], [0]] == [each["parties"] for each in one["dialog"][-3:]]
