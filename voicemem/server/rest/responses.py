"""OpenAI's Responses API at the edge of the gateway: text, tools and streams, as agents send them.

A request becomes one for a chat completion, and the chunks of its answer become the events of a response. The memory
keeps the conversation, so `previous_response_id` and `store` say nothing new.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from voicemem.errors import Refused
from voicemem.gateway.chat_request import PASSED_ON, ChatTurn, read_request, with_caller
from voicemem.llm.completions import Completion, content_text, decode_completion
from voicemem.protocol import sse
from voicemem.protocol.sse import EVENT_STREAM
from voicemem.protocol.types import JsonObject
from voicemem.server.http.request import Request, read_object
from voicemem.server.http.routes import JSON, Routes
from voicemem.server.rest import chat
from voicemem.store.streams import Stream

ROUTES = Routes()
NOT_TAKEN = ("background", "conversation", "prompt", "context_management", "image")
"""Fields whose features the gateway does not have."""
ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = ("input_text", "output_text", "text")
ENDS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The reasons why an answer is incomplete: a completion's word, and a response's."""


class ResponseRequest(Struct, frozen=True):
    """A request for a response; other fields are OpenAI's, as far as they are taken."""

    input: str | list[JsonObject]
    model: str | None = None
    instructions: str | None = None
    tools: list[JsonObject] | None = None
    stream: bool | None = None


class ResponseAnswer(Struct, frozen=True):
    """The answer: its messages and tool calls in `output`, besides OpenAI's other fields."""

    id: str
    status: str
    output: list[JsonObject]


class ResponseEvent(Struct, frozen=True):
    """An event of a streamed response."""

    type: str
    sequence_number: int


@ROUTES.add(
    "POST /v1/responses",
    "ingest",
    {JSON: ResponseAnswer, EVENT_STREAM: ResponseEvent},
    ResponseRequest,
    chat.LOCATE_CODES,
    for_tokens=True,
    **chat.GATEWAY,
)
async def create_hosted_response(request: Request) -> web.StreamResponse:
    """Answer as `POST /v1/chat/completions`, for clients of OpenAI's Responses API."""
    payload = await read_object(request)
    chat_turn = with_caller(read_response_request(payload), payload, request.grant.session_id is None)
    stream = await chat.locate_session(request, payload)
    return await chat.answer(request, stream, chat_turn, response_format(request, payload))


@ROUTES.add(
    "POST /v1/sessions/{id}/responses",
    "ingest",
    {JSON: ResponseAnswer, EVENT_STREAM: ResponseEvent},
    body=ResponseRequest,
    codes=chat.ANSWER_CODES,
    **chat.GATEWAY,
)
async def create_response(request: Request, stream: Stream) -> web.StreamResponse:
    """Answer as `POST /v1/sessions/{id}/chat/completions`, for clients of OpenAI's Responses API."""
    payload = await read_object(request)
    return await chat.answer(request, stream, read_response_request(payload), response_format(request, payload))


# The request


def read_response_request(payload: JsonObject) -> ChatTurn:
    """Read a request as one for a chat completion. Raises `Refused` (`missing_field`, `invalid_field`)."""
    input_value = payload.get("input")
    if input_value is None:
        raise Refused("missing_field", "A response needs `input`, a text or a list of items.")
    for name in NOT_TAKEN:
        if payload.get(name):
            raise Refused("invalid_field", f"The gateway does not take `{name}`; send the conversation in `input`.")
    instructions = payload.get("instructions")
    if not isinstance(instructions, str | None):
        raise Refused("invalid_field", "Instructions are a text: `instructions`.")
    messages: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(input_value, str):
        messages.append({"role": "user", "content": input_value})
    elif isinstance(input_value, list):
        messages += read_items(input_value)
    else:
        raise Refused("invalid_field", "The input is a text or a list of items: `input`.")
    return read_request(read_fields(payload) | {"messages": messages})


