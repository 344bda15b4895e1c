"""What Schemathesis has to be told of this API: JSON lines, and what no JSON Schema can say.

Loaded by its command line through `SCHEMATHESIS_HOOKS`; `tests/process/programs/test_schemathesis.py` runs it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.generation import GenerationMode

from voicemem.protocol.codec import has_large_integer

NOBODY = "http://127.0.0.1:65530/calls"
"""On the allow-list of the service that is called; no one listens there."""
JSON_LINES = "application/x-ndjson"


@schemathesis.deserializer(JSON_LINES)
def json_lines(_: Any, response: Response) -> list[Any]:
    """JSON lines as the array that the document describes."""
    return [json.loads(line) for line in response.content.splitlines()]


@schemathesis.serializer(JSON_LINES)
def to_json_lines(_: Any, value: Any) -> bytes:
    """An array as JSON lines. What is none must be refused: it stands on one line, an object on two."""
    if isinstance(value, dict):
        return json.dumps(value).replace("{", "{\n", 1).encode()
    lines = value if isinstance(value, list) else [value]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def without_nul(value: Any) -> Any:
    """Return a JSON value without U+0000 in its texts and keys."""
    if isinstance(value, dict):
        return {key.replace("\0", ""): without_nul(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_nul(inner) for inner in value]
    return value.replace("\0", "") if isinstance(value, str) else value


@schemathesis.hook
def before_load_schema(_: HookContext, document: dict[str, Any]) -> None:
    """Without keys a service asks for none."""
    if os.environ.get("WITHOUT_KEYS"):
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["security"] = []


@schemathesis.hook
def map_case(_: HookContext, case: Case[Any]) -> Case[Any]:
    """A cursor is only ever one that was given out, a URL one that may be called, a policy one that there is."""
    if case.meta is None or case.meta.generation.mode != GenerationMode.POSITIVE:
        return case
    if isinstance(case.query, dict):
        case.query.pop("cursor", None)
        if "policy" in case.query:
            case.query["policy"] = "priority"  # which takes all parameters that may stand beside it
        case.query.pop("at", None)  # which is a position that the journal has
    if isinstance(case.body, dict | list):  # no name has U+0000, which schemas do not say
        case.body = without_nul(case.body)
    sections = (case.body, case.body.get("llm"), case.body.get("webhook")) if isinstance(case.body, dict) else ()
    for section in sections:
        if isinstance(section, dict) and isinstance(section.get("url"), str):
            section["url"] = NOBODY
    if isinstance(case.body, dict) and isinstance(case.body.get("memory"), dict):
        case.body["memory"] = {"policy": "recent"}
    if isinstance(case.body, dict):
        case.body.pop("cursor", None)
        in_form(case.path, case.body)
    return case


def in_form(path: str, body: dict[str, Any]) -> None:
    """A content of the format that a document has, and a form of one kind: here all documents are texts.

    A chat ends with words: answers to tools are only taken for calls that there were.
    """
    if path.endswith("/chat/completions") and isinstance(body.get("messages"), list):
        body["messages"].append({"role": "user", "content": "Hi."})
    forms = body if path.endswith("/working-memory") else body.get("working_memory")
    if isinstance(forms, dict):
        for name in ("template", "schema", "format"):
            forms.pop(name, None)
        if forms is body:
            body["content"] = "Likes tea."


@schemathesis.hook
def filter_case(_: HookContext, case: Case[Any]) -> bool:
    """What the schemas do not say, since it cannot be said in them, or only at length."""
    body = case.body
    if isinstance(body, dict):
        llm = body.get("llm", {})
        if "system_messages" in body and llm is None:
            return False  # one takes away what the other sets
    return not has_large_integer(as_written(body))


def as_written(value: Any) -> Any:
    """A body as it is sent: a float without a fraction may be written as an integer, of any size."""
    if isinstance(value, dict):
        return {name: as_written(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_written(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
