"""The body of an LLM request, made from the messages that a policy chose (docs/context.md). Pure.

Messages are enriched, interleaved with tool calls, grouped into runs of one role, and then put into the form of an
API: OpenAI's, Anthropic's or Gemini's. The vendor decides which fields go with role and text.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, groupby
from math import inf
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from voicemem.errors import Refused
from voicemem.protocol.quoting import on_one_line, quoted
from voicemem.transcript.messages import Message, Role, ToolUse

CUSTOM = "custom"
"""The vendor whose LLM gets every field of every message, and the position of the call (Agora's custom LLM).

All others get only role and text, since many vendors refuse unknown fields. Only messages of the memory have these
fields: additions of a style (tool calls, "(silence)") have none, and a joined message has those of its newest.
"""
CUSTOM_FIELDS = frozenset({"turn_id", "timestamp", "interruptable"})
"""Top-level names that params may not set for `custom`, even if the body does not have them."""
ANTHROPIC_MAX_TOKENS = 1024
"""The limit of a reply, if params do not say: the API requires one, and a spoken reply is short."""
GEMINI_REQUEST_FIELDS = ("systemInstruction", "tools", "toolConfig", "safetySettings", "cachedContent")
"""Params with these names are fields of the request itself; all others belong to its `generationConfig`."""
GEMINI_ROLES = {"user": "user", "assistant": "model"}
INSTRUCTION_ROLES = ("system", "developer")
SYSTEM_SEPARATOR = "\n\n"
MAX_DEPTH = 32
"""How deep JSON inside a text may be nested, since the limit for events does not apply inside strings."""


class RequestFormat(Struct, frozen=True, kw_only=True):
    """The settings that shape a request: from the session's configuration and from the query."""

    vendor: str | None = None
    model: str | None = None
    style: Literal["openai", "anthropic", "gemini"] = "openai"
    params: dict[str, Any] = {}
    """`llm.params`, which are added to the body, and never replace fields that are made here."""
    system_messages: tuple[dict[str, Any], ...] = ()
    """OpenAI message objects, `{"role":"system","content":…}`; not counted by any policy."""
    system: Literal["one", "separate"] = "one"
    """`one` makes them one message, since many models take no more. For `custom` they stay separate."""
    interruptable: bool = True
    enrich: tuple[str, ...] = ()
    """Names in `ENRICHERS`, applied in this order."""
    alternate: bool = False
    """True if user and assistant must alternate in the OpenAI style too; in the other styles they always do."""
    tools: bool = False
    """Shows answered tool calls. Their definitions come from the reader, in `params`."""
    fields: bool = False
    """True if each message has all its fields, whatever the vendor."""


def request_body(
    messages: Sequence[Message], tools: Sequence[ToolUse], format: RequestFormat, lazily: bool = False
) -> dict[str, Any]:
    """Return the body of the next LLM request, ready for JSON; `messages` are in the order of the memory.

    The body shares dicts with the messages and the format, so it must not be changed. With `lazily`, the conversation
    is an iterator that makes its parts on demand.
    """
    style, is_custom = STYLES[format.style], format.vendor == CUSTOM
    if shows_contents(format, tools):
        said = [{"role": one.role, "content": one.content} for one in messages if one.content.strip()]
        return with_fields({"messages": [*shown_instructions(format), *said]}, format)
    memory = enriched(messages, format.enrich)
    parts = interleave(memory, tools if format.tools else ())
    fields = custom_fields if is_custom or format.fields else None
    shown = runs(parts, fields, keeps_blank=is_custom and style.takes_blank)
    if joins_texts(format):
        shown = alternate_roles(shown)
    if format.alternate and not style.alternates:
        shown = with_readable_arguments(words_before_calls(shown))
    body = style.conversation(shown, shown_instructions(format))
    if not lazily:
        body = {name: [*value] if isinstance(value, Iterator) else value for name, value in body.items()}
    if is_custom:
        newest = {"turn_id": memory[-1].turn_id, "timestamp": memory[-1].timestamp} if memory else {}
        body |= newest | {"interruptable": format.interruptable}
    return with_fields(body, format)


def joins_texts(format: RequestFormat) -> bool:
    """Return whether the neighbouring messages of one role become one."""
    return format.alternate or STYLES[format.style].alternates


def makes_texts(format: RequestFormat) -> bool:
    """Return whether the body has texts that the messages do not hold: enriched or joined ones."""
    return bool(format.enrich) or joins_texts(format)


def shows_contents(format: RequestFormat, tools: Sequence[ToolUse]) -> bool:
    """True if the body has each message that is not blank as it is, with its role and content alone."""
    changed = format.enrich or format.alternate or format.fields or (format.tools and tools)
    return format.style == "openai" and format.vendor != CUSTOM and not changed


def shown_instructions(format: RequestFormat) -> Sequence[dict[str, Any]]:
    is_one = format.system == "one" and format.vendor != CUSTOM
    return join_instructions(format.system_messages) if is_one else format.system_messages


def with_fields(body: dict[str, Any], format: RequestFormat) -> dict[str, Any]:
    """The body with the model and the other parameters of its request."""
    style, is_custom = STYLES[format.style], format.vendor == CUSTOM
    model = format.model or format.params.get("model")
    if model:
        body["model"] = model
    own = {*body, "model", *(CUSTOM_FIELDS if is_custom else ())}
    return body | {name: value for name, value in style.params(format.params).items() if name not in own}


def custom_fields(message: Message) -> dict[str, Any]:
    """All fields of a message besides role and content, in the order of the JSON output."""
    return {"turn_id": message.turn_id, "timestamp": message.timestamp, "metadata": message.metadata}


# Enrichers add to the messages, if a reader asks for it: when and by whom they were said, and what was never heard.
# They write into user messages only, since models imitate marks that they find in their own lines. They return new
# messages and leave the memory unchanged.


Enricher = Callable[[Sequence[Message]], Sequence[Message]]


def timestamps(messages: Sequence[Message]) -> list[Message]:
    """Put `[2026-05-10T05:20:00.000Z] ` before the user's texts; the number itself if it is beyond all dates."""

    def iso_time(timestamp: int) -> str:
        try:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp)
        except OverflowError:
            return str(timestamp)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return [prefixed(message, f"[{iso_time(message.timestamp)}] ") for message in messages]


