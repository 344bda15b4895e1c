"""What is kept of frames of other stacks: every dialect says where its texts stand."""

from __future__ import annotations

import copy
import json
import re
import sys
import typing
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, journal_rows, reduced
from tests.support.profiles import examples
from tests.support.rows import every_row
from voicemem.dialects.dialect import Text
from voicemem.dialects.kinds import Kind, Record
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.events import FrameEvent
from voicemem.protocol.types import JsonObject
from voicemem.redaction.events import Speech, redact_event
from voicemem.redaction.texts import rules_of

CARD = "4929123456789012"
CARDS = rules_of(["cards"])
NOT_SAID = frozenset(
    """
    type id event_id item_id response_id previous_item_id role status call_id name rate reason code conversation_id
    object user_id message_id module metric_name data_type callSid sessionId call_sid session_id value mime_type label
    tool_name tool_call_id tool_type request_id agent_output_audio_format source_medium new_state function_name
    input_type msg_id timestamp output_type aggregated_by spoken_status topic segment output_audio_format data words
    duration_until_interrupt_ms encoding behavior conversational_behavior
    delegation_id target contentId contentName promptName completionId sessionId toolUseId toolName
    stopReason
    generationStage
    ended_reason turn_id disconnection_reason interaction_type response_type event
    medium state invocation_id error_type end_reason ended event_type start_offset end_offset language_code
    agent_id assistantName job_id
    voiceActivityType vadSignalType activityStart activityEnd
    speaker_label interaction_status locale new_agent_id speaker_id reply ids streamSid sequenceNumber
    """.split()  # noqa: SIM905 (a list would be a page long)
)
"""Fields of frames that are ids, names of kinds, states, times, or parts of messages; words are looked at as such."""
NOT_KEPT = ("Alignment", "Data")
"""Records of what is read and not kept as it is."""
recorded = every_row("recording", RECORDINGS, ids=str)


def keep(dialect: str, contents: list[JsonObject], speech: Speech | None = None) -> list[JsonObject | None]:
    """What is journaled of reduced frames."""
    speech = speech or Speech(CARDS)
    kept = []
    for content in contents:
        event = FrameEvent(dialect=dialect, frame=copy.deepcopy(content))
        redacted = redact_event(event, msgspec.json.encode(event), speech)
        kept.append((redacted or (event, b""))[0].frame)
    return kept


def texts_of(dialect: str, content: JsonObject) -> Iterator[Text]:
    return (text for text in DIALECTS[dialect].texts(content) if text.form != "end")


def value_of(text: Text) -> Any:
    return text.holder[text.key]


@recorded
def test_calls_without_long_numbers_stay_as_they_are(recording: Recording) -> None:
    """Redaction changes nothing in a recorded call, whose numbers are short; parts of messages are put together."""
    rows = journal_rows(recording)
    speech = Speech(CARDS)
    changed = []
    for row in rows:
        redacted = redact_event(row.event, b"", speech) if isinstance(row.event, FrameEvent) else None
        changed.append(row if redacted is None else row._replace(event=redacted[0]))
    assert contents(fold_rows(changed)) == recording.document("contents")


@recorded
def test_planted_numbers_are_cut_off(recording: Recording) -> None:
    """A card's number in each text of each frame of a recorded call."""
    for _, frame in reduced(recording):
        planted = json.loads(msgspec.json.encode(frame.content))
        for text in texts_of(recording.dialect, planted):
            text.holder[text.key] = {"of": CARD, "or": int(CARD)} if text.form == "value" else f"card {CARD} ok"
        (kept,) = keep(recording.dialect, [planted])
        if kept is not None:
            assert CARD[:8] not in json.dumps(kept)
            expected = json.dumps(planted).count(CARD[:6])
            assert json.dumps(kept).count(CARD[:6]) == expected


def piece_frames(recording: Recording) -> list[JsonObject]:
    """A frame of each kind and side that carries a piece of a text, which others of its like follow."""
    found: dict[tuple[Any, ...], JsonObject] = {}
    for _, frame in reduced(recording):
        content = json.loads(msgspec.json.encode(frame.content))
        texts = [*DIALECTS[recording.dialect].texts(content)]
        if (len(texts) == 1 and texts[0].form in ("piece", "word")) or [one.form for one in texts] == ["sentence"]:
            found.setdefault((texts[0].form, texts[0].side, texts[0].key), content)
    return list(found.values())


