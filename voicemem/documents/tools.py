"""The tools by which an agent's LLM works on its working memory, in OpenAI's shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from voicemem.documents.document import Form
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

GET_TOOL, UPDATE_TOOL, CLEAR_TOOL = "get_working_memory", "update_working_memory", "clear_working_memory"
TOOL_NAMES = frozenset((GET_TOOL, UPDATE_TOOL, CLEAR_TOOL))
CONTENT_POINTER = "#/properties/content"
"""Of the document's schema in that of the tool's parameters."""
MODE_SCHEMA = {
    "type": "string",
    "enum": ["append", "replace"],
    "default": "append",
    "description": "append adds to what is there; replace puts the content into its place.",
}
UPDATE_HINTS = {
    "json": "What is new: objects are merged, arrays take new items, other values are overwritten. The merged document "
    "must fit the schema.",
    "markdown": "Markdown. append puts it below what is there; to fill or change the template, replace the whole.",
    "text": "Text. append puts it below what is there.",
}


class ChatFunction(Struct, frozen=True):
    """`arguments` is JSON in a text, as OpenAI sends it; an object is taken too."""

    name: str
    arguments: str | JsonObject = ""


class ChatToolCall(Struct, frozen=True):
    """A tool call as it stands in an assistant message."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    function: ChatFunction
    type: Literal["function"] = "function"


class UpdateArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `update_working_memory`."""

    content: str | JsonObject
    mode: Literal["append", "replace"] = "append"


class Nothing(Struct, frozen=True):
    """The arguments of the others."""


def tool_definitions(form: Form) -> list[JsonObject]:
    """The tools for a document of this form."""
    nothing = {"type": "object", "properties": {}}
    content = embed_schema(form.schema or {"type": "object"}) if form.format == "json" else {"type": "string"}
    update = {
        "type": "object",
        "properties": {"content": content, "mode": MODE_SCHEMA},
        "required": ["content"],
        "additionalProperties": False,
    }
    return [
        function_tool(GET_TOOL, "Read the working memory.", nothing),
        function_tool(UPDATE_TOOL, f"Update the working memory. {UPDATE_HINTS[form.format]}", update),
        function_tool(CLEAR_TOOL, "Empty the working memory: everything in it is forgotten.", nothing),
    ]


def function_tool(name: str, description: str, parameters: JsonObject) -> JsonObject:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def embed_schema(schema: JsonObject) -> JsonObject:
    """A document's schema where it stands in another: its references begin with its place."""
    moved = {name: value for name, value in relocate_refs(schema).items() if name not in ("$schema", "$id")}
    return {"type": "object", **moved}


def relocate_refs(value: Any) -> Any:
    match value:
        case dict():
            return {key: relocate_value(key, item) for key, item in value.items()}
        case list():
            return [relocate_refs(item) for item in value]
    return value


def relocate_value(key: str, item: Any) -> Any:
    if key == "$ref" and isinstance(item, str) and (item == "#" or item.startswith("#/")):
        return CONTENT_POINTER + item[1:]
    return relocate_refs(item)


def parse_update(call: ChatToolCall) -> UpdateArguments:
    """Raises `Refused`, with a sentence for the LLM that called."""
    given = call.function.arguments
    try:
        if isinstance(given, str):
            return msgspec.json.decode(given, type=UpdateArguments)
        return msgspec.convert(given, UpdateArguments)
    except msgspec.ValidationError:
        raise Refused("invalid_field", "The arguments are `content`, and `mode`: append or replace.") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Refused("invalid_json", "The arguments are no JSON.") from None


def tool_message(call: ChatToolCall, content: str) -> JsonObject:
    """What the LLM gets back."""
    return {"role": "tool", "tool_call_id": call.id, "content": content}
