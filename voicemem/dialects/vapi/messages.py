"""Vapi's messages in one form: whatever their age, kind of server and client, a field has one name and one type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from voicemem.dialects.dialect import MalformedFrame
from voicemem.protocol.memories import time_ms
from voicemem.protocol.types import MAX_INTEGER, JsonObject

ROLES = {"assistant": "bot", "ai": "bot", "agent": "bot", "customer": "user", "tool": "tool_call_result"}
"""Names that a role has in some messages, and its own."""
HISTORY_ROLES = ("user", "bot", "tool_calls", "tool_call_result")
SPOKEN_ROLES = ("user", "bot")
CALL_FIELDS = "arguments", "parameters"
RESULT_FIELDS = "result", "message", "content"


def ms(value: Any) -> int | None:
    """A time in Unix ms: Vapi writes numbers, with or without a fraction, or ISO 8601."""
    if isinstance(value, str):
        try:
            value = time_ms(value)
        except ValueError:
            return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MAX_INTEGER:
        return None
    return round(value)


def number(value: Any) -> int | None:
    """A count, which Vapi may write with a fraction of 0."""
    whole = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_INTEGER
    return int(value) if whole else None


def role_of(value: Any) -> str:
    """A role's own name. Raises `MalformedFrame`."""
    if not isinstance(value, str):
        raise MalformedFrame("A message has a role.")
    return ROLES.get(value, value)


def history_of(frame: JsonObject) -> list[JsonObject] | None:
    """The messages of a history, numbered; None where there is no history. Raises `MalformedFrame`."""
    artifact = frame.get("artifact")
    for holder in (frame, artifact if isinstance(artifact, dict) else {}):
        for field in ("messages", "messagesOpenAIFormatted"):
            given = holder.get(field)
            if isinstance(given, list) and given:
                return numbered(given)
    return None


def numbered(given: Iterable[Any]) -> list[JsonObject]:
    found: list[JsonObject] = []
    for one in given:
        if not isinstance(one, dict):
            raise MalformedFrame("A history is a list of messages.")
        for message in in_one_form(one):
            found.append({"place": len(found)} | message)
    return found


def in_one_form(given: JsonObject) -> Iterator[JsonObject]:
    """A message of the history; OpenAI's form may say something and call tools in one. None for what nobody said."""
    role = role_of(given.get("role"))
    if role not in HISTORY_ROLES:
        return
    start, end = ms(given.get("time")), ms(given.get("endTime"))
    message: JsonObject = {"role": role, "time": start, "endTime": end}
    if "place" in given:
        message["place"] = given["place"]
    if role == "tool_call_result":
        id = given.get("toolCallId", given.get("tool_call_id"))
        if isinstance(id, str):
            yield message | {"toolCallId": id, "name": given.get("name"), "result": first_of(given, RESULT_FIELDS)}
        return
    text = first_of(given, ("message", "content"))
    if role in SPOKEN_ROLES and isinstance(text, str) and text.strip():
        yield message | {"message": text.strip()}
    calls = given.get("toolCalls", given.get("tool_calls"))
    if isinstance(calls, list) and calls:
        yield message | {"role": "tool_calls", "toolCalls": [*tool_calls(calls)]}


def tool_calls(given: Any) -> Iterator[JsonObject]:
    """Calls of tools that have an id; name and arguments stand in `function` or beside it. Raises `MalformedFrame`."""
    for one in given if isinstance(given, list) else ():
        call = one.get("toolCall", one) if isinstance(one, dict) else None
        if not isinstance(call, dict):
            raise MalformedFrame("A call of a tool is an object.")
        function = call.get("function")
        function = function if isinstance(function, dict) else call
        id, name = call.get("id"), function.get("name") or one.get("name")
        if isinstance(id, str) and isinstance(name, str):
            yield {"id": id, "function": {"name": name, "arguments": first_of(function, CALL_FIELDS)}}


def first_of(holder: JsonObject, fields: Iterable[str]) -> Any:
    """The first of these fields that is there."""
    return next((holder[field] for field in fields if holder.get(field) is not None), None)
