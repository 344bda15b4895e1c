"""The payloads of notices: latencies by Agora's names, and ids that tell notices apart."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

import pytest
from calls import event, final, folded

from voicemem.config.session import CLOSE_EVENTS
from voicemem.store.records import notice_id
from voicemem.transcript.state import Latency
from voicemem.webhooks.payloads import latencies_of, left_payload, metrics_payload, session_fields, turns_payload

SESSION = session_fields("s", None, None, {}, 1_999)


def measured(**latencies: float) -> list[Latency]:
    return [Latency(name, ms, 0) for name, ms in latencies.items()]


def test_what_is_missing_is_empty() -> None:
    """A session without name and channel has empty ones, and its start is in whole seconds."""
    assert {"agent_id": "s", "name": "", "channel": "", "start_ts": 1, "labels": {}} == SESSION


def test_notices_of_a_close_have_their_own_ids() -> None:
    """The history's is that of the close."""
    ids = [notice_id("n", event_type) for event_type in CLOSE_EVENTS]
    assert ["n-102", "n", "n-111", "n-112"] == ids


@pytest.mark.parametrize(
    ("reason", "message"),
    [("idle", "Idle for too long"), ("max_duration", "Task lifetime limit exceeded"), ("left", "OK"), (None, "OK")],
)
def test_how_a_session_left(reason: str | None, message: str) -> None:
    """The notice of leaving gives the reason in Agora's words."""
    left = json.loads(left_payload(SESSION, 5_999, reason))
    assert SESSION | {"stop_ts": 5, "status": "STOPPED", "message": message} == left


def test_latencies_have_agoras_names() -> None:
    """The newest of each name counts; a time to first token is Agora's time to first byte, unless that is there too."""
    assert {"llm_ttfb": 2, "tts_ttfb": 1.5} == latencies_of(measured(llm_ttft=2.0, tts_ttfb=1.5))
    assert {"llm_ttfb": 3} == latencies_of(measured(llm_ttfb=3, llm_ttft=2))
    assert {"llm_ttfb": 3} == latencies_of([*measured(llm_ttfb=2), *measured(llm_ttfb=3)])


def test_a_latency_cannot_pass_for_a_turn() -> None:
    """What a producer names `turn_id` is left out, and so is the latency of the whole turn."""
    assert {} == latencies_of(measured(turn_id=9, e2e=800))


def test_turns_without_latencies_are_not_measured() -> None:
    """The notice of metrics holds those that are, the one of turns all."""
    state = folded(final(1, "Hi.", 5), final(2, "Hello?", 6), event("metric", 2, 7, name="asr_ttlw", latency_ms=40))
    metrics = json.loads(metrics_payload(SESSION, 9_000, state))
    turns = json.loads(turns_payload(SESSION, 9_000, state))

    assert [{"turn_id": 2, "asr_ttlw": 40}] == metrics["metrics"]
    assert ([1, 2], [{}, {"asr_ttlw": 40}]) == (
        [turn["turn_id"] for turn in turns["turns"]],
        [turn["metrics"]["segmented_latency_ms"] for turn in turns["turns"]],
    )
    assert (9, 9) == (metrics["stop_ts"], turns["stop_ts"])
