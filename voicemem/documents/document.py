"""Working memory documents: their forms, their updates, and how they are shown to an LLM.

A document belongs to a session or to a user. It is a text, Markdown that may start from a template, or a JSON object.
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
"""The same limit holds for a template and for a schema."""
SEPARATOR = "\n\n"
"""Between a text and what is appended to it."""
DocumentFormat = Literal["text", "markdown", "json"]
Scope = Literal["session", "user"]
Operation = Literal["append", "replace", "clear", "form"]


class Form(Struct, frozen=True, gc=False):
    """The format of a document, with its template (Markdown) or its schema (JSON Schema 2020-12)."""

    format: DocumentFormat
    template: str | None = None
    schema: JsonObject | None = None


class WorkingMemoryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The working memory of a session; without `format`, it follows from `schema` or `template`."""

    scope: Scope = "session"
    format: DocumentFormat | None = None
    template: str | None = None
    schema: JsonObject | None = None
    tools: bool = False
    """Whether the LLM has the tools; the system message then says when to use them."""


class Document(Struct, gc=False):
    """A document as the events so far have made it."""

    content: Any = None
    """None while it is empty."""
    form: Form | None = None
    """The document's own form, which has priority over that of a configuration."""
    updated_ms: int = 0
    positions: Positions = field(default_factory=lambda: array("q"))
    """The journal positions of its events, one for each version."""

    @property
    def version(self) -> int:
        return len(self.positions)


# Forms


class HasForm(Protocol):
    """Anything that may give a form: a configuration, a request, an event."""

    @property
    def format(self) -> DocumentFormat | None: ...
    @property
    def template(self) -> str | None: ...
    @property
    def schema(self) -> JsonObject | None: ...


def form_of(source: HasForm) -> Form | None:
    """The form that is given, if any. What does not fit the format is ignored here; `check_form` refuses it."""
    format = source.format
    if format is None:
        if source.template is None and source.schema is None:
            return None
        format = "markdown" if source.schema is None else "json"
    return Form(format, source.template if format == "markdown" else None, source.schema if format == "json" else None)


def check_form(source: HasForm) -> None:
    """Refuse fields that do not make a form. Raises `Refused`."""
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
    """The first of these forms that fits the content (None: empty, fits all), else the plain form of its kind.

    So content keeps its kind, text or object, when a configuration has another form since it was written.
    """
    fitting = (
        form for form in forms if form is not None and (content is None or is_json_form(form) == is_object(content))
    )
    return next(fitting, None) or Form("json" if is_object(content) else "text")


def is_json_form(form: Form) -> bool:
    return form.format == "json"


def is_object(content: Any) -> bool:
    return isinstance(content, dict)


# Updates


def apply_operation(before: Any, operation: Operation, content: Any) -> Any:
    """The content of a document after an operation with `content`."""
    match operation:
        case "append":
            return content if before is None else append_content(before, content)
        case "replace":
            return content
        case "clear":
            return None
    return before


def append_content(before: Any, added: Any) -> Any:
    """The content after an append: texts are joined, objects merged."""
    if isinstance(before, str) and isinstance(added, str):
        return SEPARATOR.join(filter(None, (before, added)))
    return merge_json(before, added)


def merge_json(before: Any, added: Any) -> Any:
    """The merged value: objects merge deeply, arrays gain the items that they lack, anything else is replaced."""
    if isinstance(before, dict) and isinstance(added, dict):
        changed = {key: merge_json(before[key], value) if key in before else value for key, value in added.items()}
        return before | changed
    if isinstance(before, list) and isinstance(added, list):
        new = {equality_key(item): item for item in reversed(added)}  # reversed: of equal items the first stays
        known = {equality_key(item) for item in before}
        return before + [item for key, item in reversed(new.items()) if key not in known]
    return added


def equality_key(value: Any) -> Any:
    """A hashable key that is the same for values that are equal as JSON: 1 equals 1.0, but not true."""
    match value:
        case bool():
            return ("boolean", value)
        case dict():
            return frozenset((key, equality_key(item)) for key, item in value.items())
        case list():
            return tuple(map(equality_key, value))
    return value


def first_content(added: Any, template: str | None) -> Any:
    """The content after the first append to an empty document: a template stays above it."""
    return added if template is None else append_content(template, added)


OTHER_KIND_HINT = (
    "append content of the same kind, or replace the document (PUT, or the mode replace) to change its kind."
)


def check_same_kind(before: Any, added: Any) -> None:
    """Refuse to append content of the other kind, which would overwrite the document. Raises `Refused`."""
    if is_object(before) and not is_object(added):
        raise Refused("invalid_field", f"The document is a JSON object, but `content` is a text: {OTHER_KIND_HINT}")
    if isinstance(before, str) and not isinstance(added, str):
        raise Refused("invalid_field", f"The document is a text, but `content` is an object: {OTHER_KIND_HINT}")


def content_size(content: Any) -> int:
    """The size in bytes, as it is stored."""
    return len(content.encode()) if isinstance(content, str) else len(msgspec.json.encode(content))


def check_content(content: Any, form: Form) -> None:
    """Refuse content that is of another format, or too large. Raises `Refused`."""
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
"""Would end the block early. With a backslash before the slash it does not, and in JSON the meaning stays the same."""


def render_document(content: Any, form: Form, scope: Scope, tools: bool) -> str:
    """The system message that shows a document to an LLM."""
    use = f"{USE_HINT} {UPDATE_HINT}" if tools else USE_HINT
    text = CLOSING_TAG.sub(r"<\1\\/", render_content(content, form))
    return f"Your working memory: {SCOPE_PHRASES[scope]}. {use}\n<working_memory>\n{text}\n</working_memory>"


def render_content(content: Any, form: Form) -> str:
    """A document as a text; for an empty one its template or schema."""
    if content is None or content == "":
        if form.template is not None:
            return form.template
        schema = "" if form.schema is None else f"; its JSON Schema: {to_json(form.schema)}"
        return f"(nothing yet{schema})"
    return content if isinstance(content, str) else to_json(content)


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def render_data(data: JsonObject) -> str:
    """The system message that shows a session's data to an LLM."""
    return f"Data of this session:\n{to_json(data)}"
