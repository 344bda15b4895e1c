"""An LLM's answer in the form of OpenAI's chat completions: https://platform.openai.com/docs/api-reference/chat.

Additions of servers to the format are passed through unread.
"""

import json
import re
from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from voicemem.errors import LlmFailed
from voicemem.protocol.codec import has_too_many_values, whole_characters
from voicemem.protocol.types import MAX_TEXT_BYTES, MAX_VALUES, JsonObject

MAX_TOOL_CALLS = 128
"""The most calls in one answer: as many as OpenAI's requests may have tools."""
MAX_ID_CHARACTERS = 128
"""The longest name or id in an event."""
MAX_NAME_CHARACTERS = 1_024
"""The longest name and id of a tool call together."""


def content_text(content: Any) -> str:
    """Return the text of a message's content: the content itself, or its parts of type `text`, one per line."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


class FunctionPart(Struct, frozen=True):
    name: str | None = None
    arguments: Any = None
    """Text; some servers send the object itself."""


class ToolCallPart(Struct, frozen=True):
    """A tool call, or a fragment of one; the fragments of one call have the same index."""

    index: int | float | str | None = None
    id: str | int | None = None
    function: FunctionPart | None = None


class ChoiceMessage(Struct, frozen=True):
    """The message of a choice, or a chunk's addition to it."""

    role: Any = None
    content: Any = None
    tool_calls: list[JsonObject] | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None


MESSAGE_FIELDS = frozenset(ChoiceMessage.__struct_fields__)
CALL_FIELDS = frozenset(("type", *ToolCallPart.__struct_fields__))
FUNCTION_FIELDS = frozenset(FunctionPart.__struct_fields__)
MAX_EXTRA_BYTES = 64 * 1024
"""The most bytes of a message's further fields, which are kept only with its tool calls."""
TEXTS_OF_BLOCKS = ("text", "thinking", "summary", "content")
"""Fields of a block of thinking that are streamed in fragments."""


class CompletionChoice(Struct, frozen=True):
    index: int | float | None = None
    delta: JsonObject | None = None
    message: JsonObject | None = None
    finish_reason: str | None = None


class Completion(Struct, frozen=True):
    """A chat completion, or one chunk of it."""

    id: str | int | None = None
    choices: list[CompletionChoice] | None = None
    error: Any = None
    object: Any = None
    created: Any = None
    model: Any = None
    usage: Any = None


DECODER = msgspec.json.Decoder(Completion)
RAW_OBJECT, RAW_CHOICES = msgspec.json.Decoder(dict[str, Raw]), msgspec.json.Decoder(list[dict[str, Raw]])
CHUNK, WHOLE = "chat.completion.chunk", "chat.completion"
NULL = b"null"


TEXT_DEPTH = 4
"""The depth of a choice's text in a chunk: in the message of one of its choices."""
SURROGATE = re.compile("[\ud800-\udfff]")


def decode_completion(data: bytes) -> Completion:
    """Read a completion or a chunk. Raises `LlmFailed` (`invalid_answer`)."""
    try:
        return DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # only Python's own reader takes half a character or a number beyond all floats
        return msgspec.convert(mended(json.loads(data.decode(), parse_constant=no_constant)), Completion)
    except (ValueError, RecursionError):
        raise LlmFailed("invalid_answer") from None


def mended(value: Any, name: str = "", depth: int = 0) -> Any:
    """Return a value without halves of characters, except in a choice's text, which the next chunk may complete."""
    if isinstance(value, dict):
        return {whole_characters(key): mended(one, key, depth + 1) for key, one in value.items()}
    if isinstance(value, list):
        return [mended(one, name, depth + 1) for one in value]
    return whole_characters(value) if isinstance(value, str) and (name, depth) != ("content", TEXT_DEPTH) else value


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def raw_object(data: bytes | Raw) -> dict[str, Raw]:
    """Return the fields of an object, each unread."""
    try:
        return RAW_OBJECT.decode(data)
    except msgspec.DecodeError:  # half a character
        return {name: raw(value) for name, value in read_raw(data).items()}


