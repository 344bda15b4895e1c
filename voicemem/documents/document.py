"""Working-memory documents: their forms, their updates, and their rendering for an LLM.

A document belongs to a session or to a user. It is a text, Markdown that may start from a template, or a JSON object.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct, field

from voicemem.documents.json_schema import check_schema
from voicemem.errors import Refused
from voicemem.protocol.arguments import fit
from voicemem.protocol.quoting import quoted, without_speakers
from voicemem.protocol.types import JsonObject

if TYPE_CHECKING:
    Positions = array[int]
else:
    Positions = array
MAX_DOCUMENT_BYTES = 64 * 1024
"""The limit of a document, a template and a schema."""
SEPARATOR = "\n\n"
"""The text between a document and an appended text."""
DocumentFormat = Literal["text", "markdown", "json"]
Scope = Literal["session", "user"]
Operation = Literal["append", "replace", "clear", "form"]


class Form(Struct, frozen=True, gc=False):
    """The format of a document, with its template (Markdown) or its schema (JSON Schema 2020-12)."""

    format: DocumentFormat
    template: str | None = None
    schema: JsonObject | None = None


class WorkingMemoryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The working memory of a session; a missing `format` follows from `schema` or `template`."""

    scope: Scope = "session"
    """Whose it is: the session's or its user's."""
    format: DocumentFormat | None = None
    """The form of the document."""
    template: str | None = None
    """The text that it begins with."""
    schema: JsonObject | None = None
    """The JSON Schema of a document in JSON."""
    tools: bool = False
    """True if the LLM gets the tools; the system message then says when to use them."""


class Document(Struct, gc=False):
    """A document as the events so far have made it."""

    content: Any = None
    """None if it is empty."""
    form: Form | None = None
    """The document's own form, which takes precedence over a configuration's."""
    updated_ms: int = 0
    positions: Positions = field(default_factory=lambda: array("q"))
    """The journal positions of its events, one for each version."""

    @property
    def version(self) -> int:
        return len(self.positions)


# Forms


class HasForm(Protocol):
    """Anything that may specify a form: a configuration, a request, an event."""

    @property
    def format(self) -> DocumentFormat | None: ...
    @property
    def template(self) -> str | None: ...
    @property
    def schema(self) -> JsonObject | None: ...


def form_of(source: HasForm) -> Form | None:
    """Return the form that `source` specifies, if any; fields that do not fit it are left to `check_form`."""
    format = source.format
    if format is None:
        if source.template is None and source.schema is None:
            return None
        format = "markdown" if source.schema is None else "json"
    return Form(format, source.template if format == "markdown" else None, source.schema if format == "json" else None)


def check_form(source: HasForm) -> None:
    """Raise `Refused` for fields that do not make a form."""
    if source.template is not None and source.schema is not None:
        raise Refused("invalid_field", "A document may have a `template` or a `schema`, not both.")
    if source.template is not None and source.format not in (None, "markdown"):
        raise Refused("invalid_field", "Only a document of the format markdown may have a `template`.")
    if source.schema is not None and source.format not in (None, "json"):
        raise Refused("invalid_field", "Only a document of the format json may have a `schema`.")
    if source.template is not None and len(source.template.encode()) > MAX_DOCUMENT_BYTES:
        raise Refused("invalid_field", "A template may have at most 64 KiB.")
    if source.schema is not None and len(msgspec.json.encode(source.schema)) > MAX_DOCUMENT_BYTES:
        raise Refused("invalid_field", "A schema may have at most 64 KiB.")
    if source.schema is not None:
        check_schema(source.schema)


def check_working_memory(section: WorkingMemoryConfig | None) -> None:
    """Check the section `working_memory` of a configuration or a patch. Raises `Refused`."""
    if section is not None:
        try:
            check_form(section)
        except Refused as refused:
            raise Refused(refused.code, f"In `working_memory` of the configuration: {refused.detail}") from None


def resolve_form(content: Any, *forms: Form | None) -> Form:
    """Return the first of these forms that fits the content (None fits all), else the plain form of its kind.

    So content keeps its kind, text or object, even if the configured form changed after it was written.
    """
    fitting = (
        form for form in forms if form and (content is None or (form.format == "json") == isinstance(content, dict))
    )
    return next(fitting, None) or Form("json" if isinstance(content, dict) else "text")


# Updates


def apply_operation(before: Any, operation: Operation, content: Any) -> Any:
    if operation == "append" and before is not None:
        return append_content(before, content)
    return {"append": content, "replace": content, "clear": None, "form": before}[operation]


def append_content(before: Any, added: Any) -> Any:
    if isinstance(before, str) and isinstance(added, str):
        return SEPARATOR.join(filter(None, (before, added)))
    return merge_json(before, added)


def merge_json(before: Any, added: Any) -> Any:
    """Merge JSON: objects merge deeply, arrays gain missing items, other values are replaced."""
    if isinstance(before, dict) and isinstance(added, dict):
        changed = {key: merge_json(before[key], value) if key in before else value for key, value in added.items()}
        return before | changed
    if isinstance(before, list) and isinstance(added, list):
        new = {equality_key(item): item for item in reversed(added)}  # reversed: of equal items the first stays
        known = {equality_key(item) for item in before}
        return before + [item for key, item in reversed(new.items()) if key not in known]
    return added


