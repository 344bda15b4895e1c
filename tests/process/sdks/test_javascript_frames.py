"""What the JavaScript package lets out of a process is what this package keeps: its tables are compared with ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import chain
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
import pytest

from tests.support.dialects import RECORDINGS
from tests.support.needs import needs
from tests.support.paths import ROOT
from tests.support.samples.callers import SAMPLES
from voicemem.dialects import agora_ten as agora
from voicemem.dialects import conversation_relay as relay
from voicemem.dialects import deepgram_agent as deepgram
from voicemem.dialects import openai_live as live
from voicemem.dialects import pipecat_rtvi as pipecat
from voicemem.dialects import twilio_media_streams as phone
from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Frame, MalformedFrame, Side, UnknownFrame, session_id_of
from voicemem.dialects.elevenlabs_agents import translation as elevenlabs
from voicemem.dialects.gemini_live import frames as gemini
from voicemem.dialects.kinds import Typed
from voicemem.dialects.openai_realtime import translation as realtime
from voicemem.dialects.openai_realtime.frames import CALLED, RENAMED, ItemFrame
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.types import JsonObject

SCRIPT = ROOT / "clients/javascript/tests/tee/reduce-lines.js"
SECRET = "sk-never-to-be-sent"
SIDES: tuple[Side, ...] = ("vendor", "app")
WRONG: tuple[Any, ...] = ({}, {"key": SECRET}, [], [SECRET], [[SECRET]], 7, 7.5, True, None)
"""Put in the place of a field."""


class CrossingMessage(NamedTuple):
    """A frame, and who sends it."""

    dialect: str
    side: Side
    frame: Any


def whole(kind: Any) -> Any:
    """A value of a type of which every field has one, and which has one field more."""
    if kind is Any:
        return {"any": ["thing", 1]}
    if get_origin(kind) is Annotated:
        return whole(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return whole(next(one for one in get_args(kind) if one not in (type(None), msgspec.UnsetType)))
    if get_origin(kind) is list:
        return [whole(get_args(kind)[0])] * 2
    if get_origin(kind) is tuple:
        return [whole(one) for one in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {one.encode_name: whole(one.type) for one in msgspec.structs.fields(kind)} | {"hidden": SECRET}
    return {str: "a text", int: 1, float: 1.5, bool: True}[kind]


def frames_of_realtime() -> Iterator[JsonObject]:
    items = [{"type": "message", "role": role} for role in ("user", "assistant")]
    items += [{"type": kind} for kind in ("function_call", "function_call_output", *CALLED)]
    hidden = [{"type": "message", "role": "system"}, {"type": "mcp_list_tools"}]
    for name, kind in realtime.KINDS.items():
        frame = whole(kind.record or Typed) | {"type": name, "delta": "QUJDREVG", "instructions": SECRET}
        frame.pop("audio_bytes", None)
        if kind.record is not ItemFrame:
            yield frame
            continue
        yield from (frame | {"item": frame["item"] | item} for item in items)
        text = {"content": [{"type": "input_text", "text": SECRET}], "name": SECRET, "arguments": SECRET}
        yield from (frame | {"item": frame["item"] | text | {"output": SECRET} | item} for item in hidden)
        yield frame | {"item": frame["item"] | items[0] | {"content": [{"type": "input_text", "text": "Hi."}]}}
    yield {"type": "session.update", "session": {"instructions": SECRET, "tools": [{"name": SECRET}]}}
    yield from ({"type": old, "item_id": "r", "response_id": "x", "delta": "QUI="} for old in RENAMED)


def frames_of_live() -> Iterator[JsonObject]:
    for name, kind in live.KINDS.items():
        yield whole(kind.record or Typed) | {"type": name}
    yield {"type": "session.input_transcript.delta", "delta": "Hi.", "start_ms": 2, "end_ms": 1}
    yield {"type": "session.commentary.append", "content": SECRET}
    texts = [{"type": "input_text", "text": "Hi.", "key": SECRET}]
    for role, hidden in (("user", {}), ("system", {"arguments": SECRET}), (None, {"output": SECRET})):
        yield {"type": "response.item.create", "item": {"role": role, "content": texts, **hidden}}
    for called in ("function_call", "function_call_output", "reasoning"):
        item = {"type": called, "call_id": "c", "name": "f", "arguments": "{}", "output": "sun", "summary": SECRET}
        yield {"type": "response.item.create", "item": item}
        yield from ({"type": "response.event", "event": {"type": f"response.output_item.{what}", "item": item}}
                    for what in ("added", "done"))  # fmt: skip


def frames_of_relay() -> Iterator[JsonObject]:
    for name, kind in relay.KINDS.items():
        yield whole(kind.record or Typed) | {"type": name}
    yield {"type": "info", "name": "agentSpeaking", "value": "on", "more": SECRET}
    yield {"type": "setup", "sessionId": "VX1", "from": SECRET, "customParameters": {"key": SECRET}}


def frames_of_elevenlabs() -> Iterator[JsonObject]:
    for name, kind in elevenlabs.KINDS.items():
        if not name.startswith("post_call"):  # these are made of webhooks
            frame = {} if kind.record is None else whole(kind.record)
            frame.pop("audio_bytes", None)
            yield frame | {"type": name, "audio_event": {"audio_base_64": "QUJDREVG", "event_id": 3, "key": SECRET}}
    aligned = {"chars": ["a", " "], "char_start_times_ms": [1.5, 1.5], "char_durations_ms": [1.5, 1.5]}
    timed = {"audio_base_64": "QUJD", "event_id": 3, "alignment": aligned | {"hidden": SECRET}}
    yield {"type": "audio", "audio_event": timed}
    yield {"user_audio_chunk": SECRET}


def frames_of_pipecat() -> Iterator[JsonObject]:
    for name, kind in pipecat.KINDS.items():
        data = {} if kind.record is None else whole(kind.record)
        yield {"label": "rtvi-ai", "type": name, "id": "m1", "data": data, "hidden": SECRET}
    for user in ("+49 151 2345678", "sip:+4915123456@host", "", "ann"):
        yield {"label": "rtvi-ai", "type": "user-transcription", "data": {"text": "Hi.", "user_id": user}}


def frames_of_deepgram() -> Iterator[Any]:
    for name, kind in deepgram.KINDS.items():
        frame = ({} if kind.record is None else whole(kind.record)) | {"type": name}
        yield frame
        yield from (frame | {"role": role, "content": text} for role in ("user", "assistant") for text in ("Hi.", " "))
    yield {"type": "ConversationText", "role": "user", "content": "Hm.", "conversational_behavior": "backchannel"}
    yield {"type": "FunctionCallRequest", "functions": []}
    yield {"type": "Settings", "agent": {"think": {"prompt": SECRET}}, "audio": {"output": {"encoding": "mulaw"}}}
    yield from (b"", b"audio", {"audio_bytes": 7})


def frames_of_agora() -> Iterator[Any]:
    for name, kind in agora.KINDS.items():
        yield ({} if kind.record is None else whole(kind.record)) | {"object": name}
        yield {"event_type": name}
    yield whole(agora.PartFrame)
    for data_type in ("transcribe", "reasoning"):
        yield {"data_type": data_type, "role": "user", "text": "Hi.", "text_ts": 10**12, "key": SECRET}
    yield from ("no part", "a|1|1|e30=", "a|1|1|eyJvYmplY3QiOiJtZXNzYWdlLnN0YXRlIn0=", "a|1|2|e30=", "a|1|???|e30=")


def frames_of_gemini() -> Iterator[JsonObject]:
    message = whole(gemini.Message)
    del message["hidden"]
    for name, value in message.items():
        yield {name: value}
        yield {name: value, "usageMetadata": {"key": SECRET}}
    audio = {"mimeType": "audio/pcm;rate=16000", "data": "QUJDREVG"}
    parts = [{"inlineData": audio}, {"text": SECRET, "thought": True}, {"text": "said"}, {"fileData": SECRET}]
    yield {"serverContent": {"modelTurn": {"parts": parts}, "groundingMetadata": SECRET}}
    yield {"server_content": {"model_turn": {"parts": [{"inline_data": {"data": "QUJD", "mime_type": None}}]}}}
    yield {"serverContent": {"modelTurn": {"parts": [{"inlineData": {"mimeType": "image/png", "data": SECRET}}]}}}
    yield {"setup": {"systemInstruction": {"parts": [{"text": SECRET}]}}}
    prompt = {"role": "user", "parts": [{"text": " . "}]}
    yield from ({"clientContent": {"turnComplete": True, "turns": turns}} for turns in ([], [prompt], [prompt, {}]))
    yield {"sessionResumptionUpdate": {"newHandle": SECRET}}
    yield {"realtimeInput": {"audio": {"data": SECRET}}}
    history = [{"role": "user", "parts": [{"text": "Hello."}]}, {"role": "model", "parts": [{"text": SECRET}]}]
    yield {"clientContent": {"turns": [*history, {"role": "user", "parts": [{"text": "Hi."}]}]}}
    yield {"clientContent": {"turns": history}}


def frames_of_phone() -> Iterator[JsonObject]:
    for name, kind in phone.KINDS.items():
        yield ({} if kind.record is None else whole(kind.record)) | {"event": name}
    yield from ({"event": spelled, "name": "a", "digit": "1", "media": SECRET} for spelled in phone.SPELLINGS)
    yield {"event": "start", "stream_id": "S", "start": {"call_control_id": "C", "from": SECRET, "media_format": {}}}
    yield {"event": "start", "start": {"callId": "C", "streamId": "S"}, "extra_headers": SECRET, "sequenceNumber": 1}
    yield {"event": "dtmf", "streamId": "S", "dtmf": {"digit": "1"}, "sequenceNumber": 9}
    yield {"event": "websocket:connected", "content-type": "audio/l16;rate=16000", "caller": SECRET}
    yield {"action": "notify", "payload": {"name": SECRET}}


MADE = {
    "openai-realtime": frames_of_realtime,
    "openai-live": frames_of_live,
    "conversation-relay": frames_of_relay,
    "elevenlabs-agents": frames_of_elevenlabs,
    "pipecat-rtvi": frames_of_pipecat,
    "deepgram-agent": frames_of_deepgram,
    "agora-ten": frames_of_agora,
    "gemini-live": frames_of_gemini,
    "twilio-media-streams": frames_of_phone,
}


def wrong_frames(frame: Any) -> Iterator[Any]:
    """A frame with other values in the place of each of its fields, one after the other, at all levels."""
    for name in frame if isinstance(frame, dict) else ():
        yield {key: value for key, value in frame.items() if key != name}
        yield from (frame | {name: value} for value in WRONG)
        yield from (frame | {name: inner} for inner in wrong_frames(frame[name]))


def verdict(crossing: CrossingMessage) -> Frame | str | None:
    """What our own `reduce` keeps of a frame, or the name of its error."""
    try:
        return DIALECTS[crossing.dialect].reduce(crossing.frame, crossing.side)
    except (MalformedFrame, UnknownFrame) as error:
        return type(error).__name__


def as_json(crossing: CrossingMessage) -> JsonObject:
    """A frame for JavaScript; of bytes their number."""
    dialect, side, frame = crossing
    said = {"binary": len(frame)} if isinstance(frame, bytes) else {"frame": frame}
    return {"dialect": dialect, "side": side, **said}


def let_out(crossings: list[CrossingMessage]) -> list[Any]:
    """What JavaScript lets out of each frame: an object with `content`, None, or the name of an error."""
    lines = "".join(json.dumps(as_json(one)) + "\n" for one in crossings)
    done = subprocess.run([needs("node"), SCRIPT], input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(crossings: list[CrossingMessage], are_wrong: bool = False) -> None:
    """All that JavaScript lets out gives the service the same frame, and it says the same of that.

    Of what `are_wrong` more may be taken: fields that are left out are not looked at.
    """
    for crossing, answer in zip(crossings, let_out(crossings), strict=True):
        expected, taken = verdict(crossing), isinstance(answer, dict)
        found = verdict(crossing._replace(frame=answer["content"])) if taken else answer
        if not isinstance(expected, Frame):
            assert are_wrong or not isinstance(found, Frame), crossing
            continue
        assert expected == found, crossing
        known = expected.session_id, expected.typed, expected.counts_audio, expected.end is not None
        flags = (answer.get("typed", False), answer.get("countsAudio", False), answer.get("ends", False))
        assert known == (answer.get("sessionId"), *flags), crossing


@pytest.mark.parametrize("dialect", MADE)
def test_recorded_calls(dialect: str) -> None:
    """Each frame of a recorded call is kept as it would be here."""
    calls = [one for one in RECORDINGS if one.dialect == dialect and "webhook" not in one.name]
    lines = chain.from_iterable(one.envelopes() for one in calls)
    check([CrossingMessage(dialect, line.get("from", "vendor"), line["frame"]) for line in lines])


@pytest.mark.parametrize("dialect", MADE)
def test_every_field_of_every_frame(dialect: str) -> None:
    """Frames with all fields of our tables, and others, from both sides: what we keep is kept, and nothing else."""
    crossings = [CrossingMessage(dialect, side, frame) for side in SIDES for frame in MADE[dialect]()]
    check(crossings)
    assert SECRET in str(crossings)
    assert SECRET not in json.dumps(let_out(crossings))
    assert [one is None for one in map(verdict, crossings)] == [one is None for one in let_out(crossings)]


@pytest.mark.parametrize("dialect", MADE)
def test_fields_of_other_types(dialect: str) -> None:
    """Where a field is missing, or has another type, what we keep is kept."""
    frames = chain.from_iterable(map(wrong_frames, MADE[dialect]()))
    check([CrossingMessage(dialect, side, frame) for frame in frames for side in SIDES], are_wrong=True)


def test_the_names_of_dialects() -> None:
    """A dialect that JavaScript knows is one of ours."""
    assert set(MADE) <= set(DIALECTS)
    assert let_out([CrossingMessage("none", "app", {})]) == ["TypeError"]


def test_session_ids_from_those_of_vendors() -> None:
    """Both languages make the same id of a session, whatever a vendor's has in it."""
    module = (ROOT / "clients/javascript/source/tee/session-id.js").as_uri()
    script = f"""
        import {{ sessionIdOf }} from "{module}";
        console.log(JSON.stringify(JSON.parse(process.argv[1]).map(sessionIdOf)));
    """
    said = [
        "call-1",
        "a/b",
        "a b",
        "",
        "é",
        "漢字",
        "👋" * 70,
        "x..0123456789abcdef0123456789abcdef",
        "a\nb",
        ".",
        "..",
        "...",
    ]
    said += ["a" * length for length in (55, 56, 63, 64, 119, 120, 128, 129, 200, 1_000)]
    command = [needs("node"), "--input-type=module", "-e", script, json.dumps(said)]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert [session_id_of(one) for one in said] == json.loads(answer)


