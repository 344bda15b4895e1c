"""The dialect of OpenAI's Realtime API, held to the types of OpenAI's own SDK."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any, get_args

import msgspec
import pytest
from pydantic import TypeAdapter

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.dialect import AUDIO_BYTES, MalformedFrame, UnknownFrame
from voicemem.dialects.openai_realtime.frames import RENAMED
from voicemem.dialects.openai_realtime.translation import KINDS, reduce
from voicemem.protocol.events import FrameEvent
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow
from voicemem.transcript.turns import reply_after

CALLS = [one for one in RECORDINGS if one.dialect == "openai-realtime"]
NOT_OF_OPENAI = {"response.audio_timestamp.delta"}
"""Azure Voice Live's."""
DELTA = "response.output_audio_transcript.delta"
BETA, TRANSLATED, AZURE = "beta_names_and_word_times", "translation_session", "azure_voice_live"


@cache
def sdk_adapters(are_translated: bool) -> dict[str, TypeAdapter[Any]]:
    """What parses the frames of each side; the SDK's types take a second to import, which only these tests pay."""
    from openai.types import realtime

    if are_translated:
        vendor: TypeAdapter[Any] = TypeAdapter(realtime.RealtimeTranslationServerEvent)
        return {"vendor": vendor, "app": TypeAdapter(realtime.RealtimeTranslationClientEvent)}
    return {"vendor": TypeAdapter(realtime.RealtimeServerEvent), "app": TypeAdapter(realtime.RealtimeClientEvent)}


def types_of(union: Any) -> set[str]:
    """The `type`s of the members of one of the SDK's unions."""
    return {get_args(one.model_fields["type"].annotation)[0] for one in get_args(get_args(union)[0])}


def sdk_frame(envelope: JsonObject) -> JsonObject:
    """A recorded frame with audio in place of its count."""
    frame = dict(envelope["frame"])
    if AUDIO_BYTES in frame:
        frame["delta"] = base64.b64encode(bytes(frame.pop(AUDIO_BYTES))).decode()
    return frame


@pytest.mark.parametrize("recording", [one for one in CALLS if one.name not in (BETA, AZURE)], ids=str)
def test_recorded_frames_are_the_sdks(recording: Recording) -> None:
    """Every frame of a recorded call is one that OpenAI's SDK accepts, with every field of the right type."""
    for envelope in recording.envelopes():
        sdk_adapters(recording.name == TRANSLATED)[envelope["from"]].validate_python(sdk_frame(envelope))


def missing_of_azure(model: Any) -> list[str]:
    """The fields of one of Azure's models that must be there and are not, and those that it does not have."""
    if isinstance(model, list):
        return [name for one in model for name in missing_of_azure(one)]
    if not hasattr(model, "_attr_to_rest_field"):
        return []
    fields = model._attr_to_rest_field
    missing = [name for name, field in fields.items() if name not in model and not field._is_optional]
    inside = [name for one in fields if one in model for name in missing_of_azure(getattr(model, one))]
    return [*missing, *(name for name in model if name not in fields), *inside]


def test_recorded_frames_are_azures() -> None:
    """Every frame of the call with Azure Voice Live has all fields that Azure's SDK wants, and no other."""
    from azure.ai.voicelive.models import ClientEvent, ServerEvent

    kinds: dict[str, Any] = {"vendor": ServerEvent, "app": ClientEvent}
    for envelope in Recording("openai-realtime", AZURE).envelopes():
        base = kinds[envelope["from"]]
        model = base._deserialize(sdk_frame(envelope), [])
        assert type(model) is not base
        assert missing_of_azure(model) == [], envelope["frame"]


def test_every_frame_of_the_sdk_is_known() -> None:
    """Each type of the SDK is known, with the side that sends it."""
    from openai.types.realtime import RealtimeClientEvent, RealtimeServerEvent

    for side, union in (("vendor", RealtimeServerEvent), ("app", RealtimeClientEvent)):
        for name in types_of(union):
            assert KINDS[RENAMED.get(name, name)].side == side, name


