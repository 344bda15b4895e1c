"""The recorded calls of `fixtures/`: their events give exactly the memory that stands beside them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest

from tests.support.paths import FIXTURES
from tests.support.rows import every_row
from tests.support.transcripts import closed, journaled, message_dicts
from voicemem.context.formats import RequestFormat, request_body
from voicemem.protocol.events import JournaledEvent, SessionClosed, SessionEnd
from voicemem.protocol.pieces import WHOLE_ENCODER
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold, fold_all
from voicemem.transcript.history import messages, tool_uses
from voicemem.transcript.state import State, decode_state, encode_state
from voicemem.webhooks.outbox import history_payload, session_fields

CALLS = sorted(path.stem for path in FIXTURES.glob("*.jsonl"))
SHORT = [name for name in CALLS if name != "long_call"]
CUSTOM = RequestFormat(vendor="custom", model="xxxx")
"""What `.custom.json` is the body for."""


def expected(name: str, kind: str = "contents") -> str:
    """A document beside a call, as JSON with its keys in their order."""
    return json.dumps(json.loads((FIXTURES / f"{name}.{kind}.json").read_text("utf-8")))


def written(value: Any) -> str:
    """A document as it would be written, as JSON with its keys in their order."""
    return json.dumps(json.loads(msgspec.json.encode(value)))


@cache
def journal(name: str) -> list[DecodedRow]:
    """The journal of a call: its events, and the close where it ends."""
    given: list[JsonObject] = [
        json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text("utf-8").splitlines()
    ]
    events: list[JournaledEvent] = [journaled(one) for one in given]
    last = events[-1]
    if isinstance(last, SessionEnd):
        assert last.ts is not None
        events.append(closed(last.ts))
    return [DecodedRow(position, 0, one) for position, one in enumerate(events, 1)]


@cache
def replayed(name: str) -> State:
    """The state after a call."""
    return fold_all(State(), journal(name))


@every_row("name", CALLS)
def test_call_gives_its_contents(name: str) -> None:
    """All events folded at once give the memory, equal as JSON and in the order of keys."""
    assert written({"contents": messages(replayed(name))}) == expected(name)


@every_row("name", SHORT)
def test_call_gives_its_contents_event_by_event(name: str) -> None:
    """A process that keeps a snapshot and starts again after each event, and reads at each, gives the same memory."""
    state = State()
    for entry in journal(name):
        state = decode_state(encode_state(fold(state, entry)))
        message_dicts(state, unfinished=True)
    assert written({"contents": messages(state)}) == expected(name)


@pytest.mark.parametrize("name", ["long_call"])
def test_long_call_gives_its_contents_from_snapshots(name: str) -> None:
    """A long call is restored now and then, and gives the same memory."""
    state = State()
    for entry in journal(name):
        fold(state, entry)
        if entry.position % 100 == 0:
            state = decode_state(encode_state(state))
    assert written({"contents": messages(state)}) == expected(name)


@every_row("name", CALLS)
def test_call_is_numbered_without_holes(name: str) -> None:
    """A recorded call is what one producer sends: seq from 1, or none at all."""
    numbers = [entry.event.seq for entry in journal(name) if not isinstance(entry.event, SessionClosed)]
    assert numbers in ([*range(1, len(numbers) + 1)], [None] * len(numbers))


@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in FIXTURES.glob("*.standard.json")))
def test_call_gives_its_standard_body(name: str) -> None:
    """The context of a session whose `llm` says nothing has role and content only."""
    state = replayed(name)
    assert written(request_body(messages(state), tool_uses(state), RequestFormat())) == expected(name, "standard")


@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in FIXTURES.glob("*.custom.json")))
def test_call_gives_its_custom_body(name: str) -> None:
    """The context for the vendor `custom` has every field."""
    state = replayed(name)
    assert written(request_body(messages(state), tool_uses(state), CUSTOM)) == expected(name, "custom")


@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in FIXTURES.glob("*.webhook.json")))
def test_call_gives_its_webhook_event(name: str) -> None:
    """The contents of the webhook's payload are the memory."""
    contents = messages(replayed(name))
    payload = history_payload(session_fields("s", None, None, {}, 0), 0, contents, "full")
    payload = json.loads(WHOLE_ENCODER.encode(payload))
    assert json.dumps({"contents": payload["contents"]}) == expected(name, "webhook")


def test_every_document_belongs_to_a_call() -> None:
    """Each call has its contents, and no document stands alone."""
    stems = {path.name.split(".")[0] for path in FIXTURES.iterdir()}
    assert sorted(stems) == CALLS
    assert sorted(path.name.split(".")[0] for path in FIXTURES.glob("*.contents.json")) == CALLS


def test_every_call_is_told_of() -> None:
    """The list of calls in the folder's README is complete."""
    table = (FIXTURES.parent / "README.md").read_text("utf-8")
    assert [name for name in CALLS if f"| `{name}` |" not in table] == []
