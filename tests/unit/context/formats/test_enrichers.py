"""What enrichers write, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.samples.formats import JOKE, SEED_CALL, memories, message_of
from voicemem.context.formats import ENRICHERS, RequestFormat, enriched, originals, request_body, timestamps, users
from voicemem.errors import Refused
from voicemem.transcript.messages import Message


@given(memories, st.lists(st.sampled_from(sorted(ENRICHERS))))
def test_only_user_texts_grow(memory: Sequence[Message], names: list[str]) -> None:
    """Whatever is written goes before what the user said; replies and all other fields stay."""
    for before, after in zip(memory, enriched(memory, names), strict=True):
        assert before == after or before.role == "user"
        assert after.content.endswith(before.content)
        assert (before.turn_id, before.timestamp, before.metadata) == (after.turn_id, after.timestamp, after.metadata)


def test_timestamps_are_utc() -> None:
    """The time of a message is written as ISO 8601 in UTC, to the millisecond."""
    (message,) = timestamps([message_of("user", "Hi.", timestamp=1778390400123)])
    assert message.content == "[2026-05-10T05:20:00.123Z] Hi."


@pytest.mark.parametrize("timestamp", [10**15, -(10**15), 10**40, -(10**40)])
def test_timestamps_that_no_date_can_say(timestamp: int) -> None:
    """A number beyond the calendar stays a number."""
    assert timestamps([message_of("user", "Hi.", timestamp=timestamp)])[0].content == f"[{timestamp}] Hi."


def test_users_are_named() -> None:
    """Who spoke stands before what was said."""
    assert users([message_of("user", "Hi.", user="Ann")])[0].content == "Ann: Hi."


@pytest.mark.parametrize("metadata", [{}, {"user": ""}, {"user": " "}, {"user": None}, {"user": 7}])
def test_unknown_users_are_not_named(metadata: dict[str, Any]) -> None:
    """Where no one said who spoke, nothing is written."""
    assert users([message_of("user", "Hi.", **metadata)])[0].content == "Hi."


def test_originals_tell_the_unheard_part() -> None:
    """What was cut away of a reply stands, marked as unheard, in what the user said next."""
    unheard = JOKE.removeprefix("Why did the scarecrow ")
    note = f'(The assistant was cut off. The user did not hear: "{unheard}")\n'
    assert originals(SEED_CALL)[3].content == note + SEED_CALL[3].content


def test_originals_tell_all_when_the_heard_text_is_no_prefix() -> None:
    """Where the engine heard other words than were generated, the whole reply is told."""
    cut = message_of("assistant", "Why'd the scarecrow", interrupted=True, original=JOKE)
    assert f'did not hear all of: "{JOKE}"' in originals([cut, message_of("user", "Stop.")])[1].content


def test_originals_of_several_replies() -> None:
    """Two replies that were cut in a row are both told, the older one first."""
    cut = [message_of("assistant", "", interrupted=True, original=text) for text in ("One.", "Two.")]
    first, second, words = originals([*cut, message_of("user", "Stop.")])[2].content.split("\n")
    assert ('"One."' in first, '"Two."' in second, words) == (True, True, "Stop.")


def test_originals_without_a_next_user_message() -> None:
    """A cut that no one spoke after is not told."""
    assert originals(SEED_CALL[:3]) == list(SEED_CALL[:3])


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"original": JOKE},
        {"interrupted": True},
        {"interrupted": True, "original": "Why"},
        {"interrupted": True, "original": 7},
    ],
)
def test_originals_when_nothing_was_cut_away(metadata: dict[str, Any]) -> None:
    """A reply that was heard whole, or whose text no one has, gives no note."""
    memory = [message_of("assistant", "Why", **metadata), message_of("user", "Hi.")]
    assert originals(memory) == memory


def test_order_is_the_callers() -> None:
    """Enrichers work on each other's text, in the order in which they are named."""
    memory = [message_of("user", "Hi.", user="Ann")]
    assert enriched(memory, ["timestamps", "users"])[0].content == "Ann: [1970-01-01T00:00:00.000Z] Hi."
    assert enriched(memory, ["users", "timestamps"])[0].content == "[1970-01-01T00:00:00.000Z] Ann: Hi."


@pytest.mark.parametrize("vendor", [None, "custom"])
def test_any_vendor(vendor: str | None) -> None:
    """Enrichers work for every receiver."""
    body = request_body([message_of("user", "Hi.", user="Ann")], [], RequestFormat(vendor=vendor, enrich=("users",)))
    assert body["messages"][0]["content"] == "Ann: Hi."


def test_unknown_name_is_refused() -> None:
    """A name that is not in the table is the caller's mistake."""
    with pytest.raises(Refused) as caught:
        enriched([], ["translations"])
    assert caught.value.detail == "Each name in enrich must be one of timestamps, users, originals."