def test_secrets_and_audio_are_not_kept() -> None:
    """Of a session only its id and the format of its audio are kept; of audio its length; of a system item nothing."""
    session = {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "instructions": "secret",
            "tools": [{"name": "secret"}],
            "client_secret": {"value": "secret"},
            "audio": {"output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "secret"}},
        },
    }
    system = {"id": "i", "type": "message", "role": "system", "content": [{"type": "input_text", "text": "secret"}]}
    image = {"type": "input_image", "image_url": "data:secret"}
    spoken = {"type": "input_audio", "audio": "c2VjcmV0", "transcript": "Hi."}
    user = {"id": "u", "type": "message", "role": "user", "content": [image, spoken]}
    listed = {"id": "m", "type": "mcp_list_tools", "server_label": "secret", "tools": [{"name": "secret"}]}
    frames: list[JsonObject] = [session]
    frames += [{"type": "conversation.item.added", "item": item, "secret": 1} for item in (system, user, listed)]
    kept = [frame for one in frames if (frame := reduce(one)) is not None]
    assert len(kept) == len(frames)
    assert b"secret" not in msgspec.json.encode([frame.content for frame in kept])
    assert b"Hi." in msgspec.json.encode(kept[2].content)
    audio = reduce({"type": "response.audio.delta", "item_id": "a", "response_id": "r", "delta": "AAAAAAA="})
    assert audio is not None
    assert audio.content == {
        "type": "response.output_audio.delta",
        "item_id": "a",
        "response_id": "r",
        "audio_bytes": 5,
    }
    assert (audio.id, audio.counts_audio) == (None, True)


@every_row(
    "frame",
    [
        "text",
        b"audio",
        [],
        {},
        {"type": 1},
        {"type": "response.output_audio_transcript.delta", "item_id": "a", "delta": 1},
        {"type": "response.output_audio_transcript.delta", "delta": "x"},
        {"type": "response.output_audio.delta", "item_id": "a"},
        {"type": "conversation.item.added", "item": []},
    ],
    ids=repr,
)
def test_malformed_frames(frame: Any) -> None:
    """What is not a frame of this dialect, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_types_are_named() -> None:
    """A type that is not known is named, so that the log can show it."""
    with pytest.raises(UnknownFrame, match=r"response\.hologram"):
        reduce({"type": "response.hologram", "delta": "x"})


def test_a_client_and_a_server_may_use_one_id() -> None:
    """Ids that the app gives do not hide the vendor's."""
    truncation = {"item_id": "a", "audio_end_ms": 5, "event_id": "e1"}
    ids = [
        frame.id
        for name in ("conversation.item.truncate", "conversation.item.truncated")
        if (frame := reduce({"type": name, **truncation})) is not None
    ]
    assert ids == ["app/e1", "e1"]


# Rules that no recording shows


def frame_row(position: int, ts: int | None, **frame: Any) -> DecodedRow:
    reduced = reduce(frame)
    assert reduced is not None
    event = FrameEvent(dialect="openai-realtime", frame=reduced.content, ts=ts, id=reduced.id)
    return DecodedRow(position, 1_000_000, event, "main")


def memory(*frames: tuple[int | None, JsonObject], close_at: int | None = None) -> list[tuple[str, int, str, Any]]:
    """Role, turn, content and `heard` of the messages after these frames."""
    rows = [frame_row(position, ts, **frame) for position, (ts, frame) in enumerate(frames, 1)]
    if close_at is not None:
        close = msgspec.structs.replace(closed(close_at), reason=CLOSED)
        rows.append(DecodedRow(len(rows) + 1, close_at, close))
    found = contents(fold_rows(rows))["contents"]
    return [(one["role"], one["turn_id"], one["content"], one["metadata"].get("heard")) for one in found]


TEXT = "One two three four five six seven eight."