@recorded
@examples(0.1, least=3)
@given(st.data())
def test_numbers_in_pieces_are_cut_off(recording: Recording, data: st.DataObject) -> None:
    """A number whose digits come in several frames of one text, with a restart between any two of them."""
    for content in piece_frames(recording):
        places = sorted({0, len(CARD), *data.draw(st.sets(st.integers(0, len(CARD)), max_size=6))})
        frames = []
        for number, (start, end) in enumerate(pairwise(places)):
            frame = copy.deepcopy(content)
            (text,) = texts_of(recording.dialect, frame)
            text.holder[text.key] = CARD[start:end]
            if text.form == "sentence":
                name_sentence(frame, number)
            if text.at_ms is not None:
                frame["audio_offset_ms"] = number
            frames.append(frame)
        restart = data.draw(st.integers(0, len(frames)))
        before = keep(recording.dialect, frames[:restart])
        again = Speech(CARDS)
        keep(recording.dialect, [one for one in before if one is not None], again)
        kept = [*before, *keep(recording.dialect, frames[restart:], again)]
        joined = "".join(value_of(text) for one in kept if one for text in texts_of(recording.dialect, one))
        assert joined == "492912" + "█" * 10


def name_sentence(frame: JsonObject, number: int) -> None:
    """Make a frame that of another sentence: of RTVI by its segment, of Nova Sonic by its content."""
    if "data" in frame:
        frame["data"]["segment_id"] = number
    else:
        frame["event"]["textOutput"]["contentId"] = str(number)


@every_row("name", sorted(DIALECTS))
def test_no_field_is_forgotten(name: str) -> None:
    """Every field of a kept frame that may hold a text is one of the dialect's texts, or known to be none."""
    written = strings_in(DIALECTS[name].texts)
    kinds = records_of(name)
    fields = {
        field.encode_name
        for kind in kinds
        for field in msgspec.structs.fields(kind)
        if may_hold_text(field.type) and not NOT_SAID & {field.encode_name, snake_case(field.encode_name)}
    }
    assert fields
    assert [field for field in sorted(fields) if field not in written] == []


def snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name)


def strings_in(function: Any) -> set[str]:
    """The strings in the code of a function, and in that of all functions and constants of its module that it uses."""
    found: set[str] = set()
    seen: set[Any] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        used = [function.__globals__.get(name) for name in code.co_names]
        for one in [*code.co_consts, *used]:
            found |= {one} if isinstance(one, str) else {*one} if isinstance(one, tuple) else set()
            if isinstance(one, CodeType | FunctionType):
                waiting.append(one if isinstance(one, CodeType) else one.__code__)
    return found


def records_of(name: str) -> list[type[Record]]:
    """The records by which a dialect's frames are reduced."""
    tables = [one for one in vars(sys.modules[DIALECTS[name].reduce.__module__]).values() if isinstance(one, dict)]
    waiting = [kind.record for table in tables for kind in table.values() if isinstance(kind, Kind) and kind.record]
    module = sys.modules[DIALECTS[name].reduce.__module__]
    waiting += [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Record)]
    found: list[type[Record]] = []
    while waiting:
        kind = waiting.pop()
        if kind not in found and kind.__name__ not in NOT_KEPT:
            found.append(kind)
            waiting += [one for field in msgspec.structs.fields(kind) for one in records_in(field.type)]
    return found


def records_in(kind: Any) -> Iterator[type[Record]]:
    """The records that a field's type names."""
    if isinstance(kind, type) and issubclass(kind, Record):
        yield kind
    for one in typing.get_args(kind):
        yield from records_in(one)


def may_hold_text(kind: Any) -> bool:
    """Whether a field's type is a text, a list of texts, or any JSON."""
    if kind is str or kind is Any:
        return True
    return any(may_hold_text(one) for one in typing.get_args(kind))


def test_parts_of_a_message_are_kept_once_all_are_there() -> None:
    """A part alone is kept by its id only, and the last one holds the whole message, whatever the order."""
    (recording,) = (one for one in RECORDINGS if one.name == "text_in_parts")
    frames = [frame.content for _, frame in reduced(recording) if "part" in frame.content]
    first = [*{one["part"]["index"]: one for one in frames if one["part"]["id"] == frames[0]["part"]["id"]}.values()]
    for order in (first, first[::-1]):
        *before, whole = keep("agora-ten", order)
        assert before == [None] * (len(first) - 1)
        assert whole is not None
        assert "object" in whole
    assert keep("agora-ten", first[1:]) == [None] * (len(first) - 1)
