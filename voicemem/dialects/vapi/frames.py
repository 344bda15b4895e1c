"""The kept messages of Vapi, and their fields.

A frame is the body of a webhook, `{"message": {…}}`, or the message in it, as Vapi's clients get it. Only the newest
messages of a history are kept, because each history repeats the one before it; and all of the report after the call.
Prompts, the assistant's configuration, recordings, costs, analyses and all numbers are not kept.

Messages are normalised first: in all versions, and on servers and clients, a field has one name and one type.
"""

import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from voicemem.dialects.dialect import MalformedFrame, Text, Texts
from voicemem.dialects.kinds import ANYTHING, Record, many, optional, record
from voicemem.dialects.reading import digest, is_signed, speaker, unix_ms, values, whole
from voicemem.protocol.types import JsonObject

ROLES = {"assistant": "bot", "ai": "bot", "agent": "bot", "customer": "user", "tool": "tool_call_result"}
"""Other names of roles in some messages, and the usual ones."""
HISTORY_ROLES = ("user", "bot", "tool_calls", "tool_call_result")
SPOKEN_ROLES = ("user", "bot")
CALL_FIELDS = "arguments", "parameters"
RESULT_FIELDS = "result", "message", "content"
HISTORY, MESSAGE, REPORT = "conversation-update", "conversation-update.message", "end-of-call-report"
"""`MESSAGE` is one message of a webhook's history, made by `split`."""
LATENCY = "end-of-call-report.latency"
"""The latencies of one reply in a report, made by `split`."""
LATENCIES = {
    "turnLatency": "e2e",
    "modelLatency": "llm_ttft",
    "voiceLatency": "tts_ttfb",
    "transcriberLatency": "asr_ttlw",
    "endpointingLatency": "endpointing",
}
"""Vapi's names of latencies (in ms), and ours."""
OF_CALLER = "customer", "phoneNumber"
HISTORIES = (HISTORY, "status-update", REPORT)
"""Messages whose history is read."""
MAX_MESSAGES = 12
"""How many of the newest messages are read from a history that is not a report."""
RUNNING = "scheduled", "queued", "ringing", "in-progress", "forwarding"
"""The `status` of calls before their end."""
ENDED = "ended"
"""The reason of an end without one."""
TOKEN_FIELDS = ("content", "text", "token", "delta")
ID_FIELDS = ("timestamp", "role", "transcriptType", "turn", "turnId", "transcript", "output", "words", "characters")
SECRETS = "x-vapi-secret", "authorization"
"""Headers with a credential's token, bare or after `Bearer`."""
BEARER = re.compile("^Bearer +", re.IGNORECASE)
SIGNATURES = "x-vapi-signature", "x-signature"
TIMESTAMPS = "x-vapi-timestamp", "x-timestamp"
TOLERANCE_MS = 5 * 60 * 1000
"""How far from now a signature's time may be."""
NEWEST_S = 100_000_000_000
"""Larger times are ms."""
MAX_TIMESTAMP = 40


def role_of(value: Any) -> Any:
    return ROLES.get(value, value) if isinstance(value, str) else value


def history_of(frame: JsonObject) -> list[JsonObject] | None:
    """Return the messages of a history, numbered; None without a history. Raises `MalformedFrame`."""
    artifact = frame.get("artifact")
    for holder in (frame, artifact if isinstance(artifact, dict) else {}):
        for name in ("messages", "messagesOpenAIFormatted"):
            raw = holder.get(name)
            if isinstance(raw, list) and raw:
                if frame.get("type") == HISTORY and not any(isinstance(one, dict) for one in raw):
                    raise MalformedFrame("A history is a list of messages.")
                messages = (message for one in raw if isinstance(one, dict) for message in in_one_form(one))
                return [{"place": place} | message for place, message in enumerate(messages)]
    return None


def in_one_form(raw: JsonObject) -> Iterator[JsonObject]:
    """Yield the parts of a history message: OpenAI's form may have words and tool calls. System messages have none."""
    role = role_of(raw.get("role"))
    if role not in HISTORY_ROLES:
        return
    start, end = unix_ms(raw.get("time")), unix_ms(raw.get("endTime"))
    message: JsonObject = {"role": role, "time": start, "endTime": end}
    if "place" in raw:
        message["place"] = raw["place"]
    if role == "tool_call_result":
        id = raw.get("toolCallId", raw.get("tool_call_id"))
        if isinstance(id, str):
            yield message | {"toolCallId": id, "name": raw.get("name"), "result": first_of(raw, RESULT_FIELDS)}
        return
    texts = (raw.get(name) for name in ("message", "content"))
    text = next((one for one in texts if isinstance(one, str)), "")
    if role in SPOKEN_ROLES and text.strip():
        agent = raw.get("assistantName")
        named = {"assistantName": agent} if role == "bot" and isinstance(agent, str) and agent else {}
        yield message | {"message": text.strip()} | named
    calls = raw.get("toolCalls", raw.get("tool_calls"))
    if isinstance(calls, list) and calls:
        yield message | {"role": "tool_calls", "toolCalls": [*tool_calls(calls)]}


