"""The demo of several nodes would webhook event what it says did not happen."""

from __future__ import annotations

from typing import Any

import pytest

from bench.nodes.demo import Call, check_events, check_histories, check_sessions, check_webhook_events
from voicemem.webhooks.requests import WebhookEvent

CONTENTS = [{"role": "user", "content": "Hi."}]


@pytest.fixture
def call() -> Call:
    """A call of which two producers have sent two events each."""
    one = Call("call-1", [])
    one.sent |= {"asr": 2, "llm": 2}
    return one


def stored(*keys: tuple[str | None, int]) -> list[dict[str, Any]]:
    return [{"producer": producer, "seq": seq} for producer, seq in keys]


WHOLE: tuple[tuple[str | None, int], ...] = (("asr", 1), ("llm", 1), ("asr", 2), ("llm", 2))


def test_a_journal_with_every_event_once_is_right(call: Call) -> None:
    """What the service itself has written is not counted."""
    assert check_events([call], [stored(*WHOLE, (None, 0), (None, 0))]).holds


@pytest.mark.parametrize(
    ("keys", "found"),
    [(WHOLE[:-1], "1 lost, 0 stored twice"), ((*WHOLE, ("asr", 1)), "0 lost, 1 stored twice")],
    ids=["lost", "doubled"],
)
def test_a_lost_and_a_doubled_event_are_found(call: Call, keys: tuple[tuple[str, int], ...], found: str) -> None:
    """Both fail, and the count says which it was."""
    finding = check_events([call], [stored(*keys)])
    assert not finding.holds
    assert found in finding.found


def test_another_memory_and_an_open_session_are_found() -> None:
    """One call of two is not as it should be."""
    right, wrong = {"contents": CONTENTS, "state": "ended"}, {"contents": [], "state": "running"}
    assert check_histories([right, right], CONTENTS).holds
    assert not check_histories([right, wrong], CONTENTS).holds
    assert check_sessions([right]).holds
    assert not check_sessions([right, wrong]).holds


def webhook_event(contents: object = CONTENTS, valid: bool = True, session_id: str = "call-1") -> WebhookEvent:
    return WebhookEvent({}, {"payload": {"agent_id": session_id, "contents": contents}}, {"signature": valid})


def test_webhooks_are_right_when_each_call_has_one(call: Call) -> None:
    """Those of other sessions do not count."""
    assert check_webhook_events([call], [webhook_event(), webhook_event([], session_id="other")], CONTENTS).holds


@pytest.mark.parametrize(
    "webhook_events",
    [[], [webhook_event(), webhook_event()], [webhook_event([])], [webhook_event(valid=False)]],
    ids=["none", "twice", "another memory", "wrong signature"],
)
def test_webhooks_that_are_wrong_are_found(call: Call, webhook_events: list[WebhookEvent]) -> None:
    """None, two, another memory, or a signature that is not right."""
    assert not check_webhook_events([call], webhook_events, CONTENTS).holds
