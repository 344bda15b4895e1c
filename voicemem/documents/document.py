"""Working memory documents: their forms, what updates make of them, and how an LLM gets to see them.

A document belongs to a session or to a user. It is a text, Markdown that began with a template, or a JSON object.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import Struct, field

from voicemem.documents.json_schema import check_schema
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

if TYPE_CHECKING:
    Positions = array[int]
else:
    Positions = array
MAX_DOCUMENT_BYTES = 64 * 1024
"""Of a document; a template or a schema may have as many."""
SEPARATOR = "\n\n"
"""Between what is appended to a text and what stood there before."""
DocumentFormat = Literal["text", "markdown", "json"]
Scope = Literal["session", "user"]
Operation = Literal["append", "replace", "clear", "form"]


class Form(Struct, frozen=True, gc=False):
    """What a document is made of; a template is Markdown, a schema JSON Schema 2020-12."""

    format: DocumentFormat
    template: str | None = None
    schema: JsonObject | None = None


class WorkingMemoryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The working memory of a session; `format` follows from `schema` or `template` where it is not given."""

    scope: Scope = "session"
    format: DocumentFormat | None = None
    template: str | None = None
    schema: JsonObject | None = None
    tools: bool = False
    """Whether the LLM has the tools: then the system message says when to use them."""


class Document(Struct, gc=False):
    """A document as its events have made it."""

    content: Any = None
    """None while there is nothing in it."""
    form: Form | None = None
    """Its own, which counts before that of a configuration."""
    updated_ms: int = 0
    positions: Positions = field(default_factory=lambda: array("q"))
    """Of its events in the journal, one for each version."""

    @property
    def version(self) -> int:
        return len(self.positions)


# Forms


class HasForm(Protocol):
    """What may say a form: a configuration, a request, an event."""

    @property
    def format(self) -> DocumentFormat | None: ...
    @property
    def template(self) -> str | None: ...
    @property
    def schema(self) -> JsonObject | None: ...


def form_of(given: HasForm) -> Form | None:
    """The form that is said, if any is; what does not fit its format is passed over (`check_form` refuses it)."""
    format = given.format
    if format is None:
        if given.template is None and given.schema is None:
            return None
        format = "markdown" if given.schema is None else "json"
    return Form(format, given.template if format == "markdown" else None, given.schema if format == "json" else None)


def check_form(given: HasForm) -> None:
    """Refuse what is no form. Raises `Refused`."""
    if given.template is not None and given.schema is not None:
        raise Refused("invalid_field", "A document has a `template` or a `schema`, not both.")
    if given.template is not None and given.format not in (None, "markdown"):
        raise Refused("invalid_field", "Only a document of the format markdown has a `template`.")
    if given.schema is not None and given.format not in (None, "json"):
        raise Refused("invalid_field", "Only a document of the format json has a `schema`.")
    if given.template is not None and len(given.template.encode()) > MAX_DOCUMENT_BYTES:
        raise Refused("invalid_field", "A template has at most 64 KiB.")
    if given.schema is not None and len(msgspec.json.encode(given.schema)) > MAX_DOCUMENT_BYTES:
        raise Refused("invalid_field", "A schema has at most 64 KiB.")
    if given.schema is not None:
        check_schema(given.schema)


def check_working_memory(given: WorkingMemoryConfig | None) -> None:
    """The same for the section `working_memory` of a configuration or a patch. Raises `Refused`."""
    if given is not None:
        try:
            check_form(given)
        except Refused as refused:
            raise Refused(refused.code, f"In `working_memory` of the configuration: {refused.detail}") from None


def resolve_form(content: Any, *forms: Form | None) -> Form:
    """The first of these forms that a content (None: there is none) can have, else what follows from it.

    A content keeps its kind where a configuration says another form since it was written.
    """
    found = (
        form for form in forms if form is not None and (content is None or is_json_form(form) == is_object(content))
    )
    return next(found, None) or Form("json" if is_object(content) else "text")


def is_json_form(form: Form) -> bool:
    return form.format == "json"


def is_object(content: Any) -> bool:
    return isinstance(content, dict)


# Updates


