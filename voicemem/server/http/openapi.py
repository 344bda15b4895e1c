"""The OpenAPI 3.1 document of the routes, made from the types that decode and encode.

https://spec.openapis.org/oas/v3.1.1; its schemas are JSON Schema 2020-12. JSON lines are described as an array, as
OpenAPI 3.2 does.
"""

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from types import UnionType
from typing import Any, get_args

import msgspec
from msgspec import Struct

from voicemem.config.session import SessionConfig, SystemMessage
from voicemem.errors import CODES
from voicemem.protocol.arguments import fields_of_struct
from voicemem.protocol.codec import RestoredMetadata
from voicemem.protocol.events import JournaledEvent, ProducedEvent
from voicemem.protocol.types import JsonObject
from voicemem.server.http.routes import PLACEHOLDERS, BodySpec, MergePatch, ResponseSpec, Route, Tag
from voicemem.version import __version__

COMPONENTS = "#/components/schemas/"


def reference(name: str) -> JsonObject:
    """Return a reference to a component; for `Meta.extra_json_schema` too, of types that msgspec cannot look into."""
    return {"$ref": COMPONENTS + name}


class Metadata(RestoredMetadata, frozen=True):
    """Voicemem's own metadata of a message; any other key is the producer's."""


NAMED_UNIONS = {"ProducedEvent": ProducedEvent, "JournaledEvent": JournaledEvent}
REFINEMENTS: dict[tuple[str, str], JsonObject] = {
    ("Message", "metadata"): reference("Metadata"),
    ("LlmConfig", "system_messages"): {"items": reference("SystemMessage")},
    ("LlmConfig", "api_key"): {"writeOnly": True},
    ("WebhookConfig", "secret"): {"writeOnly": True},
    ("LlmConfig", "headers"): {"writeOnly": True},
}
"""Schemas of fields whose types say less, since their content is passed on as it came, or never shown."""


class Schemas:
    """Makes schemas of types, and collects the components; a struct becomes one under its own name."""

    def __init__(self, unions: Mapping[str, Any] = NAMED_UNIONS, bodies: Iterable[Any] = ()) -> None:
        """`bodies` are types of bodies in which null means that a field is left out."""
        self.components: JsonObject = {}
        self.lenient = {struct.__name__: struct for body in bodies for struct in structs_in(body)}
        for name, union in unions.items():
            self.components[name] = self.register(union)
        for kind in (Metadata, SystemMessage, SessionConfig):
            self.register(kind)

    def of(self, kind: Any) -> JsonObject:
        """Return the schema of a type, a union of structs, or a `MergePatch`; by reference if it has a name."""
        if isinstance(kind, MergePatch):
            return self.patch(kind.of)
        members = get_args(kind) if isinstance(kind, UnionType) else ()
        structs = [one for one in members if isinstance(one, type) and issubclass(one, Struct)]
        if members and all(one.__struct_config__.tag is None for one in structs) and len(structs) == len(members):
            return {"anyOf": [self.register(member) for member in members]}
        return self.register(kind)

    def register(self, kind: Any) -> JsonObject:
        schema, components = components_of(kind)
        for name, component in components.items():
            if "properties" in component:
                fields = fields_of_struct(self.lenient[name]) if name in self.lenient else {}
                component["properties"] = {
                    name: nullable(in_words(field)) if name in fields and fields[name].may_be_null else in_words(field)
                    for name, field in component["properties"].items()
                }
        self.components |= components
        return schema

    def patch(self, kind: type[Struct]) -> JsonObject:
        """Return the schema of a merge patch; the structs in it become patches too."""
        _, components = components_of(kind)
        names = {COMPONENTS + name for name in components}
        for name, schema in components.items():
            properties = {field: nullable(value, names) for field, value in schema["properties"].items()}
            self.components[f"{name}Patch"] = schema | {"title": f"{schema['title']}Patch", "properties": properties}
        return reference(f"{kind.__name__}Patch")


