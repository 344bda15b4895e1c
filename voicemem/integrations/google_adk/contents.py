"""Contents of Gemini's form, as the ADK sends them to models, and those of a memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from voicemem.integrations.conversation import parsed
from voicemem.protocol.types import JsonObject

OF_OTHERS = "For context:"
"""So begins what the ADK tells one agent of another, in the user's role."""
SAID_BY_ANOTHER = re.compile(
    r"(?P<before>\[[^\]]+\] said:\s(?:<<<\w+>>>\s)?)(?P<text>.*?)(?P<after>(?:\s<<<\w+>>>)?)", re.DOTALL
)
"""One of its parts: the text alone, or, since version 2.13, between two marks."""


class RunContent(NamedTuple):
    """A content as `voicemem.integrations.runs` takes it."""

    type: str
    content: str
    tool_calls: Sequence[JsonObject]
    id: str
    source: Any
    """The content itself, or its JSON."""


def text_of(content: Any) -> str:
    """The text of a content, without the model's thoughts."""
    parts = (None if content is None else content.parts) or []
    return "".join(part.text for part in parts if part.text and not part.thought)


def own_contents(contents: Iterable[Any]) -> list[RunContent]:
    """Those of a request that the ADK has made. Their ids are their places."""
    return [run_content(content, str(at)) for at, content in enumerate(contents)]


def run_content(content: Any, name: str) -> RunContent:
    parts, text = content.parts or [], text_of(content)
    calls = [{"id": part.function_call.id} for part in parts if part.function_call]
    if content.role == "model":
        return RunContent("ai", text, calls, name, content)
    if any(part.function_response for part in parts):
        return RunContent("tool", text, (), name, content)
    return RunContent("other" if text.startswith(OF_OTHERS) else "human", text, (), name, content)


def known_contents(messages: Iterable[JsonObject]) -> Iterator[RunContent]:
    """Those of a memory's messages in OpenAI's form; instructions are left out."""
    names: dict[str, str] = {}
    for message in messages:
        role, text = message["role"], message.get("content") or ""
        if role == "user":
            yield RunContent("human", text, (), "", {"role": "user", "parts": [{"text": text}]})
        elif role == "assistant":
            calls = message.get("tool_calls") or []
            names |= {call["id"]: call["function"]["name"] for call in calls}
            parts = [{"text": text}] * bool(text) + [function_call(call) for call in calls]
            yield RunContent("ai", text, calls, "", {"role": "model", "parts": parts})
        elif role == "tool":
            call_id, response = message["tool_call_id"], as_object(parsed(text), "result")
            part = {"id": call_id, "name": names.get(call_id, "tool"), "response": response}
            yield RunContent("tool", text, (), "", {"role": "user", "parts": [{"function_response": part}]})


def function_call(call: JsonObject) -> JsonObject:
    function = call["function"]
    arguments = as_object(parsed(function["arguments"]), "arguments")
    return {"function_call": {"id": call["id"], "name": function["name"], "args": arguments}}


def as_object(value: Any, name: str) -> JsonObject:
    return value if isinstance(value, dict) else {name: value}


def request_contents(run: Iterable[RunContent], made: type[Any]) -> list[Any]:
    """Contents for a request, of the class `made`."""
    return [made.model_validate(one.source) if isinstance(one.source, dict) else one.source for one in run]


def cut_contents(contents: Iterable[Any], heard: Iterable[tuple[str, str]]) -> list[Any]:
    """The ADK's own contents, with the texts of replies that were cut as they were heard."""
    texts = dict(heard)
    return [cut_content(content, texts) for content in contents]


def cut_content(content: Any, texts: Mapping[str, str]) -> Any:
    text = text_of(content)
    if content.role == "model":
        return cut(content, texts[text]) if text in texts else content
    return content if not text.startswith(OF_OTHERS) else quoted(content, texts)


def quoted(content: Any, texts: Mapping[str, str]) -> Any:
    """What another agent said, as the ADK tells it, with replies that were cut as they were heard."""
    parts = []
    for part in content.parts:
        said = SAID_BY_ANOTHER.fullmatch(part.text or "")
        if said is not None and said["text"] in texts:
            part = part.model_copy(update={"text": said["before"] + texts[said["text"]] + said["after"]})
        parts.append(part)
    return content.model_copy(update={"parts": parts})


def cut(content: Any, heard: str) -> Any:
    parts = [part for part in content.parts if not part.text]
    made = type(content).model_validate({"role": "model", "parts": [{"text": heard}]})
    return made.model_copy(update={"parts": [*made.parts, *parts]})
