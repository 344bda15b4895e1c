"""An LLM's answer as OpenAI's chat completions have it: https://platform.openai.com/docs/api-reference/chat.

What servers add to the format is passed through unread.
"""

from typing import Any

import msgspec
from msgspec import Struct

from voicemem.errors import LlmFailed
from voicemem.protocol.codec import has_too_many_values
from voicemem.protocol.types import MAX_TEXT_BYTES, MAX_VALUES

MAX_TOOL_CALLS = 128
"""Of one answer: as many as OpenAI's requests may have tools."""
MAX_NAME_CHARACTERS = 1_024
"""Of the name and the id of a tool call together."""


def content_text(content: Any) -> str:
    """The text of a message's content: the content itself, or its parts of type `text`, one per line."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


class FunctionPart(Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallPart(Struct, frozen=True):
    """A tool call, or a fragment of one; the fragments of one call have the same index."""

    index: int | None = None
    id: str | None = None
    function: FunctionPart | None = None


class ChoiceMessage(Struct, frozen=True):
    """The message of a choice, or what a chunk adds to it."""

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
    """A tool call, as far as it has arrived."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.fragments: list[str] = []
        """Of the arguments."""

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


class LlmAnswer:
    """The answer of an LLM so far: the text and the tool calls of the first choice."""

    def __init__(self) -> None:
        self.id: str | None = None
        """From the first chunk that has one."""
        self.text: list[str] = []
        self.size = 0
        self.tool_calls: list[PartialToolCall] = []
        self.by_index: dict[int, PartialToolCall] = {}
        self.has_choice = False
        """True if any chunk had a choice."""
        self.has_finish_reason = False
        """True if a chunk said why the answer ends."""
        self.has_other_content = False
        """True if there was content that is passed on, but not kept (a refusal, audio)."""

    @property
    def is_empty(self) -> bool:
        """True if the LLM said nothing and called no tool."""
        return not (self.size or self.tool_calls or self.has_other_content)

    def add_chunk(self, data: bytes) -> str:
        """Add a chunk or a whole completion; the text that it adds. Raises `LlmFailed`."""
        if len(data) > MAX_VALUES and has_too_many_values(data):
            raise LlmFailed("too_long")
        try:
            completion = DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise LlmFailed("invalid_answer") from None
        if completion.error is not None:
            # Of the error only an HTTP status is used: its texts may hold secrets.
            code = completion.error.get("code") if isinstance(completion.error, dict) else None
            if isinstance(code, str) and code.isdecimal() and len(code) == 3:
                code = int(code)
            raise LlmFailed(code if type(code) is int and 400 <= code <= 599 else "error")
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
        if added:
            self.text.append(added)
            self.add_size(added)
        return added

    def add_tool_call_part(self, part: ToolCallPart) -> None:
        """Add a fragment to its tool call. Without an index it continues the last one, unless its id is another."""
        if part.index is not None:
            tool_call = self.by_index.get(part.index)
        else:
            tool_call = next((known for known in self.tool_calls[-1:] if part.id in (None, "", known.id)), None)
        if tool_call is None:
            if len(self.tool_calls) == MAX_TOOL_CALLS:
                raise LlmFailed("too_long")
            tool_call = PartialToolCall(part.index)
            self.tool_calls.append(tool_call)
            if part.index is not None:
                self.by_index[part.index] = tool_call
        tool_call.id = tool_call.id or part.id or ""
        if part.function is not None:
            tool_call.name += part.function.name or ""
        if len(tool_call.id) + len(tool_call.name) > MAX_NAME_CHARACTERS:
            raise LlmFailed("too_long")
        if part.function is not None and part.function.arguments:
            tool_call.fragments.append(part.function.arguments)
            self.add_size(part.function.arguments)

    def add_size(self, added: str) -> None:
        self.size += len(added.encode(errors="replace"))
        if self.size > MAX_TEXT_BYTES:
            raise LlmFailed("too_long")