def read_fields(payload: JsonObject) -> JsonObject:
    """Return the other fields in the form of a chat completion. Raises `Refused` (`invalid_field`)."""
    renamed = ("tools", "tool_choice", "reasoning", "text", "stream_options", "store")
    names = {"model", "stream"} | (PASSED_ON - set(renamed))
    fields = {name: value for name, value in payload.items() if name in names and value is not None}
    text, reasoning = object_in(payload, "text"), object_in(payload, "reasoning")
    if payload.get("max_output_tokens") is not None:
        fields["max_completion_tokens"] = payload["max_output_tokens"]
    if payload.get("top_logprobs"):
        fields["logprobs"] = True
    if reasoning.get("effort"):
        fields["reasoning_effort"] = reasoning["effort"]
    if text.get("verbosity"):
        fields["verbosity"] = text["verbosity"]
    kind = object_in(text, "format")
    if kind.get("type") == "json_schema":
        schema = {name: value for name, value in kind.items() if name != "type"}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind.get("type") == "json_object":
        fields["response_format"] = kind
    if payload.get("tools"):
        fields["tools"] = read_tools(payload["tools"])
        fields |= {} if payload.get("tool_choice") is None else {"tool_choice": read_choice(payload["tool_choice"])}
    if payload.get("stream"):
        fields["stream_options"] = {"include_usage": True}
    return fields


def object_in(holder: JsonObject, name: str) -> JsonObject:
    value = holder.get(name)
    if not isinstance(value, dict | None):
        raise Refused("invalid_field", f"An object is expected: `{name}`.")
    return value or {}


def read_tools(tools: Any) -> list[JsonObject]:
    """Return the functions of a request. Raises `Refused` (`invalid_field`) for tools that OpenAI runs itself."""
    functions = []
    for place, tool in enumerate(tools if isinstance(tools, list) else [None]):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise Refused("invalid_field", f"Tools of the type `function` alone are taken: `tools[{place}].type`.")
        fields = {name: value for name, value in tool.items() if name != "type" and value is not None}
        functions.append({"type": "function", "function": fields})
    return functions


def read_choice(choice: Any) -> Any:
    """Return the choice of tools in the form of a chat completion. Raises `Refused` (`invalid_field`)."""
    if isinstance(choice, str):
        return choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind == "allowed_tools":
        allowed = {"mode": choice.get("mode"), "tools": read_tools(choice.get("tools"))}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    raise Refused("invalid_field", "Tools of the type `function` alone are taken: `tool_choice`.")


def read_items(items: list[Any]) -> list[JsonObject]:
    """Return the messages of items; an agent's words and its tool calls are one message. Raises `Refused`."""
    messages: list[JsonObject] = []
    for place, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            if item.get("role") not in ROLES:
                roles = ", ".join(ROLES)
                raise Refused("invalid_field", f"The role of a message is one of {roles}: `input[{place}].role`.")
            messages.append({"role": item["role"], "content": read_content(item.get("content"), place)})
        elif kind in ("function_call", "function_call_output"):
            if not isinstance(item.get("call_id"), str):
                raise Refused("invalid_field", f"The id of a call is a text: `input[{place}].call_id`.")
            add_call(messages, item, place)
        elif kind != "reasoning":  # what an LLM thought stays with it
            raise Refused("invalid_field", f"{ITEMS}: `input[{place}].type`.")
    return messages


def add_call(messages: list[JsonObject], item: JsonObject, place: int) -> None:
    if item["type"] == "function_call_output":
        output = content_text(read_content(item.get("output"), place))
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
        return
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    messages[-1].setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})


ITEMS = "Items are messages, function calls, their outputs and reasoning; send what an `item_reference` names"


