"""The tools by which an agent's LLM works on its working memory, in OpenAI's shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from voicemem.documents.document import Form
from voicemem.errors import Refused
from voicemem.protocol.types import Fields

GET, UPDATE, CLEAR = "get_working_memory", "update_working_memory", "clear_working_memory"
NAMES = frozenset((GET, UPDATE, CLEAR))
PLACE = "#/properties/content"
"""Of the document's schema in that of the tool's parameters."""
MODE = {
    "type": "string",
    "enum": ["append", "replace"],
    "default": "append",
    "description": "append adds to what is there; replace puts the content into its place.",
}
HOW = {
    "json": "What is new: objects are merged, arrays take new items, other values are overwritten. The merged document "
    "must fit the schema.",
    "markdown": "Markdown. append puts it below what is there; to fill or change the template, replace the whole.",
    "text": "Text. append puts it below what is there.",
}


class CalledFunction(Struct, frozen=True):
    """`arguments` is JSON in a text, as OpenAI sends it; an object is taken too."""

    name: str
    arguments: str | Fields = ""


class CalledTool(Struct, frozen=True):
    """A tool call as it stands in an assistant message."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    function: CalledFunction
    type: Literal["function"] = "function"


class Update(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `update_working_memory`."""

    content: str | Fields
    mode: Literal["append", "replace"] = "append"


class Nothing(Struct, frozen=True):
    """The arguments of the others."""


def definitions(form: Form) -> list[Fields]:
    """The tools for a document of this form."""
    nothing = {"type": "object", "properties": {}}
    content = inlined(form.schema or {"type": "object"}) if form.format == "json" else {"type": "string"}
    update = {
        "type": "object",
        "properties": {"content": content, "mode": MODE},
        "required": ["content"],
        "additionalProperties": False,
    }
    return [
        tool(GET, "Read the working memory.", nothing),
        tool(UPDATE, f"Update the working memory. {HOW[form.format]}", update),
        tool(CLEAR, "Empty the working memory: everything in it is forgotten.", nothing),
    ]


def tool(name: str, description: str, parameters: Fields) -> Fields:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def inlined(schema: Fields) -> Fields:
    """A document's schema where it stands in another: its references begin with its place."""
    moved = {name: value for name, value in relocated(schema).items() if name not in ("$schema", "$id")}
    return {"type": "object", **moved}


def relocated(value: Any) -> Any:
    match value:
        case dict():
            return {key: place_of(key, item) for key, item in value.items()}
        case list():
            return [relocated(item) for item in value]
    return value


def place_of(key: str, item: Any) -> Any:
    if key == "$ref" and isinstance(item, str) and (item == "#" or item.startswith("#/")):
        return PLACE + item[1:]
    return relocated(item)


def read_update(call: CalledTool) -> Update:
    """Raises `Refused`, with a sentence for the LLM that called."""
    given = call.function.arguments
    try:
        if isinstance(given, str):
            return msgspec.json.decode(given, type=Update)
        return msgspec.convert(given, Update)
    except msgspec.ValidationError:
        raise Refused("invalid_field", "The arguments are `content`, and `mode`: append or replace.") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Refused("invalid_json", "The arguments are no JSON.") from None


def tool_message(call: CalledTool, content: str) -> Fields:
    """What the LLM gets back."""
    return {"role": "tool", "tool_call_id": call.id, "content": content}
