"""The shape of what is kept of a call."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from voicemem.protocol.codec import METADATA_ORDER, RESERVED_METADATA
from voicemem.transcript.messages import Message, ToolUse
from voicemem.transcript.timeline import order_metadata

KEYS = st.sampled_from(METADATA_ORDER) | st.text(max_size=3)


def test_message_is_written_in_its_documented_order() -> None:
    """The order of the fields is that of the JSON output."""
    message = Message(role="user", content="Hi.", turn_id=1, timestamp=2, metadata={"source": "asr"})
    expected = b'{"role":"user","content":"Hi.","turn_id":1,"timestamp":2,"metadata":{"source":"asr"}}'
    assert msgspec.json.encode(message) == expected


def test_own_metadata_stands_first_in_its_documented_order() -> None:
    """Reserved keys come in their order, then the rest as it came."""
    given = {"z": 1, "partial": True, "heard": "aligned", "user": "u", "source": "llm", "a": 2}
    given |= {"original": "x", "interrupt_timestamp": 5, "interrupted": True}
    expected = ["interrupted", "interrupt_timestamp", "original", "source", "user", "heard", "partial", "z", "a"]
    assert [*order_metadata(given)] == expected


@given(st.dictionaries(KEYS, st.integers()))
def test_ordering_loses_nothing(metadata: dict[str, int]) -> None:
    """The same keys and values come out, own keys before others, and others in their order."""
    ordered = order_metadata(metadata)
    assert ordered == metadata
    assert [key not in RESERVED_METADATA for key in ordered] == sorted(key not in RESERVED_METADATA for key in ordered)
    others = [key for key in metadata if key not in RESERVED_METADATA]
    assert others == [key for key in ordered if key not in RESERVED_METADATA]


def test_ordering_leaves_its_argument() -> None:
    """The given metadata is not changed."""
    given = {"z": 1, "source": "llm"}
    order_metadata(given)["new"] = 1
    assert [*given] == ["z", "source"]


def test_tool_use_begins_unanswered() -> None:
    """A call without result is told apart from one whose result is null."""
    use = ToolUse(1, 10, "c", "weather", b"{}")
    assert (use.answered, use.result) == (False, None)


def test_metadata_of_most_messages_is_one_object() -> None:
    """A source and a user take memory once; a user that is no text stays as it came."""
    assert order_metadata({"user": "Ann", "source": "asr"}) is order_metadata({"source": "asr", "user": "Ann"})
    assert order_metadata({"source": "asr", "user": None}) == {"source": "asr", "user": None}