def read_content(content: Any, place: int) -> Any:
    """Return the content of an item: its text, or its parts. Raises `Refused` (`invalid_field`)."""
    if isinstance(content, str | None):
        return content
    if not isinstance(content, list):
        raise Refused("invalid_field", f"Content is a text or a list of parts: `input[{place}].content`.")
    parts: list[JsonObject] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in TEXT_PARTS:
            parts.append({"type": "text", "text": part.get("text")})
        elif kind == "refusal":
            parts.append({"type": "text", "text": part.get("refusal")})
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            detail = {} if part.get("detail") is None else {"detail": part["detail"]}
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]} | detail})
        else:
            raise Refused("invalid_field", f"Text and images by URL are taken: `input[{place}].content[{number}]`.")
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


# The answer


class OutputItem:
    """A message or a tool call of a response, as far as it was received."""

    def __init__(self, place: int, id: str, kind: str) -> None:
        self.place = place
        self.id = id
        self.kind = kind
        """The type of its text: `output_text`, `refusal`, or `arguments` of a call."""
        self.pieces: list[str] = []
        self.call_id = self.name = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def part(self) -> JsonObject:
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def shown(self, status: str) -> JsonObject:
        head = {"id": self.id, "status": status}
        if self.kind == "arguments":
            call = {"call_id": self.call_id, "name": self.name, "arguments": self.text}
            return {"type": "function_call", **head, **call}
        content = [self.part] if self.pieces else []
        return {"type": "message", **head, "role": "assistant", "content": content}


class ResponseFormat(chat.ChatFormat):
    """A response, with an id and the Unix seconds of its start; it repeats parts of its request, the `payload`."""

    def __init__(self, payload: JsonObject, id: str, created_s: int) -> None:
        self.payload = payload
        self.id, self.created_s, self.model = id, created_s, str(payload.get("model") or "")
        self.usage: JsonObject | None = None
        self.finish_reason: str | None = None
        self.items: list[OutputItem] = []
        self.calls: dict[object, OutputItem] = {}
        """By index."""
        self.numbers = count()
        self.has_begun = False

    def whole(self, body: bytes) -> bytes:
        for _ in self.add(body):
            pass
        return msgspec.json.encode(self.response(self.status()))

    def piece(self, data: bytes) -> bytes:
        begun, events = self.has_begun, list(self.add(data))
        self.has_begun = True
        if not begun:
            opened = self.response("in_progress") | {"output": []}
            events = [{"type": f"response.{name}", "response": opened} for name in ("created", "in_progress")] + events
        return b"".join(map(self.encode, events))

    def end(self) -> bytes:
        events = [event for item in self.items for event in done_events(item)]
        status = self.status()
        last = {"type": f"response.{status}", "response": self.response(status)}
        return b"".join(map(self.encode, [*events, last]))

    def error(self, error: chat.OpenAIError) -> bytes:
        # OpenAI's client raises for an event with `error`, and frameworks for its type.
        fields = {"message": error.message, "code": error.code, "param": None, "error": error}
        return self.encode({"type": "error"} | fields)

    def encode(self, event: JsonObject) -> bytes:
        numbered = event | {"sequence_number": next(self.numbers)}
        return sse.encode(msgspec.json.encode(numbered), event=event["type"])

    def status(self) -> str:
        return "incomplete" if self.finish_reason in ENDS else "completed"

    def response(self, status: str) -> JsonObject:
        repeated = ("instructions", "max_output_tokens", "previous_response_id", "reasoning", "temperature", "top_p")
        why = ENDS.get(self.finish_reason or "") if status == "incomplete" else None
        return {
            **{name: self.payload.get(name) for name in repeated},
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "model": self.model,
            "output": [item.shown("incomplete" if why else "completed") for item in self.items],
            "error": None,
            "incomplete_details": None if why is None else {"reason": why},
            "metadata": {},
            "parallel_tool_calls": self.payload.get("parallel_tool_calls", True),
            "text": self.payload.get("text") or {"format": {"type": "text"}},
            "tool_choice": self.payload.get("tool_choice") or "auto",
            "tools": self.payload.get("tools") or [],
            "truncation": "disabled",
            "usage": self.usage,
        }

    def add(self, data: bytes) -> Iterator[JsonObject]:
        """Add a chunk, or a whole completion, and yield its events."""
        completion = decode_completion(data)
        self.model = completion.model if isinstance(completion.model, str) else self.model
        self.usage = usage_of(completion) or self.usage
        for choice in completion.choices or ():
            if choice.index:
                continue
            self.finish_reason = self.finish_reason or choice.finish_reason
            fields = choice.message or choice.delta or {}
            yield from self.add_text("output_text", content_text(fields.get("content")))
            yield from self.add_text("refusal", content_text(fields.get("refusal")))
            for place, call in enumerate(fields.get("tool_calls") or ()):
                yield from self.add_call(call, call.get("index", place if choice.message else None))

    def add_text(self, kind: str, text: str) -> Iterator[JsonObject]:
        if not text:
            return
        item = next((one for one in self.items if one.kind == kind), None)
        if item is None:
            item = OutputItem(len(self.items), f"msg_{self.id[5:]}_{len(self.items)}", kind)
            yield from self.begin(item)
            place = {"item_id": item.id, "output_index": item.place, "content_index": 0}
            yield {"type": "response.content_part.added", **place, "part": item.part}
        item.pieces.append(text)
        yield delta_event(item, text)

    def add_call(self, call: JsonObject, index: object) -> Iterator[JsonObject]:
        function: JsonObject = call.get("function") or {}
        item = self.calls.get(index)
        if item is None:
            item = OutputItem(len(self.items), f"fc_{self.id[5:]}_{len(self.items)}", "arguments")
            item.call_id, item.name = str(call.get("id") or ""), str(function.get("name") or "")
            self.calls[index] = item
            yield from self.begin(item)
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            item.pieces.append(arguments)
            yield delta_event(item, arguments)

    def begin(self, item: OutputItem) -> Iterator[JsonObject]:
        self.items.append(item)
        yield {"type": "response.output_item.added", "output_index": item.place, "item": item.shown("in_progress")}