def tool_calls(raw: Any) -> Iterator[JsonObject]:
    """Yield tool calls that have an id; name and arguments are in `function` or next to it."""
    for one in raw if isinstance(raw, list) else ():
        call = one.get("toolCall", one) if isinstance(one, dict) else None
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        function = function if isinstance(function, dict) else call
        id, name = call.get("id"), function.get("name") or one.get("name")
        if isinstance(id, str) and isinstance(name, str):
            yield {"id": id, "function": {"name": name, "arguments": first_of(function, CALL_FIELDS)}}


def first_of(holder: JsonObject, fields: Iterable[str]) -> Any:
    return next((holder[field] for field in fields if holder.get(field) is not None), None)


def history(frame: JsonObject) -> JsonObject | None:
    messages = history_of(frame)
    return None if not messages else frame | {"type": HISTORY, "messages": messages[-MAX_MESSAGES:]}


def report(frame: JsonObject) -> JsonObject:
    call: JsonObject = frame["call"] if isinstance(frame.get("call"), dict) else {}
    times = {name: unix_ms(frame.get(name) or call.get(name)) for name in ("startedAt", "endedAt")}
    return frame | {"messages": history_of(frame) or []} | times


def webhook_of(saved: JsonObject) -> JsonObject | None:
    """Return the report of a call from the API's form of it. Raises `MalformedFrame`."""
    if isinstance(saved.get("message"), dict) or not isinstance(saved.get("id"), str) or "createdAt" not in saved:
        return saved
    if saved.get("status") in RUNNING or not history_of(saved):
        return None
    ended = first_of(saved, ("endedAt", "updatedAt", "createdAt"))
    call = {name: value for name, value in saved.items() if name not in ("artifact", "messages")}
    return {"message": saved | {"type": REPORT, "timestamp": ended, "call": call}}


def voice(frame: JsonObject) -> JsonObject | None:
    """Return a message that someone begins or stops to speak; None if it does not say which."""
    return frame if frame.get("status") in ("started", "stopped") and isinstance(frame.get("role"), str) else None


def speech(frame: JsonObject) -> JsonObject:
    """Return how much was spoken: `wordsSpoken` in all, or the characters of these `words`, including spaces."""
    timing = frame.get("timing")
    timing = timing if isinstance(timing, dict) else {}
    words = timing.get("words")
    counted: JsonObject = {"words": whole(first_of(frame, ("words",)))}
    if "wordsSpoken" in timing:
        counted["words"] = whole(timing["wordsSpoken"])
    elif isinstance(words, list):
        counted["characters"] = sum(len(word) for word in words if isinstance(word, str))
    return frame | counted | {"turn": whole(frame.get("turn"))}


def output(frame: JsonObject) -> JsonObject | None:
    """Return a piece of the LLM's text; None for a tool call, which has messages of its own."""
    said = frame.get("output")
    for _ in range(2):  # a piece may be in an object in an object
        said = first_of(said, TOKEN_FIELDS) if isinstance(said, dict) else said
    return frame | {"output": said} if isinstance(said, str) and said else None


def calls(frame: JsonObject) -> JsonObject:
    raw = first_of(frame, ("toolCallList", "toolCalls", "toolWithToolCallList"))
    return frame | {"toolCallList": [*tool_calls(raw)]}


def tool_answer(frame: JsonObject) -> JsonObject:
    answer = frame.get("toolCallResult")
    answer = answer if isinstance(answer, dict) else frame
    return frame | {name: answer.get(name) for name in ("toolCallId", "name", "result")}


def message_of(frame: JsonObject) -> JsonObject:
    """Return the message in a webhook's body, or the frame itself; its type without a filter after it."""
    inside = frame.get("message")
    message = inside if isinstance(inside, dict) and "type" not in frame else frame
    if not isinstance(message.get("type"), str):
        raise MalformedFrame('A message of Vapi\'s has a type; a webhook is {"message": {"type": …}}.')
    return message | {"type": message["type"].partition("[")[0], "timestamp": unix_ms(message.get("timestamp"))}


def id_of(content: JsonObject) -> str | None:
    """Return an id made from a frame's content, which a repeat has too, as Vapi sends times, not ids; or None."""
    if content["type"] == MESSAGE:
        item = content["item"]
        place = item["place"] if item.get("time") is None else item["time"]
        return f"{item['role']}/{place}/{digest(item)}"
    if content["type"] == LATENCY:
        return f"{LATENCY}/{content['reply']}"
    if content["type"] in (HISTORY, REPORT) or "timestamp" not in content:
        return None
    return f"{content['type']}/{digest([content.get(field) for field in ID_FIELDS])}"


