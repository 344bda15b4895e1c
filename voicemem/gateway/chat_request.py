"""The client's side of a chat completion: its request, and the answers that the gateway writes itself."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from voicemem.context.formats import INSTRUCTION_ROLES
from voicemem.dialects.caller_fields import Caller, digits_of_all, numbers_in
from voicemem.errors import Refused
from voicemem.gateway.session_address import read_caller
from voicemem.llm.completions import MAX_EXTRA_BYTES, MESSAGE_FIELDS, content_text, further_fields
from voicemem.protocol.explanations import explain
from voicemem.protocol.types import JsonObject

CUSTOM_FIELDS = ("turn_id", "timestamp", "interruptable")
PASSED_ON = frozenset(
    """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens modalities
    moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options
    prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store
    stream_options temperature tool_choice tools top_logprobs top_p verbosity web_search_options

    chat_template_kwargs enable_thinking guided_choice guided_grammar guided_json guided_regex include_reasoning
    length_penalty min_p min_tokens provider reasoning repetition_penalty safe_prompt thinking top_a top_k typical_p
""".split()  # noqa: SIM905 (a list would be a page long)
)
"""Fields for the LLM, OpenAI's and then those of other servers, in a request that may also have fields of its vendor.

`metadata` and `user` name the session.
"""
NO_TEXT = "The user's message has no text; leave the message out to have the memory answered"


class RequestMessage(Struct, frozen=True):
    """A message of a request; other fields are ignored, except those of instructions."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = None
    tool_call_id: str | None = None
    tool_calls: Any = None


REQUEST_FIELDS = MESSAGE_FIELDS.union(RequestMessage.__struct_fields__)


class ChatRequest(Struct, frozen=True):
    """A request for a chat completion; other fields are passed on to the LLM."""

    messages: list[RequestMessage]
    model: str | None = None
    stream: bool | None = None


class ChatTurn(Struct, frozen=True):
    """A request as the gateway uses it."""

    stream: bool
    model: str | None
    messages: list[RequestMessage]
    instructions: list[JsonObject]
    extra: dict[int, JsonObject]
    """Further fields of the messages with tool calls, by index, which their LLM wants back."""
    fields: JsonObject
    """All but `messages`, `model` and `stream`."""
    dialect: str = ""
    """The dialect of the vendor whose fields name the caller."""
    caller: Caller = Caller()


def read_request(payload: JsonObject) -> ChatTurn:
    """Read the body of a request. Raises `Refused` (`missing_field`, `invalid_field`)."""
    try:
        request = msgspec.convert(payload, ChatRequest)
    except msgspec.ValidationError as error:
        raise Refused(*explain(error, ChatRequest)) from None
    messages = request.messages
    if messages and messages[-1].role == "user" and not content_text(messages[-1].content).strip():
        raise Refused("invalid_field", f"{NO_TEXT}: `messages[{len(messages) - 1}].content`")
    raw: list[JsonObject] = payload["messages"]
    return ChatTurn(
        stream=bool(request.stream),
        model=request.model,
        messages=messages,
        instructions=[message for message in raw if message["role"] in INSTRUCTION_ROLES],
        extra={index: extra_fields(message) for index, message in enumerate(raw) if message.get("tool_calls")},
        fields={name: value for name, value in payload.items() if name not in ("messages", "model", "stream")},
    )


def extra_fields(message: JsonObject) -> JsonObject:
    """Return the further fields of a message; none if they are larger than the memory keeps."""
    extra = further_fields(message, REQUEST_FIELDS)
    return extra if len(msgspec.json.encode(extra)) <= MAX_EXTRA_BYTES else {}


def without_vendor_fields(payload: JsonObject) -> JsonObject:
    """Return the body of a request from a stack that hosts agents, without its fields: they have phone numbers."""
    own = ("messages", "model", "stream")
    return {name: value for name, value in payload.items() if name in PASSED_ON or name in own}


def with_caller(chat_turn: ChatTurn, payload: JsonObject, may_name: bool) -> ChatTurn:
    """Return a request with its caller, from fields besides its conversation; with a user only if it `may_name` one."""
    said = ("messages", "input", "instructions")
    beside = {name: value for name, value in payload.items() if name not in PASSED_ON and name not in said}
    dialect, caller = read_caller(payload)
    numbers = tuple(dict.fromkeys((*caller.numbers, *digits_of_all(numbers_in(beside)))))
    caller = caller._replace(numbers=numbers) if may_name else Caller(numbers=numbers)
    return structs.replace(chat_turn, dialect=dialect, caller=caller)


def with_images(body: JsonObject, request: Sequence[RequestMessage]) -> JsonObject:
    """Return the body with the further parts, such as images, that the request has in messages of the user."""
    parts: dict[str, Any] = {
        content_text(one.content): one.content for one in request if one.role == "user" and has_other_parts(one.content)
    }
    if not parts:
        return body
    newest = next(reversed(parts))
    messages = list(body["messages"])
    for place in reversed(range(len(messages))):
        message = messages[place]
        text = message["content"] if message["role"] == "user" else None
        if not isinstance(text, str):  # one of the configured messages, which may have parts themselves
            continue
        if text in parts:
            messages[place] = {**message, "content": parts.pop(text)}
        elif newest in parts and text.endswith(f"\n{newest}"):  # joined to earlier words
            before = {"type": "text", "text": text[: -len(newest) - 1]}
            messages[place] = {**message, "content": [before, *parts.pop(newest)]}
    return {**body, "messages": messages}


def has_other_parts(content: Any) -> bool:
    """Return whether a message has parts besides text, such as an image."""
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and part.get("type") != "text" for part in parts)


def caller_tool_names(tools: Any) -> frozenset[str]:
    """Return the names of the tools that a client defines, whatever it sent."""
    functions = (tool.get("function") for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
    names = (function.get("name") for function in functions if isinstance(function, dict))
    return frozenset(name for name in names if isinstance(name, str))


def build_llm_request(context: JsonObject, chat_turn: ChatTurn, default_model: str | None, custom: bool) -> JsonObject:
    """Return the body of the LLM request: the context, with the client's other fields.

    The model is the session's (`llm.model`, then `llm.params.model`), then `default_model`, then the client's.
    """
    own = {"messages", *(CUSTOM_FIELDS if custom else ())}
    fields = {name: value for name, value in chat_turn.fields.items() if name not in own}
    model = context.get("model") or default_model or chat_turn.model
    body = context | fields
    if not chat_turn.stream:
        body.pop("stream_options", None)
    return body | ({"model": model} if model else {}) | {"stream": chat_turn.stream}


# Answers that the gateway writes itself


def text_chunks(head: JsonObject, text: str) -> Sequence[bytes]:
    deltas: list[tuple[JsonObject, str | None]] = [({"role": "assistant", "content": text}, None), ({}, "stop")]
    return [
        msgspec.json.encode({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
        for delta, reason in deltas
    ]


def text_completion(head: JsonObject, text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return msgspec.json.encode({**head, "choices": [choice]})
