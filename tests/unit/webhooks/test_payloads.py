"""The payloads of webhook events, their fields and their ids."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.events import event, final
from tests.support.transcripts import folded
from voicemem.config.session import HISTORY_EVENT
from voicemem.protocol.pieces import WHOLE_ENCODER, object_parts
from voicemem.store.outbox import Endpoint
from voicemem.transcript.messages import Message
from voicemem.transcript.state import Latency
from voicemem.webhooks.outbox import (
    history_payload,
    latencies_of,
    left_payload,
    make_attempt_request,
    metrics_payload,
    session_fields,
    turns_payload,
)

SESSION = session_fields("s", None, None, {}, 1_999)


def measured(**latencies: float) -> list[Latency]:
    return [Latency(name, ms, 0) for name, ms in latencies.items()]


def test_what_is_missing_is_empty() -> None:
    """A session without name and channel has empty ones, and its start is in whole seconds."""
    assert {"agent_id": "s", "name": "", "channel": "", "start_ts": 1, "labels": {}} == SESSION


@pytest.mark.parametrize(
    ("reason", "message"),
    [("idle", "Idle for too long"), ("max_duration", "Task lifetime limit exceeded"), ("left", "OK"), (None, "OK")],
)
def test_how_a_session_left(reason: str | None, message: str) -> None:
    """The webhook event of leaving gives the reason in Agora's words."""
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
    """The webhook event of metrics holds those that are, the one of turns all."""
    state = folded(final(1, "Hi.", 5), final(2, "Hello?", 6), event("metric", 2, 7, name="asr_ttlw", latency_ms=40))
    metrics = json.loads(metrics_payload(SESSION, 9_000, state))
    turns = json.loads(turns_payload(SESSION, 9_000, state))

    assert [{"turn_id": 2, "asr_ttlw": 40}] == metrics["metrics"]
    assert ([1, 2], [{}, {"asr_ttlw": 40}]) == (
        [turn["turn_id"] for turn in turns["turns"]],
        [turn["metrics"]["segmented_latency_ms"] for turn in turns["turns"]],
    )
    assert (9, 9) == (metrics["stop_ts"], turns["stop_ts"])


MESSAGES = [
    Message("user", "Erzähl mir\nwas, 讲个故事 \u2028 🦩", 1, 1678901230, {"source": "asr", "user": "ü"}),
    Message(
        "assistant",
        "Why did the ",
        1,
        1678901236,
        {"interrupted": True, "original": "Why did the scarecrow", "source": "llm", "extra": [1]},
    ),
]


def payload(**changes: Any) -> bytes:
    values: dict[str, Any] = {"messages": MESSAGES, "stopped_ms": 1_778_390_400_000, "fields": "full"}
    session = session_fields("S1", "joker", "room", {"tier": "vip"}, 1_778_390_300_999)
    whole = WHOLE_ENCODER.encode(history_payload(session, **(values | changes)))
    assert b"".join(object_parts(history_payload(session, **(values | changes)))) == whole
    return whole


def test_full_payload_has_every_field_in_the_documented_order() -> None:
    """The payload is compact JSON in the documented key order, with whole seconds and non-ASCII text as it is."""
    contents = (
        '[{"role":"user","content":"Erzähl mir\\nwas, 讲个故事 \u2028 🦩","turn_id":1,"timestamp":1678901230,'
        '"metadata":{"source":"asr","user":"ü"}},'
        '{"role":"assistant","content":"Why did the ","turn_id":1,"timestamp":1678901236,'
        '"metadata":{"interrupted":true,"original":"Why did the scarecrow","source":"llm","extra":[1]}}]'
    )
    assert payload().decode() == (
        '{"agent_id":"S1","name":"joker","channel":"room","start_ts":1778390300,"stop_ts":1778390400,'
        f'"labels":{{"tier":"vip"}},"contents":{contents}}}'
    )


def test_standard_payload_carries_role_and_content_only() -> None:
    """`standard` contents hold nothing that a strict receiver refuses."""
    contents = json.loads(payload(fields="standard"))["contents"]
    assert contents == [{"role": m.role, "content": m.content} for m in MESSAGES]


def test_missing_values_are_empty_not_absent() -> None:
    """A session without name, channel, labels and messages gives empty values under all keys."""
    body = history_payload(session_fields("S1", None, None, {}, 1_778_390_300_999), 1_778_390_400_000, [], "full")
    assert WHOLE_ENCODER.encode(body) == (
        b'{"agent_id":"S1","name":"","channel":"","start_ts":1778390300,"stop_ts":1778390400,"labels":{},"contents":[]}'
    )


def test_envelope_splices_the_frozen_payload_in_unchanged() -> None:
    """The payload's bytes stand in the envelope as they are, spacing and escapes included."""
    frozen = b'{"b" : 1,\n"a":"\\u00e4"}'
    endpoint = Endpoint(0, None, "https://a.example", None, "full", public_only=True, disabled_ms=None)
    body = make_attempt_request(endpoint, 'n"1', HISTORY_EVENT, "S1", frozen, 5).body
    head = b'{"noticeId":"n\\"1","productId":17,"eventType":103,"notifyMs":5,"sid":"S1","payload":'
    assert body == head + frozen + b"}"