def response_format(request: Request, payload: JsonObject) -> ResponseFormat:
    runtime = request.services.runtime
    return ResponseFormat(payload, f"resp_{runtime.new_id()}", runtime.clock() // 1000)


def delta_event(item: OutputItem, text: str) -> JsonObject:
    place = {"item_id": item.id, "output_index": item.place, "delta": text}
    if item.kind == "arguments":
        return {"type": "response.function_call_arguments.delta", **place}
    logprobs: JsonObject = {"logprobs": []} if item.kind == "output_text" else {}
    return {"type": f"response.{item.kind}.delta", **place, "content_index": 0, **logprobs}


def done_events(item: OutputItem) -> Iterator[JsonObject]:
    place: JsonObject = {"item_id": item.id, "output_index": item.place}
    if item.kind == "arguments":
        call = {"name": item.name, "arguments": item.text}
        yield {"type": "response.function_call_arguments.done", **place, **call}
    else:
        place["content_index"] = 0
        text = {"refusal": item.text} if item.kind == "refusal" else {"text": item.text, "logprobs": []}
        yield {"type": f"response.{item.kind}.done", **place, **text}
        yield {"type": "response.content_part.done", **place, "part": item.part}
    yield {"type": "response.output_item.done", "output_index": item.place, "item": item.shown("completed")}


def usage_of(completion: Completion) -> JsonObject | None:
    if not isinstance(completion.usage, dict):
        return None
    usage = completion.usage
    sent, made = tokens(usage, "prompt_tokens"), tokens(usage, "completion_tokens")
    cached = tokens(usage.get("prompt_tokens_details"), "cached_tokens")
    thought = tokens(usage.get("completion_tokens_details"), "reasoning_tokens")
    return {
        "input_tokens": sent,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": sent + made,
    }


def tokens(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if type(value) is int else 0