def raw_choices(data: bytes | Raw) -> list[dict[str, Raw]]:
    """Return the choices of a chunk, with their fields unread."""
    try:
        return RAW_CHOICES.decode(data)
    except msgspec.DecodeError:
        return [{name: raw(value) for name, value in choice.items()} for choice in read_raw(data) or ()]


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def read_raw(value: Raw | bytes) -> Any:
    return json.loads(bytes(value))


def is_null(fields: dict[str, Raw], name: str) -> bool:
    return bytes(fields.get(name, NULL)) == NULL


def read_message(fields: JsonObject) -> ChoiceMessage:
    """Read the fields that are used. Raises `LlmFailed` (`invalid_answer`)."""
    try:
        return msgspec.convert(fields, ChoiceMessage)
    except msgspec.ValidationError:
        raise LlmFailed("invalid_answer") from None


def join_halves(text: str) -> tuple[str, str]:
    """Join the surrogates of a text to characters. Return it and the half at its end; lone halves become U+FFFD."""
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    return whole_characters(text[: len(text) - len(half)]), half


def further_fields(fields: JsonObject, known: Container[str]) -> JsonObject:
    """Return the fields that are not empty, apart from the known ones."""
    return {name: value for name, value in fields.items() if name not in known and value not in (None, "", [], {})}


def further_call_fields(call: JsonObject) -> JsonObject:
    """Return the fields of a tool call and its function beyond OpenAI's, such as the signature of a thought."""
    function = call.get("function")
    extra = further_fields(function, FUNCTION_FIELDS) if isinstance(function, dict) else {}
    return further_fields(call, CALL_FIELDS) | ({"function": extra} if extra else {})


def join_blocks(blocks: Sequence[Any], added: Sequence[Any]) -> list[Any]:
    """Append a chunk's blocks of thinking to others; a fragment of the last block is joined to it."""
    joined = list(blocks)
    for block in added:
        last = joined[-1] if joined else None
        if isinstance(block, dict) and isinstance(last, dict) and continues_block(last, block):
            said = {name: last[name] + block[name] for name in TEXTS_OF_BLOCKS if both_text(last, block, name)}
            joined[-1] = last | further_fields(block, ()) | said
        else:
            joined.append(block)
    return joined


def continues_block(last: JsonObject, block: JsonObject) -> bool:
    """Return whether two fragments are of one block: of one type and index, if any; a signature ends a block."""
    is_same = all(last.get(name) == block.get(name, last.get(name)) for name in ("type", "index"))
    has_texts = any(name in block or name in last for name in TEXTS_OF_BLOCKS)
    return is_same and has_texts and not ("index" not in block and last.get("signature"))


def both_text(one: JsonObject, other: JsonObject, name: str) -> bool:
    return isinstance(one.get(name), str) and isinstance(other.get(name), str)


class PartialToolCall:
    """A tool call, as far as it has arrived."""

    def __init__(self, place: int, id: str) -> None:
        self.place = place
        """Its place among the calls of the answer."""
        self.id = id
        self.llm_id = ""
        """The LLM's own id for it, which several calls may share."""
        self.name = ""
        self.fragments: list[str] = []
        """Parts of the arguments, in order."""
        self.extra: JsonObject = {}
        """Further fields (`further_call_fields`)."""

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)

    @property
    def is_whole(self) -> bool:
        """True if the arguments are complete. They are parsed only if they may be."""
        end = self.fragments[-1].rstrip() if self.fragments else ""
        if end and not end.endswith("}"):
            return False
        try:
            return isinstance(msgspec.json.decode(self.arguments), dict)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return False