def split(body: JsonObject) -> Iterator[JsonObject]:
    """Yield the frames of a webhook: one for each message of its history, then the rest. Raises `MalformedFrame`."""
    message = message_of(body)
    messages = history_of(message) if message["type"] in HISTORIES else None
    if not messages:
        yield message
        return
    reported, place = message["type"] == REPORT, place_of(message)
    for item in messages:
        yield {"type": MESSAGE, "item": item, "reported": reported} | place
    if reported:
        yield from latency_frames(message, messages)
        rest = {name: value for name, value in message.items() if name not in (*OF_CALLER, "messages", "artifact")}
        yield rest | {"reported": True}


def place_of(message: JsonObject) -> JsonObject:
    """Return the call and time of a message, for each of its parts."""
    call = message.get("call")
    return {"call": {"id": call.get("id")} if isinstance(call, dict) else call, "timestamp": message.get("timestamp")}


def latency_frames(message: JsonObject, messages: list[JsonObject]) -> Iterator[JsonObject]:
    """Yield the latencies of turns, each with the reply that answers the caller."""
    artifact = message.get("artifact")
    holders = (one for one in (artifact, message) if isinstance(one, dict))
    reports = (one["performanceMetrics"] for one in holders if isinstance(one.get("performanceMetrics"), dict))
    metrics: JsonObject = next(reports, {})
    turns = metrics.get("turnLatencies")
    spoken = [one for one in messages if one["role"] in SPOKEN_ROLES]
    pairs = pairwise(spoken)
    answers = [one for before, one in pairs if before["role"] == "user" and one["role"] == "bot"]
    for reply, measured in zip(answers, turns if isinstance(turns, list) else (), strict=False):
        latencies = measured if isinstance(measured, dict) else {}
        stated = {name: whole(latencies.get(name)) for name in LATENCIES}
        yield {"type": LATENCY, "reply": item_of(reply)} | stated | place_of(message)


def texts(frame: JsonObject) -> Texts:
    match frame["type"]:
        case "transcript":
            final = frame.get("transcriptType", "final") == "final"
            return (Text(frame, "transcript", "whole", speaker(frame["role"]), final=final, channel="live"),)
        case "assistant.speechStarted":
            return (Text(frame, "text", "grown", item=f"speech {frame.get('turn')}"),)
        case "model-output":
            return (Text(frame, "output", "piece", item=f"output {frame.get('turnId')}"),)
    return other_texts(frame)


def other_texts(frame: JsonObject) -> Iterator[Text]:
    for message in [*frame.get("messages", ()), *([frame["item"]] if "item" in frame else [])]:
        if message.get("message"):
            yield Text(message, "message", "whole", speaker(message["role"]), item_of(message))
        for call in message.get("toolCalls") or ():
            yield from values(call["function"], "arguments")
        yield from values(message, "result")
    for call in frame.get("toolCallList") or ():
        yield from values(call["function"], "arguments")
    yield from values(frame, "result")


def item_of(message: JsonObject) -> str:
    role, time = message["role"], message.get("time")
    return f"{role}#{message['place']}" if time is None else f"{role}:{time}"


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a webhook has the secret, or its signature: HMAC-SHA256 in hex, of the body or `TIME.BODY`."""
    if not secret:
        return False
    raw = [BEARER.sub("", headers[name]) for name in SECRETS if name in headers]
    if any(hmac.compare_digest(secret.encode(), one.encode(errors="replace")) for one in raw):
        return True
    timestamp = next((headers[name] for name in TIMESTAMPS if name in headers), None)
    if timestamp is not None and not is_now(timestamp, now):
        return False
    # With a time, the signature covers both, because the time alone could be changed.
    payload = body if timestamp is None else timestamp.encode() + b"." + body
    return is_signed(payload, secret, (headers[name].removeprefix("sha256=") for name in SIGNATURES if name in headers))


def is_now(timestamp: str, now: int) -> bool:
    """Return whether a time (Unix seconds or ms, or ISO 8601) is close to now."""
    if len(timestamp) > MAX_TIMESTAMP:
        return False
    number = int(timestamp) if timestamp.isascii() and timestamp.isdecimal() else None
    at = unix_ms(timestamp) if number is None else number if number >= NEWEST_S else number * 1000
    return at is not None and abs(now - at) <= TOLERANCE_MS


Sent = record("type", call=optional(record("id")), timestamp=optional(int))
"""Fields of every message; times are Unix ms."""


def sent(texts: str = "", /, **others: Any) -> type[Record]:
    return record(texts, Sent, **others)


ToolCall = record("id", function=record("name", arguments=ANYTHING))
Message = record(
    "role message? assistantName? toolCallId? name?",
    place=int,  # does not count system messages
    time=optional(int),
    endTime=optional(int),
    toolCalls=optional(many(ToolCall)),
    result=ANYTHING,
)
"""One message of the history."""
Report = sent(
    "endedReason?",
    messages=(many(Message), []),
    reported=(bool, False),
    startedAt=optional(int),
    endedAt=optional(int),
)
"""The end of the call, with the history, or after frames of its own with the history (`reported`)."""
Speech = sent("text", turn=optional(int), words=optional(int), characters=optional(int))
"""All of the agent's text in a turn, and how many words were spoken so far, or how many characters are next."""
