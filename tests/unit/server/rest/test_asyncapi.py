"""The AsyncAPI document is valid and whole."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from tests.support.checks.asyncapi import described, messages_of
from tests.support.paths import TESTS
from voicemem.errors import CODES
from voicemem.protocol.events import IncomingEvent
from voicemem.protocol.frames import Frame
from voicemem.version import __version__


def test_the_document_is_valid() -> None:
    """It is AsyncAPI 3.0, and each of its schemas JSON Schema."""
    official = json.loads((TESTS / "unit/server/rest/asyncapi-3.0.0.json").read_text("utf-8"))
    jsonschema_rs.Draft7Validator(official).validate(described())
    assert ("3.0.0", __version__) == (described()["asyncapi"], described()["info"]["version"])
    for schema in described()["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "http://json-schema.org/draft-07/schema#", **schema})


def test_the_check_of_the_document_can_fail() -> None:
    """An operation that is no operation, and a server without a protocol, are noticed."""
    official = jsonschema_rs.Draft7Validator(
        json.loads((TESTS / "unit/server/rest/asyncapi-3.0.0.json").read_text("utf-8"))
    )
    operation = {**described()["operations"]["open"], "action": "publish"}
    assert not official.is_valid({**described(), "operations": {"open": operation}})
    assert not official.is_valid({**described(), "servers": {"ingest": {"host": "localhost"}}})


def test_every_reference_leads_somewhere() -> None:
    """Each `$ref` names something in the document."""

    def follow(value: Any) -> None:
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            follow(inner)
        if isinstance(value, dict) and isinstance(value.get("$ref"), str):
            found: Any = described()
            for step in value["$ref"].removeprefix("#/").split("/"):
                found = found[step]

    follow(described())


def test_every_type_of_frame_is_in_it() -> None:
    """What may arrive and what is sent, and nothing else, besides several events together."""
    kinds = (*IncomingEvent.__args__, *Frame.__args__)
    assert {"events", *(str(kind.__struct_config__.tag) for kind in kinds)} == set(
        described()["components"]["messages"]
    )
    used = {*messages_of(*described()["operations"]), *messages_of(*described()["operations"], answers=True)}
    assert used == set(described()["channels"]["ingest"]["messages"]) == set(described()["components"]["messages"])


def test_every_close_code_is_in_it() -> None:
    """Each code that closes a connection stands with its number."""
    text = described()["channels"]["ingest"]["description"]
    assert [] == [name for name, code in CODES.items() if code.close and f"{code.close} `{name}`" not in text]
