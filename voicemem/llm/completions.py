"""OpenAI's chat completions, as the gateway reads and writes them.

https://platform.openai.com/docs/api-reference/chat; what servers add to it passes through unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal

import msgspec
from msgspec import Struct

from voicemem.errors import LlmFailed, Refused
from voicemem.protocol.explain import explain
from voicemem.protocol.types import MAX_TEXT_BYTES, JsonObject

CUSTOM_FIELDS = ("turn_id", "timestamp", "interruptable")
INSTRUCTION_ROLES = ("system", "developer")
NO_TEXT = "The user's message has no text, which is all that is taken of it; leave it out to have the memory answered"


class AskedMessage(Struct, frozen=True):
    """A message of a request; fields beside these are passed over, but for those of instructions."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = None
    tool_call_id: str | None = None


class ChatRequest(Struct, frozen=True):
    """A request for a chat completion; other fields go on to the LLM as they are."""

    messages: list[AskedMessage]
    model: str | None = None
    stream: bool | None = None


class GivenToolResult(Struct, frozen=True):
    """What the caller's tool answered; `place` is that of its message in the request."""

    call_id: str
    text: str
    message_index: int


class ChatTurn(Struct, frozen=True):
    """What a request says that matters here."""

    stream: bool
    model: str | None
    user_text: str | None
    """What the user said, when the request ends with words of the user's; never blank."""
    tool_results: list[GivenToolResult]
    """The tool results at its end."""
    instructions: list[JsonObject]
    fields: JsonObject
    """All but `messages`, `model` and `stream`."""


def read_request(given: JsonObject) -> ChatTurn:
    """What a request's body asks for. Raises `Refused` (`missing_field`, `invalid_field`)."""
    try:
        request = msgspec.convert(given, ChatRequest)
    except msgspec.ValidationError as error:
        raise Refused(*explain(error, ChatRequest)) from None
    messages = request.messages
    trailing = takewhile(lambda numbered: numbered[1].role == "tool", reversed([*enumerate(messages)]))
    tool_results = [
        GivenToolResult(one.tool_call_id or "", content_text(one.content), message_index)
        for message_index, one in trailing
    ]
    raw: list[JsonObject] = given["messages"]
    return ChatTurn(
        stream=bool(request.stream),
        model=request.model,
        user_text=last_user_text(messages),
        tool_results=tool_results[::-1],
        instructions=[one for one in raw if one["role"] in INSTRUCTION_ROLES],
        fields={name: value for name, value in given.items() if name not in ("messages", "model", "stream")},
    )


def last_user_text(messages: Sequence[AskedMessage]) -> str | None:
    """The words of a last message of the user's. Raises `Refused` where it has none."""
    if not messages or messages[-1].role != "user":
        return None
    text = content_text(messages[-1].content)
    if not text.strip():
        raise Refused("invalid_field", f"{NO_TEXT}: `messages[{len(messages) - 1}].content`")
    return text


def content_text(content: Any) -> str:
    """The text of a message's content: itself, or its parts of type `text`, a line each."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def build_llm_request(context: JsonObject, chat_turn: ChatTurn, default_model: str | None, custom: bool) -> JsonObject:
    """The body of the LLM's call: the context, with what the request says beside its conversation."""
    messages: list[JsonObject] = context["messages"]
    instruction_count = len([*takewhile(lambda message: message["role"] in INSTRUCTION_ROLES, messages)])
    own = {"messages", *(CUSTOM_FIELDS if custom else ())}
    fields = {name: value for name, value in chat_turn.fields.items() if name not in own}
    model = context.get("model") or default_model or chat_turn.model
    body = {
        **context,
        "messages": [*messages[:instruction_count], *chat_turn.instructions, *messages[instruction_count:]],
        **fields,
    }
    if not chat_turn.stream:
        body.pop("stream_options", None)
    return body | ({"model": model} if model else {}) | {"stream": chat_turn.stream}


# What the LLM answers