class LlmAnswer:
    """The answer of an LLM so far: the text and the tool calls of the first choice."""

    def __init__(
        self,
        new_id: Callable[[], str] = str,
        known_ids: Container[str] = (),
        *,
        is_stream: bool = True,
        has_role: bool = False,
    ) -> None:
        """`new_id` makes the ids of tool calls that come without one, or with one of `known_ids`.

        `has_role`: the client already has the role of the message.
        """
        self.is_stream = is_stream
        self.new_id = new_id
        self.known_ids = known_ids
        self.id: str | None = None
        """From the first chunk that has one."""
        self.text: list[str] = []
        self.size = 0
        self.tool_calls: list[PartialToolCall] = []
        self.by_index: dict[float | str, PartialToolCall] = {}
        """The newest call of each index."""
        self.fragments: list[JsonObject] = []
        """The fragments of tool calls in the newest chunk, well-formed."""
        self.is_malformed = False
        """True if the newest chunk has others, lacks fields of OpenAI's, or splits a character."""
        self.has_role = has_role
        self.role: str | None = None
        """The role for the newest chunk: OpenAI's clients concatenate those of all chunks."""
        self.numbered: JsonObject = {}
        """Lists in further fields of the newest chunk, with indexes by which clients join their blocks."""
        self.newest_text = ""
        self.has_newest_choice = False
        self.only_finishes = False
        """True if the newest chunk has a finish reason and nothing else."""
        self.extra: JsonObject = {}
        """Further fields of the message, such as `reasoning_content`; texts are joined."""
        self.extra_size = 0
        self.half = ""
        """The first half of a character (a surrogate) that a chunk ended with."""
        self.has_choice = False
        self.finish_reason: str | None = None
        self.model: Any = None
        self.usage: JsonObject = {}
        """The newest usage; servers that send it in each chunk count all tokens so far."""
        self.has_other_content = False
        """True if there was content that is passed on but not kept (a refusal, audio)."""

    @property
    def is_empty(self) -> bool:
        return not (self.size or self.tool_calls or self.has_other_content)

    def add_chunk(self, data: bytes) -> str:
        """Add a chunk or a whole completion. Return the text that it adds. Raises `LlmFailed`."""
        if len(data) > MAX_VALUES and has_too_many_values(data):
            raise LlmFailed("too_long")
        completion = decode_completion(data)
        if completion.error is not None:
            # Only an HTTP status of the error is used, since its texts may hold secrets.
            code = completion.error.get("code") if isinstance(completion.error, dict) else None
            if isinstance(code, str) and code.isdecimal() and len(code) == 3:
                code = int(code)
            raise LlmFailed(code if type(code) is int and 400 <= code <= 599 else "error")
        self.id = self.id or (None if completion.id is None else str(completion.id))
        self.model = self.model or completion.model
        self.usage = completion.usage if isinstance(completion.usage, dict) else self.usage
        choices = completion.choices or []
        self.fragments, self.numbered, self.only_finishes = [], {}, False
        self.is_malformed = completion.choices is None or not all(type(one.index) is int for one in choices)
        if completion.object in (None, CHUNK if self.is_stream else WHOLE):  # not other objects
            head = completion.object, completion.created, completion.model
            self.is_malformed = self.is_malformed or None in head or not isinstance(completion.id, str)
        self.has_newest_choice = bool(choices)
        first = (one for place, one in enumerate(choices) if not (place if one.index is None else one.index))
        added = "".join(map(self.add_choice, first))
        if self.half or SURROGATE.search(added):
            added, self.half = join_halves(self.half + added)
            self.is_malformed = True
        self.newest_text = added
        if added:
            self.text.append(added)
            self.add_size(added)
        return added

    def add_choice(self, choice: CompletionChoice) -> str:
        """Add the first choice of a chunk. Return the text that it adds. Raises `LlmFailed`."""
        self.has_choice = True
        self.finish_reason = self.finish_reason or choice.finish_reason or None
        ours, other = (choice.delta, choice.message) if self.is_stream else (choice.message, choice.delta)
        fields = ours if ours is not None else other or {}
        message = read_message(fields)
        text = content_text(message.content)
        has_more = self.add_extra(fields)
        if message.refusal or message.audio or message.function_call:
            self.has_other_content = True
        for part in message.tool_calls or ():
            self.add_tool_call_part(part)
        self.role = None if self.has_role else "assistant"
        self.has_role = self.is_stream
        has_odd_end = choice.finish_reason == "" or (not self.is_stream and choice.finish_reason is None)
        is_odd = ours is None or isinstance(message.content, list) or message.role != self.role
        self.is_malformed = self.is_malformed or has_odd_end or is_odd
        self.only_finishes = bool(choice.finish_reason) and not (
            text or message.tool_calls or message.refusal or has_more
        )
        return text

    def add_tool_call_part(self, fields: JsonObject) -> None:
        """Add a fragment to its tool call. Raises `LlmFailed`."""
        try:
            part = msgspec.convert(fields, ToolCallPart)
        except msgspec.ValidationError:
            raise LlmFailed("invalid_answer") from None
        id = "" if part.id is None else str(part.id)
        function = part.function or FunctionPart()
        name, arguments = function.name or "", function.arguments or ""
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        tool_call = self.find_call(part.index, id, name, text)
        is_first = tool_call is None
        if tool_call is None:
            tool_call = self.begin_call(part.index, id)
        tool_call.llm_id = tool_call.llm_id or id
        if name == tool_call.name:  # some servers repeat it in each fragment
            text = "" if id and name and tool_call.is_whole else text  # or the whole call at the end
            name = ""
        tool_call.name += name
        if len(tool_call.id) + len(tool_call.name) > MAX_NAME_CHARACTERS:
            raise LlmFailed("too_long")
        extra = further_call_fields(fields)
        if extra:
            tool_call.extra |= extra
            self.add_extra_size(extra)
        if text:
            tool_call.fragments.append(text)
            self.add_size(text)
        self.note_part(part, tool_call, {"arguments": text} | ({"name": name} if name else {}), extra, is_first)

    def find_call(self, index: float | str | None, id: str, name: str, arguments: str) -> PartialToolCall | None:
        """Return the call that a fragment continues, by its index, its id, or the last one; None if it begins one.

        A new id begins a call, and so does a name after complete arguments, or next to another call in a chunk.
        """
        last = self.tool_calls[-1] if self.tool_calls else None
        if index is not None:
            call = self.by_index.get(index)
        elif id:
            call = next((one for one in reversed(self.tool_calls) if one.llm_id == id), last)
        else:
            call = None if name and self.fragments else last
        if call is None or (id and call.llm_id and id != call.llm_id):
            return None
        is_other = name != call.name or (arguments and not id)
        return None if name and call.name and is_other and call.is_whole else call

    def begin_call(self, index: float | str | None, id: str) -> PartialToolCall:
        """Begin a call with an id that is unique in the session. Raises `LlmFailed` for too many."""
        if len(self.tool_calls) == MAX_TOOL_CALLS:
            raise LlmFailed("too_long")
        is_taken = id in self.known_ids or any(call.id == id for call in self.tool_calls)
        is_usable = 0 < len(id) <= MAX_ID_CHARACTERS and not is_taken
        call = PartialToolCall(len(self.tool_calls), id if is_usable else self.new_id())
        self.tool_calls.append(call)
        if index is not None:
            self.by_index[index] = call
        return call

    def note_part(
        self, part: ToolCallPart, tool_call: PartialToolCall, function: JsonObject, extra: JsonObject, is_first: bool
    ) -> None:
        """Note a fragment as OpenAI's clients join it: by its call's index, with id and name once."""
        sent = part.function or FunctionPart()
        function = extra.get("function", {}) | function
        fragment = {**extra, "index": tool_call.place, "function": function}
        if is_first:
            fragment |= {"id": tool_call.id, "type": "function"}
        self.fragments.append(fragment)
        is_odd = part.index != tool_call.place or (part.id != tool_call.id if is_first else bool(part.id))
        is_odd = (
            is_odd or (sent.name or None) != function.get("name") or (sent.arguments or "") != function["arguments"]
        )
        self.is_malformed = self.is_malformed or is_odd

    def add_extra(self, fields: JsonObject) -> bool:
        """Keep the fields of a message that an LLM may want back with its tool calls. Return whether there are any."""
        if fields.keys() <= MESSAGE_FIELDS or self.extra_size > MAX_EXTRA_BYTES:
            return not fields.keys() <= MESSAGE_FIELDS
        further = further_fields(fields, MESSAGE_FIELDS)
        for name, value in further.items():
            before = self.extra.get(name)
            if isinstance(value, list):
                self.add_blocks(name, before if isinstance(before, list) else [], value)
            else:
                self.extra[name] = before + value if both_text(self.extra, {name: value}, name) else value
            self.add_extra_size(value)
        return bool(further)

    def add_blocks(self, name: str, before: Sequence[Any], added: Sequence[Any]) -> None:
        """Append a further field's list to its earlier blocks, numbered so that clients join them likewise."""
        joined, numbered = list(before), []
        for block in added:
            joined = join_blocks(joined, [block])
            numbered.append(block | {"index": len(joined) - 1} if isinstance(block, dict) else block)
        self.extra[name] = joined
        if any(isinstance(block, dict) and type(block.get("index")) is not int for block in added):
            self.numbered[name] = numbered
            self.is_malformed = self.is_malformed or self.is_stream

    def add_extra_size(self, value: Any) -> None:
        self.extra_size += len(msgspec.json.encode(value))

    def wanted_back(self, tool_call: PartialToolCall) -> JsonObject:
        """Return the fields that came with a tool call and its message, for later requests with it."""
        if self.extra_size > MAX_EXTRA_BYTES:
            return {}
        return {name: value for name, value in (("message", self.extra), ("call", tool_call.extra)) if value}

    def well_formed(self, data: bytes, head: Callable[[], JsonObject] = dict) -> bytes:
        """Return the newest chunk as OpenAI's clients can read it; `head` returns fields that it may lack.

        All other fields stay unchanged.
        """
        if not self.is_malformed:
            return data
        chunk = raw_object(data)
        chunk |= {name: raw(value) for name, value in head().items() if is_null(chunk, name)}
        if not is_null(chunk, "id") and not bytes(chunk["id"]).startswith(b'"'):
            chunk["id"] = raw(bytes(chunk["id"]).decode())
        choices = raw_choices(chunk["choices"]) if "choices" in chunk else []
        return msgspec.json.encode(chunk | {"choices": [*map(self.well_formed_choice, range(len(choices)), choices)]})

    def well_formed_choice(self, place: int, choice: dict[str, Raw]) -> dict[str, Any]:
        name, other = ("delta", "message") if self.is_stream else ("message", "delta")
        part = choice.pop(name, None) if not is_null(choice, name) else choice.pop(other, None)
        message: dict[str, Any] = {} if part is None or bytes(part) == NULL else {**raw_object(part)}
        index = place if is_null(choice, "index") else int(read_raw(choice["index"]))
        content = read_raw(message.get("content", NULL))
        if index == 0:
            message |= self.numbered
            if self.fragments:
                message["tool_calls"] = self.fragments
            if content:
                message["content"], self.newest_text = self.newest_text, ""
            message = {name: value for name, value in message.items() if name != "role"}
            message |= {} if self.role is None else {"role": self.role}
        elif isinstance(content, list):
            message["content"] = content_text(content)
        reason = read_raw(choice.get("finish_reason", NULL)) or None
        if not self.is_stream:
            message["role"] = "assistant"
            reason = reason or ("tool_calls" if index == 0 and self.tool_calls else "stop")
        return {**choice, "index": index, name: message, "finish_reason": reason}

    def add_size(self, added: str) -> None:
        self.size += len(added.encode(errors="replace"))
        if self.size > MAX_TEXT_BYTES:
            raise LlmFailed("too_long")