def reply(item: str = "a", text: str = TEXT, audio_ms: int = 8_000, at: int = 1_000) -> list[tuple[int | None, Any]]:
    """A reply that is generated at once, with its audio."""
    response = f"r{item}"
    output = [{"id": item, "type": "message", "role": "assistant", "content": [{"transcript": text}]}]
    named = {"item_id": item, "response_id": response}
    return [
        (at, {"type": "response.created", "response": {"id": response, "conversation_id": "c"}}),
        (at, {"type": "response.output_audio_transcript.delta", "delta": text, **named}),
        (at, {"type": "response.output_audio.delta", "audio_bytes": audio_ms * 48, **named}),
        (at, {"type": "response.output_item.done", "response_id": response, "item": output[0]}),
        (at, {"type": "response.done", "response": {"id": response, "status": "completed", "output": output}}),
    ]


def truncation(end_ms: int, at: int, item: str = "a") -> tuple[int, JsonObject]:
    return at, {"type": "conversation.item.truncate", "item_id": item, "audio_end_ms": end_ms}


def test_hang_up_cuts_what_was_not_played_yet() -> None:
    """Half of a finished reply's audio was played when the caller left: the other half was not heard."""
    assert memory(*reply(), close_at=5_000) == [("assistant", 0, "One two three four ", "estimated")]
    assert memory(*reply(), close_at=9_000) == [("assistant", 0, TEXT, None)]


def test_a_reply_waits_for_the_one_before_it() -> None:
    """A second reply begins to play when the first has ended."""
    calls = [*reply("a", audio_ms=4_000), *reply("b", audio_ms=8_000, at=1_500)]
    assert memory(*calls, close_at=9_000)[1] == ("assistant", 0, "One two three four ", "estimated")
    assert memory(*calls, close_at=4_000)[1][2] == ""


def test_a_stated_position_counts_more_than_the_clock_in_any_order() -> None:
    """The clock says that all was heard; the app truncates, before or after that."""
    cancelled = (9_500, {"type": "response.done", "response": {"id": "ra", "status": "cancelled", "output": []}})
    late, early = truncation(2_000, 9_600), truncation(2_000, 9_400)
    expected = [("assistant", 0, "One two ", "estimated")]
    assert memory(*reply(), cancelled, late) == expected
    assert memory(*reply(), early, cancelled) == expected


def test_a_truncation_at_the_end_marks_nothing() -> None:
    """An app that truncates when all was played has not been interrupted."""
    assert memory(*reply(), truncation(8_000, 9_100)) == [("assistant", 0, TEXT, None)]


def test_without_times_the_clock_is_not_asked() -> None:
    """Frames that came in a batch without times are not placed by the clock."""
    frames = [(None, frame) for _, frame in reply()]
    assert memory(*frames, close_at=5_000) == [("assistant", 0, TEXT, None)]


def test_speech_is_no_interruption() -> None:
    """`speech_started` opens a turn, and cuts nothing."""
    speech = (3_000, {"type": "input_audio_buffer.speech_started", "item_id": "u"})
    assert memory(*reply(), speech) == [("assistant", 0, TEXT, None)]


def test_a_reply_after_keys_is_of_their_turn() -> None:
    """Keys are no item of the conversation: what is said after them follows the reply before them in the chain."""
    added = {"id": "b", "type": "message", "role": "assistant"}
    key = (20_000, {"type": "input_audio_buffer.dtmf_event_received", "event": "4"})
    chain = (21_000, {"type": "conversation.item.added", "item": added, "previous_item_id": "a"})
    found = memory(*reply(text="Your number?"), key, chain, *reply("b", "Thanks.", at=21_100))
    assert [one[:3] for one in found] == [
        ("assistant", 0, "Your number?"),
        ("user", 1, "4"),
        ("assistant", 1, "Thanks."),
    ]


def test_transcripts_find_their_turns_however_late() -> None:
    """Two utterances are announced, answered in turn, and recognised much later, the second one first."""
    frames: list[tuple[int | None, JsonObject]] = []
    for index, item in enumerate(("u1", "u2")):
        at = 1_000 + index * 10_000
        frames.append((at, {"type": "input_audio_buffer.speech_started", "item_id": item}))
        added = {"id": f"a{item}", "type": "message", "role": "assistant"}
        frames.append((at, {"type": "conversation.item.added", "item": added, "previous_item_id": item}))
        frames += reply(f"a{item}", f"Answer {item}.", 500, at + 1_000)
    kind = "conversation.item.input_audio_transcription.completed"
    frames += [(30_000, {"type": kind, "item_id": item, "transcript": f"Question {item}."}) for item in ("u2", "u1")]
    assert [one[:3] for one in memory(*frames)] == [
        ("user", 1, "Question u1."),
        ("assistant", 1, "Answer u1."),
        ("user", 2, "Question u2."),
        ("assistant", 2, "Answer u2."),
    ]