def users(messages: Sequence[Message]) -> list[Message]:
    """Put `NAME: ` before the user's texts, if the speaker is known."""
    names = (message.metadata.get("user") for message in messages)
    prefixes = (f"{on_one_line(name)}: " if isinstance(name, str) and name.strip() else "" for name in names)
    return list(map(prefixed, messages, prefixes))


def originals(messages: Sequence[Message]) -> list[Message]:
    """Put the unheard text of interrupted replies before the user's next text, each on its own line."""
    enriched: list[Message] = []
    notes = ""
    for message in messages:
        if message.role == "assistant":
            notes += unheard_note(message)
            enriched.append(message)
        else:
            enriched.append(prefixed(message, notes))
            notes = ""
    return enriched


ENRICHERS: dict[str, Enricher] = {"timestamps": timestamps, "users": users, "originals": originals}


def enriched(messages: Sequence[Message], names: Sequence[str]) -> Sequence[Message]:
    """Apply the named enrichers in this order. Raises `Refused` (`invalid_query`) for an unknown name."""
    if not ENRICHERS.keys() >= set(names):
        raise Refused("invalid_query", f"Each name in enrich must be one of {', '.join(ENRICHERS)}.")
    for name in names:
        messages = ENRICHERS[name](messages)
    return messages


def prefixed(message: Message, prefix: str) -> Message:
    if message.role != "user" or not prefix:
        return message
    return replace(message, content=prefix + message.content)


def unheard_note(message: Message) -> str:
    """Return a line with the unheard part of a reply; empty if all of it was heard."""
    original = message.metadata.get("original")
    if not message.metadata.get("interrupted") or not isinstance(original, str):
        return ""
    # The engine states the heard text, which may not be a prefix; then it is unknown where it was cut.
    begun = original.startswith(message.content)
    unheard = original[len(message.content) :] if begun else original
    if not unheard.strip():
        return ""
    return f"(The assistant was cut off. The user did not hear{'' if begun else ' all of'}: {quoted(unheard)})\n"