def inline(kind: type[Struct]) -> JsonObject:
    """Return the schema of a struct without making it a component."""
    return dict(components_of(kind)[1][kind.__name__])


def components_of(kind: Any) -> tuple[JsonObject, dict[str, JsonObject]]:
    (schema,), components = msgspec.json.schema_components([kind], ref_template=COMPONENTS + "{name}")
    for struct in structs_in(kind):
        properties = components.get(struct.__name__, {}).get("properties", {})
        for name, text in (field_docs(struct) | {struct.__struct_config__.tag_field: "Says what it is."}).items():
            if name in properties:
                properties[name]["description"] = text
    for (name, field), closer in REFINEMENTS.items():
        if name in components:
            components[name]["properties"][field] |= closer
    return portable(schema), {name: portable(component) for name, component in components.items()}


def structs_in(kind: Any) -> set[type[Struct]]:
    structs: set[type[Struct]] = set()
    left = [kind]
    while left:
        one = left.pop()
        if isinstance(one, type) and issubclass(one, Struct) and one not in structs:
            structs.add(one)
            left += [field.type for field in msgspec.structs.fields(one)]
        left += get_args(one)
    return structs


@cache
def field_docs(struct: type[Struct]) -> dict[str, str]:
    """Return the docstrings of a struct's fields, inherited ones included, by their names in JSON."""
    docs: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        docs |= docs_in(base.__module__).get(base.__name__, {})
    names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    return {names[name]: text for name, text in docs.items() if name in names}


