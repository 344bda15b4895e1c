"""The tools with which an agent's LLM reads and changes its working memory, in OpenAI's shapes."""

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
"""Where the document's schema stands in that of the tool's parameters."""
MODE_SCHEMA = {
    "type": "string",
    "enum": ["append", "replace"],
    "default": "append",
    "description": "append adds to what is there; replace overwrites it with the content.",
}
UPDATE_HINTS = {
    "json": "What is new: objects are merged, arrays gain new items, other values are overwritten. The merged document "
    "must fit the schema.",
    "markdown": "Markdown. append puts it below what is there; to fill in or change the template, replace it all.",
    "text": "Text. append puts it below what is there.",
}


class ChatFunction(Struct, frozen=True):
    """`arguments` is a string of JSON, as OpenAI sends it; an object is accepted too."""

    name: str
    arguments: str | JsonObject = ""


class ChatToolCall(Struct, frozen=True):
    """A tool call, as in an assistant message."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    function: ChatFunction
    type: Literal["function"] = "function"


class UpdateArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `update_working_memory`."""

    content: str | JsonObject
    mode: Literal["append", "replace"] = "append"


def tool_definitions(form: Form) -> list[JsonObject]:
    """The tools for a document of this form."""
    no_parameters = {"type": "object", "properties": {}}
    content = embed_schema(form.schema or {"type": "object"}) if form.format == "json" else {"type": "string"}
    update = {
        "type": "object",
        "properties": {"content": content, "mode": MODE_SCHEMA},
        "required": ["content"],
        "additionalProperties": False,
    }
    return [
        function_tool(GET_TOOL, "Read the working memory.", no_parameters),
        function_tool(UPDATE_TOOL, f"Update the working memory. {UPDATE_HINTS[form.format]}", update),
        function_tool(CLEAR_TOOL, "Empty the working memory: everything in it is forgotten.", no_parameters),
    ]


def function_tool(name: str, description: str, parameters: JsonObject) -> JsonObject:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def embed_schema(schema: JsonObject) -> JsonObject:
    """A document's schema as a part of another one, with its references changed to start there."""
    relocated = {name: value for name, value in relocate_refs(schema).items() if name not in ("$schema", "$id")}
    return {"type": "object", **relocated}


def relocate_refs(value: Any) -> Any:
    """A copy of a schema, or of a part of one, whose references start at `CONTENT_POINTER`."""
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
    """The arguments of a tool call. Raises `Refused` with a sentence for the LLM."""
    arguments = call.function.arguments
    try:
        if isinstance(arguments, str):
            return msgspec.json.decode(arguments, type=UpdateArguments)
        return msgspec.convert(arguments, UpdateArguments)
    except msgspec.ValidationError:
        raise Refused(
            "invalid_field", "The arguments must be `content` and, if needed, `mode`: append or replace."
        ) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Refused("invalid_json", "The arguments are not JSON.") from None


def tool_message(call: ChatToolCall, content: str) -> JsonObject:
    """The message that gives the result to the LLM."""
    return {"role": "tool", "tool_call_id": call.id, "content": content}