def test_who_calls() -> None:
    """Both languages let frames carry the same of it."""
    module = (ROOT / "clients/javascript/source/dialects/caller-fields.js").as_uri()
    script = f"""
        import {{ callerIn }} from "{module}";
        const picked = JSON.parse(process.argv[1]).map(([name, frame]) => callerIn({{ name }}, frame) ?? {{}});
        console.log(JSON.stringify(picked));
    """
    known = [one for one in SAMPLES if one.dialect in MADE and not one.hooks and one.dialect != KEEPS_USER]
    frames = [(one.dialect, frame) for one in known for frame in one.frames]
    frames += [(name, whole_object(DIALECTS[name].caller)) for name in MADE if name != KEEPS_USER]
    frames = [(name, {key: frame[key] for key in frame if (name, key) != OF_WEBHOOKS}) for name, frame in frames]
    command = [needs("node"), "--input-type=module", "-e", script, json.dumps(frames)]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert [DIALECTS[name].caller.pick(frame) for name, frame in frames] == json.loads(answer)
    assert any(json.loads(answer))


KEEPS_USER = "agora-ten"
"""Of its frames the user is kept."""
OF_WEBHOOKS = ("elevenlabs-agents", "data")
"""A field that no client's frame has."""


def whole_object(caller: CallerFields) -> JsonObject:
    """An object in which every field is, and in each object one that is not."""
    whole: JsonObject = {"other": SECRET}
    for names in sorted(caller.paths.values(), key=len, reverse=True):
        place = whole
        for name in names[:-1]:
            place = place.setdefault(name, {"other": SECRET})
        place.setdefault(names[-1], "x")
    return whole


def test_ids_that_urls_take_out_of_a_path_are_refused() -> None:
    """The memories of the user `..` would be those of all users, so no path is made of such an id."""
    module = (ROOT / "clients/javascript/source/memories.js").as_uri()
    script = f"""
    import {{ Memories }} from "{module}";
    const asked = [], ask = async (...sent) => {{ asked.push(sent); return {{ memories: [] }}; }};
    const memories = new Memories({{ get: ask, post: ask, send: ask, request: ask }}, 1000);
    const refused = [];
    for (const id of [".", ".."])
      for (const call of [() => memories.ofUser(id), () => memories.forget(id, {{}})])
        try {{ await call(); }} catch (error) {{ refused.push(error.message); }}
    console.log(JSON.stringify([asked.length, refused]));
    """
    command = [needs("node"), "--input-type=module", "-e", script]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert json.loads(answer) == [0, ["an id in a path cannot be . or .."] * 4]