class FunctionPart(Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallPart(Struct, frozen=True):
    """A tool call, or a fragment of one; fragments of one call have one index."""

    index: int | None = None
    id: str | None = None
    function: FunctionPart | None = None


class ChoiceMessage(Struct, frozen=True):
    """What stands in a choice: a whole message, or what a chunk adds to it."""

    content: Any = None
    tool_calls: list[ToolCallPart] | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None


class CompletionChoice(Struct, frozen=True):
    index: int = 0
    delta: ChoiceMessage | None = None
    message: ChoiceMessage | None = None
    finish_reason: str | None = None


class Completion(Struct, frozen=True):
    """A chat completion, or one chunk of it."""

    id: str | None = None
    choices: list[CompletionChoice] | None = None
    error: Any = None


DECODER = msgspec.json.Decoder(Completion)


class PartialToolCall:
    """A tool call, as far as it was told."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments = ""


class LlmAnswer:
    """What an LLM has answered so far: of the first choice its text and tool calls."""

    def __init__(self) -> None:
        self.id: str | None = None
        """Of the first chunk that has one."""
        self.text: list[str] = []
        self.size = 0
        self.tool_calls: list[PartialToolCall] = []
        self.has_choice = False
        """Whether a chunk or completion had a choice."""
        self.has_finish_reason = False
        """Whether a chunk said why it ends."""
        self.has_other_content = False
        """Whether there was something that is passed on, and not kept."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said, nor any tool called."""
        return not (self.size or self.tool_calls or self.has_other_content)

    def add_chunk(self, data: bytes) -> str:
        """Take a chunk or a whole completion; the text that it adds. Raises `LlmFailed`."""
        try:
            completion = DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise LlmFailed("invalid_answer") from None
        if completion.error is not None:
            raise LlmFailed(error_status(completion.error))
        self.id = self.id or completion.id
        added = ""
        for choice in completion.choices or ():
            message = choice.message or choice.delta
            if choice.index != 0:
                continue
            self.has_choice = True
            self.has_finish_reason = self.has_finish_reason or choice.finish_reason is not None
            if message is not None:
                added += content_text(message.content)
                self.has_other_content = self.has_other_content or bool(
                    message.refusal or message.audio or message.function_call
                )
                for part in message.tool_calls or ():
                    self.add_tool_call_part(part)
        self.text.append(added)
        self.add_size(added)
        return added

    def add_tool_call_part(self, part: ToolCallPart) -> None:
        """Add a fragment to its call; servers that give no index send each call whole, or in one go."""
        if part.index is not None:
            found = next((call for call in self.tool_calls if call.index == part.index), None)
        else:
            found = next((call for call in self.tool_calls[-1:] if part.id in (None, "", call.id)), None)
        if found is None:
            found = PartialToolCall(part.index)
            self.tool_calls.append(found)
        found.id = found.id or part.id or ""
        if part.function is not None:
            found.name += part.function.name or ""
            found.arguments += part.function.arguments or ""
            self.add_size(part.function.arguments or "")

    def add_size(self, added: str) -> None:
        self.size += len(added.encode(errors="replace"))
        if self.size > MAX_TEXT_BYTES:
            raise LlmFailed("too_long")


def error_status(error: Any) -> int | str:
    """The HTTP status that an error in an answer names; its texts are nobody else's business."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        code = int(code)
    return code if type(code) is int and 400 <= code <= 599 else "error"


# What the gateway says itself


def text_chunks(item: str, created_s: int, model: str, text: str) -> Sequence[bytes]:
    """A text as the chunks of a streamed completion that ends with it."""
    head = {"id": item, "object": "chat.completion.chunk", "created": created_s, "model": model}
    deltas: list[tuple[JsonObject, str | None]] = [({"role": "assistant", "content": text}, None), ({}, "stop")]
    return [
        msgspec.json.encode({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
        for delta, reason in deltas
    ]


def text_completion(item: str, created_s: int, model: str, text: str) -> bytes:
    """A text as a whole completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    head = {"id": item, "object": "chat.completion", "created": created_s, "model": model}
    return msgspec.json.encode({**head, "choices": [choice]})
