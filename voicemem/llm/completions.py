"""An LLM's answer as OpenAI's chat completions have it: https://platform.openai.com/docs/api-reference/chat.

What servers add to the format is passed through unread.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from voicemem.errors import LlmFailed
from voicemem.protocol.codec import has_too_many_values
from voicemem.protocol.types import MAX_TEXT_BYTES, MAX_VALUES, JsonObject

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
    arguments: Any = None
    """Text, or of some servers the object itself."""


class ToolCallPart(Struct, frozen=True):
    """A tool call, or a fragment of one; the fragments of one call have the same index."""

    index: int | None = None
    id: str | int | None = None
    function: FunctionPart | None = None
    extra_content: Any = None
    """The thought signature of Gemini's, which must come back with the call."""


class ChoiceMessage(Struct, frozen=True):
    """The message of a choice, or what a chunk adds to it."""

    content: Any = None
    tool_calls: list[ToolCallPart] | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None


MESSAGE_FIELDS = frozenset(("role", *ChoiceMessage.__struct_fields__))
MAX_EXTRA_BYTES = 64 * 1024
"""Of the further fields of a message, which are kept only with its tool calls."""


class CompletionChoice(Struct, frozen=True):
    index: int | None = None
    delta: JsonObject | None = None
    message: JsonObject | None = None
    finish_reason: str | None = None


class Completion(Struct, frozen=True):
    """A chat completion, or one chunk of it."""

    id: str | int | None = None
    choices: list[CompletionChoice] | None = None
    error: Any = None
    model: Any = None
    usage: Any = None


DECODER = msgspec.json.Decoder(Completion)


def decode_completion(data: bytes) -> Completion:
    """Read a completion or a chunk. Raises `LlmFailed` (`invalid_answer`)."""
    try:
        return DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # a chunk may hold half a character or a number beyond all floats, which only Python's own reader takes
        return msgspec.convert(json.loads(data.decode(), parse_constant=no_constant), Completion)
    except (ValueError, RecursionError):
        raise LlmFailed("invalid_answer") from None


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_message(fields: JsonObject) -> ChoiceMessage:
    """Read the fields that are used. Raises `LlmFailed` (`invalid_answer`)."""
    try:
        return msgspec.convert(fields, ChoiceMessage)
    except msgspec.ValidationError:
        raise LlmFailed("invalid_answer") from None


def join_halves(text: str) -> tuple[str, str]:
    """A text with its surrogates joined to characters, and the half that it ends with; lone halves become U+FFFD."""
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    whole = text[: len(text) - len(half)].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole, half


class PartialToolCall:
    """A tool call, as far as it has arrived."""

    def __init__(self, place: int) -> None:
        self.place = place
        """Among the calls of the answer."""
        self.id = ""
        self.name = ""
        self.fragments: list[str] = []
        """Of the arguments."""
        self.extra_content: Any = None

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