@cache
def docs_in(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of a module's classes; none for modules other than our own."""
    if not module.startswith("voicemem."):
        return {}
    docs: dict[str, dict[str, str]] = defaultdict(dict)
    for kind in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(kind, ast.ClassDef):
            for pair in pairwise(kind.body):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        docs[kind.name][name] = " ".join(text.split())
    return docs


def portable(schema: Any) -> Any:
    """Make a schema readable for every tool: `$` for Python's `\\Z`; `items` for every array, without `items: false`.

    The latter is for arrays with `maxItems`, which says the same.
    """
    match schema:
        case list():
            return [portable(item) for item in schema]
        case dict():
            filled: JsonObject = {"items": {}} if schema.get("type") == "array" and "prefixItems" not in schema else {}
            is_closed = schema.get("items") is False and "maxItems" in schema
            return filled | {key: portable(schema[key]) for key in schema if not (is_closed and key == "items")}
        case str():
            return schema.removesuffix(r"\Z") + "$" if schema.endswith(r"\Z") else schema
    return schema


def in_words(field: JsonObject) -> JsonObject:
    """Put a field's default in words: for generators of TypeScript a field with a `default` is a required one.

    A default of null says nothing more than that the field may be left out.
    """
    described = {key: value for key, value in field.items() if key != "default"}
    default = field.get("default")
    if default in (None, [], {}) or "$ref" in field:
        return described
    text = f"{field.get('description', '')} Default: {msgspec.json.encode(default).decode()}."
    return described | {"description": text.strip()}


def nullable(value: JsonObject, names: Collection[str] = ()) -> JsonObject:
    """Return a field's schema without its default that also allows null; `names` are references to later patches."""
    value = {key: item for key, item in value.items() if key != "default"}
    if value.get("$ref") in names:
        value["$ref"] += "Patch"
    inner = value.get("additionalProperties")
    if isinstance(inner, dict):
        value["additionalProperties"] = nullable(inner, names)
    if {"type": "null"} in value.get("anyOf", ()):
        return value
    about = {"description": value.pop("description")} if "description" in value else {}
    return {"anyOf": [value, {"type": "null"}]} | about


def without_null(value: JsonObject) -> JsonObject:
    """Turn the schema of a field into that of a query parameter, which is left out instead of null."""
    value = {key: item for key, item in value.items() if key != "default" or item is not None}
    choices: list[JsonObject] = [choice for choice in value.pop("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        return choices[0] | value
    return value | {"anyOf": choices} if choices else value


VERSION = "3.1.0"
ROOT = ("/",)
ABOUT = """The memory of voice agents. Times are Unix ms. A read shows everything that was acknowledged before it.

Callers need a key with the scope that an operation names, or for the paths of one session a session token; a service
without keys is open to loopback. Besides what the schemas say: a body may be at most 1 MiB and nested at most 32 deep,
a text at most 256 KiB of UTF-8, integers are within ±2^53, and a query parameter may be given only once."""
TEXT, DIGITS = {"type": "string"}, {"type": "string", "pattern": "^[0-9]+$"}
FAILED = "The reply's `item`; left out when only the failure message was spoken."
SECONDS = "With `rate_limited` and `quota_exceeded`: seconds to wait, where that is known."
IGNORED = "The request's messages that the memory does not have and could not take."
HEADERS = {
    "X-Voicemem-Session": {"description": "The session of the reply.", "required": True, "schema": TEXT},
    "Voicemem-Turn-Id": {"description": "The turn of the reply.", "required": True, "schema": DIGITS},
    "Voicemem-Item": {"description": FAILED, "required": False, "schema": TEXT},
    "Voicemem-Ignored": {"description": IGNORED, "required": False, "schema": TEXT},
    "ETag": {"description": "Changes whenever the answer does.", "required": True, "schema": TEXT},
    "Retry-After": {"description": SECONDS, "required": False, "schema": DIGITS},
    "WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}},
}
IF_NONE_MATCH = ("If-None-Match", "ETags of answers that the caller already has.")
IF_NEW = ("If-None-Match", "`*`: only if the document was never updated.")
IF_MATCH = ("If-Match", "ETags of versions; the request only succeeds if the document has one of them.")


def openapi_json(routes: Iterable[Route[Any]]) -> bytes:
    routes = list(routes)
    tags = dict.fromkeys(map(tag_of, routes))
    lenient = (route.body for route in routes if route.body is not None and route.method != "PATCH")
    schemas = Schemas(bodies=[kind for body in lenient for kind in body.contents.values()])
    paths: defaultdict[str, JsonObject] = defaultdict(dict)
    for route in routes:
        below = [other for other in routes if other.path.startswith(f"{route.path}/{{")]
        paths[route.path][route.method.lower()] = operation(route, below, schemas)
    return msgspec.json.encode(
        {
            "openapi": VERSION,
            "info": {
                "title": "voicemem",
                "version": __version__,
                "description": ABOUT,
                "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "tags": [tag._asdict() for tag in tags],
            "paths": paths,
            "components": {
                "securitySchemes": {name: scheme for route in routes for name, scheme in route.schemes.items()},
                "schemas": schemas.components,
            },
        }
    )


def tag_of(route: Route[Any]) -> Tag:
    module = sys.modules[route.handler.__module__]
    return route.tag or Tag(module.__name__.rpartition(".")[2], inspect.getdoc(module) or "")


def id_of(route: Route[Any]) -> str:
    return route.operation_id or str(getattr(route.handler, "__name__", ""))


def operation(route: Route[Any], below: list[Route[Any]], schemas: Schemas) -> JsonObject:
    """Describe a route; `below` are the routes whose paths begin with its own."""
    summary, _, more = (route.about or inspect.getdoc(route.handler) or "").partition("\n")
    headers = [IF_NONE_MATCH] if 304 in route.answers else []
    headers += [IF_MATCH, IF_NEW] if "precondition_failed" in route.codes else []
    if route.query.__struct_fields__:
        more = f"{more.strip()}\n\n{inspect.getdoc(route.query)}"
    described: JsonObject = {
        "operationId": id_of(route),
        "tags": [tag_of(route).name],
        "summary": summary,
        "description": more.strip(),
        "security": [{scheme: [route.scope]} for scheme in route.schemes] if route.scope else [],
        "servers": [{"url": server} for server in route.servers] if route.servers != ROOT else [],
        "parameters": [
            *parameters_of(route, schemas),
            *({"name": name, "in": "header", "description": text, "schema": TEXT} for name, text in headers),
        ],
        "responses": responses_of(route, below, schemas),
    }
    if route.body is not None:
        described["requestBody"] = {"required": route.body.required, "content": contents(route.body, schemas)}
    return {key: value for key, value in described.items() if value or key == "security"}


def contents(spec: BodySpec | ResponseSpec, schemas: Schemas) -> JsonObject:
    return {media_type: {"schema": schemas.of(kind)} for media_type, kind in spec.contents.items()}


def parameters_of(route: Route[Any], schemas: Schemas) -> Iterator[JsonObject]:
    placeholders = {**PLACEHOLDERS, **route.placeholders}
    for name in re.findall(r"{(\w+)}", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": schemas.of(placeholders[name])}
    schema = inline(route.query)
    for name, value in schema["properties"].items():
        yield {"name": name, "in": "query", "required": name in schema["required"], "schema": without_null(value)}


def responses_of(route: Route[Any], below: list[Route[Any]], schemas: Schemas) -> JsonObject:
    responses: JsonObject = {}
    for status, answer in route.answers.items():
        parameters = {"id": f"$response.body#/{answer.id_field}"}
        links = {id_of(other): {"operationId": id_of(other), "parameters": parameters} for other in below}
        response = {
            "description": HTTPStatus(status).phrase,
            "headers": {name: HEADERS[name] for name in answer.headers},
            "content": contents(answer, schemas),
            "links": links if answer.id_field is not None else {},
        }
        responses[str(status)] = {key: value for key, value in response.items() if value}
    by_status: defaultdict[int, list[str]] = defaultdict(list)
    for code in sorted(codes_of(route)):
        by_status[route.errors.status_of(code)].append(code)
    for status, codes in sorted(by_status.items()):
        responses[str(status)] = error_response(route, status, codes, schemas)
    return responses


def error_response(route: Route[Any], status: int, codes: list[str], schemas: Schemas) -> JsonObject:
    errors, kind = route.errors, route.error_kinds.get(status, route.errors.kind)
    properties: JsonObject = {"reason": {"enum": sorted({errors.reason_of(code) for code in codes})}}
    if "status" in kind.__struct_fields__:
        properties["status"] = {"enum": [status]}
    # In `allOf`, since generators of clients ignore everything beside a `$ref`.
    narrower = {"type": "object", "properties": properties}
    response: JsonObject = {
        "description": "\n".join(f"- `{errors.reason_of(code)}`: {CODES[code].sentence}" for code in codes),
        "content": {errors.media_type: {"schema": {"allOf": [schemas.of(kind), narrower]}}},
    }
    if {"rate_limited", "quota_exceeded"} & set(codes):
        response["headers"] = {"Retry-After": HEADERS["Retry-After"]}
    if status == HTTPStatus.UNAUTHORIZED:
        response["headers"] = {"WWW-Authenticate": HEADERS["WWW-Authenticate"]}
    return response


def codes_of(route: Route[Any]) -> set[str]:
    """Return the codes of all errors that a route may answer: those implied by its parts, and its own."""
    codes = {"invalid_http", "invalid_query", "foreign_host", "foreign_origin", "internal", *route.codes}
    if route.scope is not None:
        codes |= {"unauthorized", "token_expired", "forbidden", "rate_limited", "store_unavailable"}
    if "{" in route.path:
        codes |= {"invalid_field", "not_found"}
    if "/sessions/{id}" in route.path:
        codes |= {"unknown_session"}
    if route.body is not None:
        codes |= {"invalid_json", "too_deep", "not_events", "too_big", "timeout"}
    return codes