def apply_operation(before: Any, operation: Operation, given: Any) -> Any:
    """The content after an operation."""
    match operation:
        case "append":
            return given if before is None else append_content(before, given)
        case "replace":
            return given
        case "clear":
            return None
    return before


def append_content(before: Any, given: Any) -> Any:
    """What an append makes of two contents: texts are joined, objects merged."""
    if isinstance(before, str) and isinstance(given, str):
        return SEPARATOR.join(filter(None, (before, given)))
    return merge_json(before, given)


def merge_json(before: Any, given: Any) -> Any:
    """Objects merge deep, arrays take what they do not have yet, anything else is replaced."""
    if isinstance(before, dict) and isinstance(given, dict):
        more = {key: merge_json(before[key], value) if key in before else value for key, value in given.items()}
        return before | more
    if isinstance(before, list) and isinstance(given, list):
        new = {equality_key(item): item for item in reversed(given)}  # of equal ones the first
        known = {equality_key(item) for item in before}
        return before + [item for key, item in reversed(new.items()) if key not in known]
    return given


def equality_key(value: Any) -> Any:
    """Something that is equal for values that are equal in JSON: 1 is 1.0, but true is not 1."""
    match value:
        case bool():
            return ("boolean", value)
        case dict():
            return frozenset((key, equality_key(item)) for key, item in value.items())
        case list():
            return tuple(map(equality_key, value))
    return value


def first_content(given: Any, template: str | None) -> Any:
    """What the first append makes of an empty document: a template stays above it."""
    return given if template is None else append_content(template, given)


def check_same_kind(before: Any, given: Any) -> None:
    """Refuse to append to a content of the other kind, which would be lost. Raises `Refused`."""
    if is_object(before) and not is_object(given):
        raise Refused("invalid_field", f"The document is a JSON object, and `content` a text: {OTHER_KIND_HINT}")
    if isinstance(before, str) and not isinstance(given, str):
        raise Refused("invalid_field", f"The document is a text, and `content` an object: {OTHER_KIND_HINT}")


OTHER_KIND_HINT = (
    "append content of the same kind, or replace the document (PUT, or the mode replace), to change its kind."
)


def content_size(content: Any) -> int:
    """In bytes, as it is stored."""
    return len(content.encode()) if isinstance(content, str) else len(msgspec.json.encode(content))


def check_content(content: Any, form: Form) -> None:
    """Refuse a content of another format, or over its size. Raises `Refused`."""
    if form.format == "json" and not isinstance(content, dict):
        raise Refused("invalid_field", "The document is JSON: `content` is an object.")
    if form.format != "json" and not isinstance(content, str):
        raise Refused("invalid_field", f"The document is of the format {form.format}: `content` is a text.")
    if content_size(content) > MAX_DOCUMENT_BYTES:
        raise Refused("too_big", "A working memory document has at most 64 KiB.")


# For an LLM

SCOPE_PHRASES = {
    "session": "what you keep in mind during this conversation",
    "user": "what you know about this user, from this conversation and earlier ones",
}
USE_HINT = "Rely on it, and do not tell that it is there."
UPDATE_HINT = "As soon as you learn something that belongs into it, call update_working_memory."


def render_document(content: Any, form: Form, scope: Scope, tools: bool) -> str:
    """The system message that a document becomes."""
    use = f"{USE_HINT} {UPDATE_HINT}" if tools else USE_HINT
    text = CLOSING_TAG.sub(r"<\1\\/", render_content(content, form))
    return f"Your working memory: {SCOPE_PHRASES[scope]}. {use}\n<working_memory>\n{text}\n</working_memory>"


CLOSING_TAG = re.compile(r"<(\s*)/(?=\s*working_memory)", re.IGNORECASE)
"""What would end the block inside of it; with a backslash it does not, and means the same in JSON."""


def render_content(content: Any, form: Form) -> str:
    """A document as a text; of an empty one what it is to become."""
    if content is None or content == "":
        if form.template is not None:
            return form.template
        schema = "" if form.schema is None else f"; its JSON Schema: {to_json(form.schema)}"
        return f"(nothing yet{schema})"
    return content if isinstance(content, str) else to_json(content)


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def render_data(data: JsonObject) -> str:
    """The system message that a session's data become."""
    return f"Data of this session:\n{to_json(data)}"