# Runs of one role, with tool calls between the messages


Part = Message | ToolUse

CALL_STARTED = "(call started)"
SILENCE = "(silence)"


class RoleRun(Struct, frozen=True, gc=False):
    """Consecutive parts of one role: results of tools, then speech, then tool calls.

    Results directly follow their calls, and the two have different roles, so this is their only order. Several calls
    are those of one message of the LLM.
    """

    role: Role
    text: str | None = None
    fields: dict[str, Any] = {}
    """The vendor's fields besides role and text; empty if the run has no message of the memory."""
    results: tuple[ToolUse, ...] = ()
    calls: tuple[ToolUse, ...] = ()


def interleave(memory: Sequence[Message], tools: Sequence[ToolUse]) -> Sequence[Part]:
    """Return the messages, with each answered tool use in its turn, before the turn's first reply that began later."""
    if not tools:
        return memory
    waiting = deque(sorted((use for use in tools if use.answered), key=lambda use: (use.turn_id, use.timestamp)))
    parts: list[Part] = []
    for message in memory:
        while waiting and comes_before(waiting[0], message):
            parts.append(waiting.popleft())
        parts.append(message)
    return [*parts, *waiting]


def comes_before(use: ToolUse, message: Message) -> bool:
    begins = message.timestamp if message.role == "assistant" else -inf
    return (use.turn_id, use.timestamp) < (message.turn_id, begins)


def runs(
    parts: Sequence[Part], message_fields: Callable[[Message], dict[str, Any]] | None, *, keeps_blank: bool
) -> list[RoleRun]:
    """Return a run for each message, and two for the tool uses of one message of the LLM.

    Blank messages may be left out.
    """
    single: list[RoleRun] = []
    uses: list[ToolUse] = []

    def end_uses() -> None:
        for _, made in groupby(uses, key=tool_call_group):
            together = tuple(made)
            single.extend((RoleRun("assistant", calls=together), RoleRun("user", results=together)))
        uses.clear()

    append = single.append
    for part in parts:
        if not isinstance(part, Message):  # tests the commoner type, since an exact match costs a tenth
            uses.append(part)
            continue
        if uses:
            end_uses()
        text = part.content
        if keeps_blank or (text and not text.isspace()):
            append(RoleRun(part.role, text, message_fields(part)) if message_fields else RoleRun(part.role, text))
    end_uses()
    return single


def tool_call_group(use: ToolUse) -> Any:
    """Return a value that calls made at once share."""
    group = (use.wanted_back or {}).get("group")
    return id(use) if group is None else group


def alternate_roles(runs: Sequence[RoleRun]) -> list[RoleRun]:
    """Join neighbouring runs of one role, and let them begin and end with the user.

    No runs stay no runs: an empty conversation gets no filler.
    """
    joined: list[RoleRun] = []
    for role, neighbours in groupby(runs, key=attrgetter("role")):
        first, *rest = group = list(neighbours)
        if rest:  # one run, with the fields of the newest message among them
            text = "\n".join(run.text for run in group if run.text is not None)
            fields = next((run.fields for run in reversed(group) if run.fields), {})
            first = RoleRun(role, text, fields, first.results, rest[-1].calls)
        joined.append(first)
    if joined and joined[0].role == "assistant":
        joined.insert(0, RoleRun("user", CALL_STARTED))
    if joined and joined[-1].role == "assistant":
        joined.append(RoleRun("user", SILENCE))
    return joined


def words_before_calls(runs: Sequence[RoleRun]) -> list[RoleRun]:
    """Join the user's text after a tool's result to their text before its call, in alternating runs.

    After a result, strict models take only an answer of the assistant.
    """
    moved = list(runs)
    texts: dict[int, list[str]] = {}
    newest = 0
    for place, run in enumerate(runs):
        if run.role != "user" or run.text is None:
            continue
        if run.results:
            texts.setdefault(newest, []).append(run.text)
            moved[place] = replace(run, text=None, fields={})
        else:
            newest = place
    for place, more in texts.items():
        moved[place] = replace(moved[place], text="\n".join((moved[place].text or "", *more)))
    return moved


