"""The OpenAPI document is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.checks.openapi import check_response, component, openapi_document
from tests.support.rows import every_row
from voicemem.compat import agora
from voicemem.config.session import SECRETS
from voicemem.protocol.codec import METADATA_ORDER
from voicemem.protocol.types import JsonObject
from voicemem.server import rest
from voicemem.server.http.openapi import codes_of, openapi_json
from voicemem.server.http.routes import Route

EVERY = (*rest.ROUTES, *agora.DOCUMENTED)


def operation(route: Route[Any]) -> JsonObject:
    return dict(openapi_document()["paths"][route.path][route.method.lower()])


@every_row("route", EVERY, ids=lambda route: f"{route.method} {route.path}")
def test_every_operation_is_described(route: Route[Any]) -> None:
    """It has a summary, its parameters, its scope, and its body."""
    found = operation(route)
    assert found["summary"].endswith(".")
    assert ([{scheme: [route.scope]} for scheme in route.schemes] if route.scope else []) == found["security"]
    assert set(route.schemes) <= set(openapi_document()["components"]["securitySchemes"])
    named = {(one["in"], one["name"]) for one in found.get("parameters", ()) if one["in"] != "header"}
    paths = {("path", name) for name in re.findall(r"{(\w+)}", route.path)}
    assert paths | {("query", name) for name in route.query.__struct_fields__} == named
    assert (set(route.body.contents) if route.body else set()) == set(found.get("requestBody", {}).get("content", ()))


@every_row("route", EVERY, ids=lambda route: f"{route.method} {route.path}")
def test_every_error_of_an_operation_is_described(route: Route[Any]) -> None:
    """Each code stands with its status, and only there; no status is both an answer and an error."""
    told = {
        status: response["content"][route.errors.media_type]["schema"]["allOf"][1]["properties"]["reason"]["enum"]
        for status, response in operation(route)["responses"].items()
        if int(status) >= 400
    }
    expected: dict[str, set[str]] = {}
    for code in codes_of(route):
        expected.setdefault(str(route.errors.status_of(code)), set()).add(route.errors.reason_of(code))
    assert expected == {status: set(reasons) for status, reasons in told.items()}
    assert all(status < 400 for status in route.answers)


def test_operations_are_told_apart() -> None:
    """Each has an id of its own, for generated clients."""
    ids = [operation(route)["operationId"] for route in EVERY]
    assert len(EVERY) == len(set(ids))


def test_tags_name_resources() -> None:
    """Generated clients have a module for each, wherever its handlers are; each is described once."""
    tags = [tag["name"] for tag in openapi_document()["tags"] if tag["description"].endswith(".")]
    assert sorted({*tags}) == sorted(tags)
    operations = [one for methods in openapi_document()["paths"].values() for one in methods.values()]
    assert {tag for one in operations for tag in one["tags"]} == set(tags)
    of = {route.path: operation(route)["tags"] for route in EVERY}
    assert of["/v1/sessions/{id}/export"] == of["/v1/exports"] == ["exports"]
    assert of["/v1/hooks"] == of["/v1/hooks/{dialect}"] == of["/v1/hooks/{dialect}/secret"] == ["hooks"]
    assert of["/v1/sessions/{id}/observe"] == ["observations"]


def test_no_type_hides_another() -> None:
    """Types of the same name would be one component: REST's are the same with Agora's beside them."""
    alone = json.loads(openapi_json(rest.ROUTES))["components"]["schemas"]
    agoras = json.loads(openapi_json(agora.DOCUMENTED))["components"]["schemas"]
    both = openapi_document()["components"]["schemas"]
    assert alone == {name: both[name] for name in alone}
    assert agoras == {name: both[name] for name in agoras}


def test_what_was_made_can_be_called() -> None:
    """A new session's links lead to every path below it, by its id."""
    below = {operation(route)["operationId"] for route in rest.ROUTES if route.path.startswith("/v1/sessions/{id}")}
    for status in ("200", "201"):
        links = openapi_document()["paths"]["/v1/sessions"]["post"]["responses"][status]["links"]
        assert below == {link["operationId"] for link in links.values()}
        assert [{"id": "$response.body#/session_id"}] * len(below) == [link["parameters"] for link in links.values()]


def test_secrets_are_only_ever_written() -> None:
    """What is taken out of a configuration is marked as such, wherever a configuration stands."""
    schemas = openapi_document()["components"]["schemas"]
    for suffix in ("", "Patch"):
        for section, key in SECRETS:
            marked = schemas[f"{section.title()}Config{suffix}"]["properties"][key]
            assert True is marked.get("writeOnly", marked.get("anyOf", [{}])[0].get("writeOnly"))


def test_null_is_documented_where_it_is_taken() -> None:
    """In bodies of POST and PUT: where a field may be left out, and nothing wider happens without it."""

    def refusing_null(name: str) -> set[str]:
        properties = openapi_document()["components"]["schemas"][name]["properties"]
        return {field for field, value in properties.items() if {"type": "null"} not in value.get("anyOf", ())}

    assert set() == refusing_null("NewKey")
    assert {"arguments", "result"} == refusing_null("Added")  # of any type
    assert {"query", "user_id", "session_id", "namespace"} == refusing_null("MemorySearch")
    assert {"through_turn", "keep_last", "everything"} == refusing_null("ForgetRequest")


def arrays(schema: Any) -> Iterator[JsonObject]:
    """Every array in a schema, however deep."""
    if isinstance(schema, dict) and schema.get("type") == "array":
        yield schema
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from arrays(value)


def test_every_array_says_what_is_in_it() -> None:
    """Generators of clients leave out whatever has an array without `items`."""
    found = list(arrays(openapi_document()))
    assert len(found) > 10
    assert [array for array in found if not {"items", "prefixItems"} & array.keys()] == []


def test_metadata_is_described_whole() -> None:
    """Every key that voicemem writes has its schema."""
    assert set(METADATA_ORDER) == set(openapi_document()["components"]["schemas"]["Metadata"]["properties"])


def test_a_patch_may_take_away_whatever_can_be_set() -> None:
    """Null is valid for every setting of a patch, and not for one that is shown."""
    everything = openapi_document()["components"]["schemas"]["SessionConfig"]["properties"]
    nothing = dict.fromkeys(everything)
    assert component("GivenConfigPatch").is_valid(nothing)
    assert not component("SessionConfig").is_valid(nothing)
    assert component("GivenConfigPatch").is_valid({"llm": dict.fromkeys(["params", "url"]), "labels": {"a": None}})
    assert not component("GivenConfigPatch").is_valid({"llm": {"system_messages": [{"role": None}]}})


WRONG = {
    "a status that is not documented": (418, {}, b""),
    "another content type": (200, {"Content-Type": "text/html", "ETag": "1"}, b"{}"),
    "a header that is missing": (200, {"Content-Type": "application/json"}, b"{}"),
    "a body that is not of the type": (200, {"Content-Type": "application/json", "ETag": "1"}, b"{}"),
    "a body where there is none": (304, {"ETag": "1"}, b"{}"),
    "a reason of another status": (
        404,
        {"Content-Type": "application/problem+json"},
        b'{"type":"t","title":"t","status":404,"detail":"d","reason":"forbidden"}',
    ),
}


@every_row("answer", WRONG.values(), ids=WRONG)
def test_an_answer_that_is_not_documented_is_noticed(answer: tuple[int, JsonObject, bytes]) -> None:
    """The check that all callers make can fail."""
    with pytest.raises(AssertionError):
        check_response("GET", "/v1/sessions/s/history?limit=1", *answer)
