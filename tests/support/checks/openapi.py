"""Whether what the REST server answers is what its OpenAPI document says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

import jsonschema_rs

from voicemem.compat import agora
from voicemem.compat.agent_memory_server.routes import ROUTES as AGENT_MEMORY_ROUTES
from voicemem.protocol.types import JsonObject
from voicemem.server.http.openapi import openapi_json
from voicemem.server.rest import ROUTES

DOCUMENT = "urn:voicemem:openapi"


@cache
def openapi_document() -> JsonObject:
    """The document of this package."""
    return dict(json.loads(openapi_json([*ROUTES, *agora.DOCUMENTED, *AGENT_MEMORY_ROUTES])))


@cache
def registry() -> jsonschema_rs.Registry:
    """The document at an address, so that a schema of it is made without all the others."""
    return jsonschema_rs.Registry([(DOCUMENT, openapi_document())], draft=jsonschema_rs.Draft202012)


@cache
def schema(*path: str) -> jsonschema_rs.Draft202012Validator:
    """A validator of the schema at this place of the document, formats included."""
    pointer = "/".join(quote(step.replace("~", "~0").replace("/", "~1")) for step in path)
    return jsonschema_rs.Draft202012Validator({"$ref": f"{DOCUMENT}#/{pointer}"}, registry=registry())


def component(name: str) -> jsonschema_rs.Draft202012Validator:
    """A validator of a component."""
    return schema("components", "schemas", name)


def template_of(path: str) -> str | None:
    """The path of the document that a request's path is one of, below any of its servers."""
    path = path.partition("?")[0].removeprefix("/cn")
    paths = openapi_document()["paths"]
    return next((one for one in paths if re.fullmatch(re.sub(r"{\w+}", "[^/{}]+", one), path)), None)


def check_response(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Hold an answer to the document: status, content type, headers, body. Paths that are none are passed over."""
    template = template_of(path)
    operations = {} if template is None else openapi_document()["paths"][template]
    if template is None or method.lower() not in operations:
        return
    place = ("paths", template, method.lower(), "responses", str(status))
    response = operations[method.lower()]["responses"].get(str(status))
    assert response is not None, f"{method} {template} does not document {status}: {body[:200]!r}"
    missing = [
        name for name, header in response.get("headers", {}).items() if header["required"] and name not in headers
    ]
    assert missing == [], f"{method} {template} {status} lacks {missing}"
    if not response.get("content"):
        assert body == b""
        return
    media_type = headers["Content-Type"].partition(";")[0]
    assert media_type in response["content"], f"{method} {template} {status} does not document {media_type}"
    for value in values_of(media_type, body):
        error = next(schema(*place, "content", media_type, "schema").iter_errors(value), None)
        assert error is None, f"{method} {template} {status}: {error}"


def values_of(media_type: str, body: bytes) -> list[Any]:
    """What the schema of a body is about: JSON lines are an array, of server-sent events it is each one's data."""
    match media_type:
        case "application/x-ndjson":
            return [[json.loads(line) for line in body.splitlines()]]
        case "text/event-stream":
            return [
                json.loads(line[6:])
                for line in body.split(b"\n")
                if line.startswith(b"data: ") and line != b"data: [DONE]"
            ]
        case "text/plain":
            return []
        case "text/vtt" | "text/markdown" | "text/csv" | "application/x-subrip":
            return [body.decode()]
    return [json.loads(body)]