def without_empty_values(value: JsonObject) -> JsonObject:
    """Return an update without nulls, empty lists and empty objects: LLMs write them for fields that do not change."""
    kept = {key: without_empty_values(one) if isinstance(one, dict) else one for key, one in value.items()}
    return {key: one for key, one in kept.items() if one is not None and one not in ([], {})}


def equality_key(value: Any) -> Any:
    """Return a hashable key that is equal for equal JSON: 1 equals 1.0, but not true."""
    match value:
        case bool():
            return ("boolean", value)
        case dict():
            return frozenset((key, equality_key(item)) for key, item in value.items())
        case list():
            return tuple(map(equality_key, value))
    return value


OTHER_KIND_HINT = (
    "append content of the same kind, or replace the document (PUT, or the mode replace) to change its kind."
)


def check_same_kind(before: Any, added: Any) -> None:
    """Raise `Refused` for an append of the other kind, which would overwrite the document."""
    if isinstance(before, dict) and not isinstance(added, dict):
        raise Refused("invalid_field", f"The document is a JSON object, but `content` is a text: {OTHER_KIND_HINT}")
    if isinstance(before, str) and not isinstance(added, str):
        raise Refused("invalid_field", f"The document is a text, but `content` is an object: {OTHER_KIND_HINT}")


def content_size(content: Any) -> int:
    return len(content.encode()) if isinstance(content, str) else len(msgspec.json.encode(content))


def check_content(content: Any, form: Form) -> None:
    """Raise `Refused` for content that has another format, or is too large."""
    if form.format == "json" and not isinstance(content, dict):
        raise Refused("invalid_field", "The document is of the format json: `content` must be an object.")
    if form.format != "json" and not isinstance(content, str):
        raise Refused("invalid_field", f"The document is of the format {form.format}: `content` must be a text.")
    if content_size(content) > MAX_DOCUMENT_BYTES:
        raise Refused("too_big", "A working memory document may have at most 64 KiB.")


# For an LLM

SCOPE_PHRASES = {
    "session": "what you keep in mind during this conversation",
    "user": "what you know about this user, from this conversation and earlier ones",
}
USE_HINT = "Rely on it, but do not mention that it exists."
UPDATE_HINT = "As soon as you learn something that belongs in it, call update_working_memory."
CLOSING_TAG = re.compile(r"<(\s*)/(?=\s*working_memory)", re.IGNORECASE)
"""A tag that would end the block early. A backslash before its slash prevents that, and means the same in JSON."""


def render_document(content: Any, form: Form, scope: Scope, tools: bool) -> str:
    """Return the system message that shows a document to an LLM."""
    use = f"{USE_HINT} {UPDATE_HINT}" if tools else USE_HINT
    text = CLOSING_TAG.sub(r"<\1\\/", without_speakers(render_content(content, form)))
    return f"Your working memory: {SCOPE_PHRASES[scope]}. {use}\n<working_memory>\n{text}\n</working_memory>"


def render_content(content: Any, form: Form) -> str:
    """Return a document as a text; for an empty one, its template or schema."""
    if content is None or content == "":
        if form.template is not None:
            return form.template
        schema = "" if form.schema is None else f"; its JSON Schema: {quoted(form.schema)}"
        return f"(nothing yet{schema})"
    return content if isinstance(content, str) else quoted(content)


def render_data(data: JsonObject) -> str:
    return f"Data of this session:\n{quoted(data)}"


# Tools with which an agent's LLM reads and changes its working memory, in OpenAI's shapes

GET_TOOL, UPDATE_TOOL, CLEAR_TOOL = "get_working_memory", "update_working_memory", "clear_working_memory"
TOOL_NAMES = frozenset((GET_TOOL, UPDATE_TOOL, CLEAR_TOOL))
CONTENT_POINTER = "#/properties/content"
"""The document's schema within the schema of the tool's parameters."""
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
    """The function of a tool call: `arguments` is a string of JSON, as OpenAI sends it; an object is accepted too."""

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
    no_parameters = {"type": "object", "properties": {}}
    content: JsonObject = {"type": "string"}
    if form.format == "json":  # its references must start at the new place
        relocated: JsonObject = relocate_refs(form.schema or {})
        own = {name: value for name, value in relocated.items() if name not in ("$schema", "$id")}
        content = {"type": "object", **own}
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


def relocate_refs(value: Any) -> Any:
    """Return a copy of a schema, or of a part of one, whose references start at `CONTENT_POINTER`."""
    match value:
        case {"$ref": str(ref)} if ref == "#" or ref.startswith("#/"):
            rest = {key: item for key, item in value.items() if key != "$ref"}
            return {"$ref": CONTENT_POINTER + ref[1:], **relocate_refs(rest)}
        case dict():
            return {key: relocate_refs(item) for key, item in value.items()}
        case list():
            return [relocate_refs(item) for item in value]
    return value


def parse_update(call: ChatToolCall) -> UpdateArguments:
    """Parse the arguments of a tool call. Raises `Refused` with a sentence for the LLM."""
    arguments = call.function.arguments
    try:
        value = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
        return msgspec.convert(fit(value, UpdateArguments), UpdateArguments)
    except msgspec.ValidationError:
        raise Refused(
            "invalid_field", "The arguments must be `content` and, if needed, `mode`: append or replace."
        ) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Refused("invalid_json", "The arguments are not JSON.") from None


def tool_message(call: ChatToolCall, content: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": call.id, "content": content}