def test_notes_stay_small_however_long_the_call() -> None:
    """After hundreds of replies the format of the audio is still known, so that lengths are right."""
    audio = {"output": {"format": {"type": "audio/pcmu"}}}
    frames: list[tuple[int | None, JsonObject]] = [(1, {"type": "session.updated", "session": {"audio": audio}})]
    for number in range(300):
        frames += reply(f"item{number}", audio_ms=1_000, at=1_000 + number * 10_000)
    rows = [frame_row(position, ts, **frame) for position, (ts, frame) in enumerate(frames, 1)]
    state = fold_rows(rows)
    assert state.notes["openai-realtime"].size < 4_000
    evidence = state.item_evidence["item299"].playback
    assert evidence is not None
    assert evidence.totals is not None
    assert evidence.totals.highest == 6_000


def waits(*frames: tuple[int, JsonObject]) -> list[tuple[float | None, str | None]]:
    """How long the caller waited in each turn after these frames, and what that is known by."""
    rows = []
    for position, (ts, frame) in enumerate(frames, 1):
        reduced = reduce(frame)
        if reduced is not None:
            event = FrameEvent(dialect="openai-realtime", frame=reduced.content, ts=ts, id=reduced.id)
            rows.append(DecodedRow(position, ts, event, "main"))
    state = fold_rows(rows)
    return [reply_after(state, state.turns[number])[:] for number in state.turn_numbers]


def test_the_caller_waits_from_the_end_of_their_speech_however_late_its_words_come() -> None:
    """`speech_stopped` says when that was, else `committed`: before the words, with them after the reply, without."""
    item = {"item_id": "u1"}
    began = (1_000, {"type": "input_audio_buffer.speech_started", **item, "audio_start_ms": 0})
    stopped = (3_000, {"type": "input_audio_buffer.speech_stopped", **item, "audio_end_ms": 2_000})
    committed = (3_040, {"type": "input_audio_buffer.committed", **item})
    kind = "conversation.item.input_audio_transcription"
    words = (4_500, {"type": f"{kind}.completed", **item, "transcript": "Is it open?"})
    failed = (4_500, {"type": f"{kind}.failed", **item, "error": {}})
    noise = (4_500, {"type": f"{kind}.completed", **item, "transcript": " "})
    audio = (3_700, {"type": "response.output_audio.delta", "item_id": "a1", "response_id": "r1", "delta": "AAAA"})
    text = {"type": DELTA, "item_id": "a1", "response_id": "r1", "delta": "Yes."}
    reply = [audio, (3_710, text)]
    assert waits(began, stopped, committed, *reply) == [(710, "estimate")]
    assert waits(began, stopped, committed, *reply, words) == [(710, "estimate")]
    assert waits(began, stopped, committed, *reply, failed) == [(710, "estimate")]
    assert waits(began, stopped, committed, *reply, noise) == [(None, None)]
    assert waits(began, committed, *reply, words) == [(670, "estimate")]
    assert waits(committed, *reply, words) == [(670, "estimate")]
    assert waits(began, *reply, words) == [(None, None)]


def test_over_webrtc_the_server_says_when_the_voice_began() -> None:
    """`output_audio_buffer.started` comes before the first text."""
    call = [
        (1_000, {"type": "input_audio_buffer.speech_started", "item_id": "u1"}),
        (3_000, {"type": "input_audio_buffer.speech_stopped", "item_id": "u1"}),
        (3_600, {"type": "output_audio_buffer.started", "response_id": "r1"}),
        (3_650, {"type": DELTA, "item_id": "a1", "response_id": "r1", "delta": "Yes."}),
    ]
    assert waits(*call) == [(600, "marks")]
