"""vCon (draft-ietf-vcon-vcon-core-04, unsigned): a text dialog for each utterance, interruptions as analysis.

It follows the core without extensions, so every reader of the draft can read it.
"""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any

from msgspec import Raw, to_builtins
from msgspec.structs import asdict

from voicemem.exports.call import AGENT, CALLER, Call, CallFacts, Utterance, date_time
from voicemem.protocol.pieces import object_parts
from voicemem.version import __version__

SYNTAX = "0.4.0"
VENDOR = "voicemem"
SHOWN_WITH_TOOL = 64
"""The most places in the dialog that a tool call names, since a turn may have any number of both."""
ELSEWHERE = ("name", "recording")
"""The facts that have their own places."""
MAKER = {"vendor": VENDOR, "product": f"{VENDOR} {__version__}"}


def vcon(call: Call) -> Iterator[str]:
    """Yield one JSON object on one line."""
    for part in object_parts(vcon_object(call)):
        yield part.decode()
    yield "\n"


def vcon_object(call: Call) -> dict[str, Any]:
    """Return the vCon of a call, with iterators for its long lists. Equal calls have equal vCons."""
    facts, places = call.facts, {("assistant", AGENT): 0}
    callers = {one.speaker: "user" for one in call.utterances if one.message.role == "user"} or {CALLER: "user"}
    agents = {one.speaker: "assistant" for one in call.utterances if one.agent is not None}
    for name, role in (*callers.items(), *agents.items()):
        places.setdefault((role, name), len(places))
    subject = {} if facts.name is None else {"subject": facts.name}
    return {
        "vcon": SYNTAX,
        "uuid": vcon_uuid(facts),
        "created_at": date_time(facts.started_ms),
        "updated_at": date_time(facts.ended_ms or max(facts.started_ms, call.end_ms)),
        **subject,
        "parties": [party(name, place, facts) for (_, name), place in places.items()],
        "dialog": chain((dialog(one, places) for one in call.utterances), recordings(call, len(places))),
        "analysis": chain(
            interruptions(call), tool_analyses(call), latency_analyses(call), found_out(call), about(call)
        ),
    }


def party(name: str, place: int, facts: CallFacts) -> dict[str, Any]:
    """Return a party with its known name; the session's user has the `user_id` as unique identifier."""
    named = {"name": name, "validation": "none"}
    if place == 1 and name == CALLER and facts.user_id is not None:
        return named | {"uuid": facts.user_id}
    return named


def dialog(one: Utterance, places: dict[tuple[str, str], int]) -> dict[str, Any]:
    """Return the dialog of an utterance's heard text; `duration` is in seconds, if known."""
    duration = {} if one.end_ms is None else {"duration": (one.end_ms - one.start_ms) / 1000}
    return {
        "type": "text",
        "start": date_time(one.start_ms),
        **duration,
        "parties": [places[one.message.role, one.speaker]],
        "mediatype": "text/plain",
        "encoding": "none",
        "body": one.heard,
    }


def recordings(call: Call, parties: int) -> Iterator[dict[str, Any]]:
    """Yield the recording of the call, if its URL is known. It is not fetched, so it has no `content_hash`."""
    if call.facts.recording is not None:
        duration = max(0, call.end_ms - call.start_ms) / 1000
        times = {"start": date_time(call.start_ms), "duration": duration}
        yield {"type": "recording", **times, "parties": list(range(parties)), "url": call.facts.recording}


def interruptions(call: Call) -> Iterator[dict[str, Any]]:
    """Yield an analysis of each interruption: the time of the cut, and the heard and unheard text."""
    for index, one in enumerate(call.utterances):
        if one.is_cut:
            metadata = one.message.metadata
            body = {
                "turn_id": one.message.turn_id,
                "interrupted_at": None if one.cut_at_ms is None else date_time(one.cut_at_ms),
                "heard": one.heard,
                "unheard": one.unheard,
                "generated": metadata.get("original"),
                "heard_by": metadata.get("heard", "exact"),
            }
            yield analysis("interruption", index, body)


def tool_analyses(call: Call) -> Iterator[dict[str, Any]]:
    """Yield the tool calls, each with the dialog of its turn, or the beginning of a long one."""
    places = places_of(call, {tool.turn_id for tool in call.tools})
    for tool in call.tools:
        body = {
            "turn_id": tool.turn_id,
            "called_at": date_time(tool.timestamp),
            "call_id": tool.call_id,
            "name": tool.name,
            "arguments": Raw(tool.arguments_json),
            "result": Raw(tool.result_json),
        }
        yield analysis("tool_call", places[tool.turn_id][:SHOWN_WITH_TOOL], body)


def latency_analyses(call: Call) -> Iterator[dict[str, Any]]:
    """Yield the latencies of turns, each with the turn's dialog."""
    places = places_of(call, {turn.turn_id for turn in call.latencies})
    for turn in call.latencies:
        yield analysis("latency", places[turn.turn_id], asdict(turn))


def places_of(call: Call, turns: set[int]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {number: [] for number in turns}
    for place, one in enumerate(call.utterances):
        if one.message.turn_id in places:
            places[one.message.turn_id].append(place)
    return places


def found_out(call: Call) -> Iterator[dict[str, Any]]:
    """Yield the values of the analysis, with the dialog of the turns that show them."""
    if call.analysis:
        turns = {one.turn_id for value in call.analysis.values() for one in value.shown_by}
        places = [place for place, one in enumerate(call.utterances) if one.message.turn_id in turns]
        yield analysis("analysis", places, {name: to_builtins(value) for name, value in call.analysis.items()})


def about(call: Call) -> Iterator[dict[str, Any]]:
    """Yield the summary of the call, if there is one, and the facts of the session."""
    summary, facts = call.summary, call.facts
    if summary is not None:
        covered = [n for n, one in enumerate(call.utterances) if one.message.turn_id <= summary.through_turn]
        text = {"mediatype": "text/plain", "encoding": "none", "body": summary.text}
        yield {"type": "summary", "dialog": covered, **MAKER, **text}
    ended_at = None if facts.ended_ms is None else date_time(facts.ended_ms)
    times = {"started_at": date_time(facts.started_ms), "ended_at": ended_at}
    body = {name: value for name, value in to_builtins(facts).items() if name not in ELSEWHERE} | times
    yield analysis("session", list(range(len(call.utterances))), body)


def analysis(kind: str, places: int | list[int], body: dict[str, Any]) -> dict[str, Any]:
    """Return an analysis in JSON of a part of the dialog; `schema` names its form in docs/exports.md."""
    form = {"schema": f"{VENDOR}.{kind}.v1", "mediatype": "application/json", "encoding": "json", "body": body}
    return {"type": kind, "dialog": places, **MAKER, **form}


def vcon_uuid(facts: CallFacts) -> str:
    """Return a UUID of version 8, made from values that no other session has."""
    name = f"{facts.session_id}\0{facts.started_ms}".encode()
    digest = bytearray(blake2b(name, digest_size=16, person=b"voicemem vcon").digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