class LlmAnswer:
    """The answer of an LLM so far: the text and the tool calls of the first choice."""

    def __init__(self, new_id: Callable[[], str] = str) -> None:
        """`new_id` makes the ids of tool calls that come without one."""
        self.new_id = new_id
        self.id: str | None = None
        """From the first chunk that has one."""
        self.text: list[str] = []
        self.size = 0
        self.tool_calls: list[PartialToolCall] = []
        self.by_index: dict[int, PartialToolCall] = {}
        """The newest of each index."""
        self.fragments: list[JsonObject] = []
        """The fragments of tool calls in the newest chunk, as a well-formed one has them."""
        self.is_malformed = False
        """True if the newest chunk has them otherwise."""
        self.has_newest_choice = False
        self.only_finishes = False
        """True if the newest chunk says why the answer ends, and nothing else."""
        self.extra: JsonObject = {}
        """Further fields of the message, such as `reasoning_content`; texts are joined."""
        self.extra_size = 0
        self.half = ""
        """The first half of a character (a surrogate) that a chunk ended with."""
        self.has_choice = False
        """True if any chunk had a choice."""
        self.finish_reason: str | None = None
        """Why the answer ends, if a chunk said so."""
        self.model: Any = None
        self.usage: JsonObject = {}
        """The newest; servers that count in each chunk count all so far."""
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
        completion = decode_completion(data)
        if completion.error is not None:
            # Of the error only an HTTP status is used: its texts may hold secrets.
            code = completion.error.get("code") if isinstance(completion.error, dict) else None
            if isinstance(code, str) and code.isdecimal() and len(code) == 3:
                code = int(code)
            raise LlmFailed(code if type(code) is int and 400 <= code <= 599 else "error")
        self.id = self.id or (None if completion.id is None else str(completion.id))
        self.model = self.model or completion.model
        self.usage = completion.usage if isinstance(completion.usage, dict) else self.usage
        self.fragments, self.is_malformed, self.only_finishes = [], False, False
        self.has_newest_choice = bool(completion.choices)
        added = "".join(self.add_choice(choice) for choice in completion.choices or () if not choice.index)
        if self.half or added[-1:] >= "\ud800":
            added, self.half = join_halves(self.half + added)
        if added:
            self.text.append(added)
            self.add_size(added)
        return added

    def add_choice(self, choice: CompletionChoice) -> str:
        """Add the first choice of a chunk; the text that it adds. Raises `LlmFailed`."""
        self.has_choice = True
        self.finish_reason = self.finish_reason or choice.finish_reason
        fields = choice.message or choice.delta or {}
        message = read_message(fields)
        text = content_text(message.content)
        self.add_extra(fields)
        if message.refusal or message.audio or message.function_call:
            self.has_other_content = True
        for part in message.tool_calls or ():
            self.add_tool_call_part(part)
        is_empty = not (text or message.tool_calls or message.refusal)
        self.only_finishes = choice.finish_reason is not None and is_empty
        return text

    def add_tool_call_part(self, part: ToolCallPart) -> None:
        """Add a fragment to its tool call. Without an index it continues the last one, unless its id is another."""
        id = "" if part.id is None else str(part.id)
        tool_call = self.tool_calls[-1] if self.tool_calls else None
        if part.index is not None:
            tool_call = self.by_index.get(part.index)
        if tool_call is None or (id and tool_call.id and id != tool_call.id):
            if len(self.tool_calls) == MAX_TOOL_CALLS:
                raise LlmFailed("too_long")
            tool_call = PartialToolCall(len(self.tool_calls))
            self.tool_calls.append(tool_call)
            if part.index is not None:
                self.by_index[part.index] = tool_call
        is_first = not (tool_call.id or tool_call.name or tool_call.fragments)
        tool_call.id = tool_call.id or id or (self.new_id() if is_first else "")
        name = "" if part.function is None else part.function.name or ""
        if name == tool_call.name:  # some servers repeat it in each fragment
            name = ""
        tool_call.name += name
        if len(tool_call.id) + len(tool_call.name) > MAX_NAME_CHARACTERS:
            raise LlmFailed("too_long")
        if part.extra_content is not None:
            tool_call.extra_content = part.extra_content
            self.count_extra(part.extra_content)
        arguments = None if part.function is None else part.function.arguments
        if arguments:
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            tool_call.fragments.append(text)
            self.add_size(text)
        self.note_part(part, tool_call, name, is_first)

    def note_part(self, part: ToolCallPart, tool_call: PartialToolCall, name: str, is_first: bool) -> None:
        """Note a fragment as OpenAI's clients join it: by an index of its call's own, with id and name once."""
        arguments = part.function.arguments if part.function is not None else None
        text = tool_call.fragments[-1] if arguments else ""
        function = {"arguments": text} | ({"name": name} if name else {})
        fragment: JsonObject = {"index": tool_call.place, "function": function}
        if is_first:
            fragment |= {"id": tool_call.id, "type": "function"}
        if part.extra_content is not None:
            fragment["extra_content"] = part.extra_content
        self.fragments.append(fragment)
        odd_id = part.id != tool_call.id if is_first else bool(part.id)
        odd_name = bool(part.function and part.function.name) != bool(name)
        odd_arguments = bool(arguments) and not isinstance(arguments, str)
        odd_index = part.index != tool_call.place
        self.is_malformed = self.is_malformed or odd_index or odd_id or odd_name or odd_arguments

    def add_extra(self, fields: JsonObject) -> None:
        """Keep the fields of a message that an LLM may want back with its tool calls."""
        if fields.keys() <= MESSAGE_FIELDS or self.extra_size > MAX_EXTRA_BYTES:
            return
        for name, value in fields.items():
            if name in MESSAGE_FIELDS or value is None:
                continue
            before = self.extra.get(name)
            joins = isinstance(value, str | list) and type(before) is type(value)
            self.extra[name] = before + value if joins else value
            self.count_extra(value)

    def count_extra(self, value: Any) -> None:
        self.extra_size += len(msgspec.json.encode(value))

    def wanted_back(self, tool_call: PartialToolCall) -> JsonObject:
        """The fields that came with a tool call and its message, for the requests that show it again."""
        if self.extra_size > MAX_EXTRA_BYTES:
            return {}
        call = {} if tool_call.extra_content is None else {"extra_content": tool_call.extra_content}
        return {name: value for name, value in (("message", self.extra), ("call", call)) if value}

    def well_formed(self, data: bytes) -> bytes:
        """The newest chunk, as OpenAI's clients can read it."""
        if not self.is_malformed:
            return data
        payload: Any = json.loads(data)
        for choice in payload["choices"]:
            message = choice.get("delta") or choice.get("message") or {}
            if not choice.get("index") and message.get("tool_calls"):
                message["tool_calls"] = self.fragments
        return json.dumps(payload).encode()

    def add_size(self, added: str) -> None:
        self.size += len(added.encode(errors="replace"))
        if self.size > MAX_TEXT_BYTES:
            raise LlmFailed("too_long")