def with_readable_arguments(runs: Sequence[RoleRun]) -> list[RoleRun]:
    """Return the runs with an object as the arguments of each call, even if they are a text that was cut off.

    Servers of strict models read them to render a prompt.
    """

    def readable(use: ToolUse) -> ToolUse:
        return replace(use, arguments_json=msgspec.json.encode(arguments_object(use.arguments)))

    return [replace(run, calls=tuple(map(readable, run.calls))) if run.calls else run for run in runs]


# OpenAI's Chat Completions: https://platform.openai.com/docs/api-reference/chat/create


def openai_conversation(runs: Sequence[RoleRun], system_messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return `messages`: the system messages unchanged, then the conversation."""
    return {"messages": chain(system_messages, (message for run in runs for message in openai_messages(run)))}


def openai_messages(run: RoleRun) -> Iterator[dict[str, Any]]:
    for use in run.results:
        yield {"role": "tool", "tool_call_id": use.call_id, "content": json_text(use.result)}
    if run.calls:
        returned = fields_wanted_back(run.calls[0], "message")
        calls = [openai_call(use) for use in run.calls]
        yield {**returned, "role": run.role, "content": run.text, **run.fields, "tool_calls": calls}
    elif run.text is not None:
        yield {"role": run.role, "content": run.text, **run.fields}


def openai_call(use: ToolUse) -> dict[str, Any]:
    # Servers that render a prompt from the arguments iterate over them, so null becomes an empty object.
    arguments = json_text({} if use.arguments is None else use.arguments)
    returned = fields_wanted_back(use, "call")
    function = {**(returned.get("function") or {}), "name": use.name, "arguments": arguments}
    return {**returned, "id": use.call_id, "type": "function", "function": function}


def join_instructions(messages: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Join the system messages to one, before those of other roles. Most LLMs do not know the role `developer`."""
    own = [message for message in messages if message.get("role") in INSTRUCTION_ROLES]
    others = [message for message in messages if message.get("role") not in INSTRUCTION_ROLES]
    if len(own) < 2:
        return [*({**message, "role": "system"} for message in own), *others]
    contents = [one for message in own if (one := message.get("content")) and isinstance(one, str | list)]
    content: str | list[Any] = system_text(own)
    if any(isinstance(one, list) for one in contents):  # parts may have more than text, such as what to cache
        lists = (one if isinstance(one, list) else [{"type": "text", "text": one}] for one in contents)
        content = [part for parts in lists for part in parts]
    return [{"role": "system", "content": content}, *others]


def fields_wanted_back(use: ToolUse, of: str) -> dict[str, Any]:
    """Return the further fields that the LLM sent with a tool call or its message."""
    value = (use.wanted_back or {}).get(of)
    return value if isinstance(value, dict) else {}


# Anthropic's Messages: https://docs.anthropic.com/en/api/messages


def anthropic_conversation(runs: Sequence[RoleRun], system_messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return `messages`, and `system` if there is such text."""
    messages = ({"role": run.role, "content": anthropic_content(run), **run.fields} for run in runs)
    system = system_text(system_messages)
    return {"messages": messages, "system": system} if system else {"messages": messages}


def anthropic_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return params at the top level, always with `max_tokens`."""
    max_tokens = params.get("max_tokens")
    return {**params, "max_tokens": ANTHROPIC_MAX_TOKENS if max_tokens is None else max_tokens}


def anthropic_content(run: RoleRun) -> str | list[dict[str, Any]]:
    """Return plain text, or blocks if the run has a tool call or result."""
    if run.text is not None and not run.results and not run.calls:
        return run.text
    blocks: list[dict[str, Any]] = []
    for use in run.results:
        block = {"type": "tool_result", "tool_use_id": anthropic_id(use)}
        content = json_text(use.result)
        blocks.append(block | {"content": content} if content.strip() else block)
    if run.text is not None:
        blocks.append({"type": "text", "text": run.text})
    for use in run.calls:
        arguments = arguments_object(use.arguments)
        blocks.append({"type": "tool_use", "id": anthropic_id(use), "name": use.name, "input": arguments})
    return blocks


def anthropic_id(use: ToolUse) -> str:
    """Return the tool call's id in characters that the API takes (`[a-zA-Z0-9_-]`); different ids stay different."""
    return re.sub(r"[^a-zA-Z0-9_-]", lambda letter: f"_{ord(letter[0]):x}_", use.call_id)


# Gemini's generateContent: https://ai.google.dev/api/generate-content


def gemini_conversation(runs: Sequence[RoleRun], system_messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return `contents`, and `systemInstruction` if there is such text."""
    contents = ({"role": GEMINI_ROLES[run.role], "parts": gemini_parts(run), **run.fields} for run in runs)
    system = system_text(system_messages)
    return {"contents": contents} | ({"systemInstruction": {"parts": [{"text": system}]}} if system else {})


def gemini_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return params under `generationConfig`, including those given under that name."""
    request = {name: params[name] for name in GEMINI_REQUEST_FIELDS if name in params}
    generation = {name: value for name, value in params.items() if name not in {*GEMINI_REQUEST_FIELDS, "model"}}
    nested = generation.pop("generationConfig", None)
    if isinstance(nested, dict):
        generation = nested | generation
    return request | ({"generationConfig": generation} if generation else {})


def gemini_parts(run: RoleRun) -> list[dict[str, Any]]:
    # Responses directly follow their calls, in the same order, so no ids are needed; some endpoints refuse them.
    parts: list[dict[str, Any]] = []
    for use in run.results:
        response = as_object(use.result, "output")
        parts.append({"functionResponse": {"name": use.name, "response": response}})
    if run.text is not None:
        parts.append({"text": run.text})
    for use in run.calls:
        parts.append({"functionCall": {"name": use.name, "args": arguments_object(use.arguments)}})
    return parts


class Style(NamedTuple):
    """The form of an API's requests."""

    conversation: Callable[[Sequence[RoleRun], Sequence[dict[str, Any]]], dict[str, Any]]
    """Makes the part of the body with the conversation and the system messages."""
    params: Callable[[dict[str, Any]], dict[str, Any]]
    """Makes the part of the body from params; OpenAI's are at the top level, unchanged."""
    alternates: bool
    """True if the API refuses a conversation in which user and assistant do not alternate."""
    takes_blank: bool


STYLES = {
    "openai": Style(openai_conversation, dict, alternates=False, takes_blank=True),
    "anthropic": Style(anthropic_conversation, anthropic_params, alternates=True, takes_blank=False),
    "gemini": Style(gemini_conversation, gemini_params, alternates=True, takes_blank=False),
}


# Values whose form depends on the vendor: a tool's arguments and results, and the text of system messages


def json_text(value: Any) -> str:
    """Return a value as text: text unchanged, anything else as JSON.

    orjson raises for integers beyond 64 bits, which a tool may return.
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_object(value: Any, name: str) -> dict[str, Any]:
    """Return a value as a JSON object: itself, the object in its text (OpenAI's form), or wrapped as `name`."""
    parsed = value
    if isinstance(value, str):
        with suppress(orjson.JSONDecodeError):
            parsed = orjson.loads(value)
            # orjson reads deeper JSON than it writes, and the body must be written.
            parsed = parsed if is_within(parsed, MAX_DEPTH) else None
    return parsed if isinstance(parsed, dict) else {name: value}


def arguments_object(arguments: Any) -> dict[str, Any]:
    """Return a tool's arguments as an object; missing or blank arguments become an empty one."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    return as_object(arguments, "arguments")


def system_text(system_messages: Sequence[dict[str, Any]]) -> str:
    """Return the text of all system messages, with a blank line between them.

    It reads OpenAI's content (a string, or parts of type `text`) and Gemini's `parts`, and ignores the rest.
    """
    texts: list[str] = []
    for message in system_messages:
        content = message.get("content", message.get("parts"))
        parts = [content] if isinstance(content, str) else content if isinstance(content, list | tuple) else ()
        strings = (part.get("text") if isinstance(part, dict) else part for part in parts)
        texts += (text for text in strings if isinstance(text, str) and text.strip())
    return SYSTEM_SEPARATOR.join(texts)


def is_within(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    children = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(is_within(child, depth - 1) for child in children)
