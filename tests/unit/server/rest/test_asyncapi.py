"""The AsyncAPI document is valid and whole."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from tests.support.checks.asyncapi import described, messages_of
from tests.support.dialects import RECORDINGS
from tests.support.paths import TESTS
from voicemem.dialects.registry import DIALECTS
from voicemem.errors import CODES
from voicemem.protocol.events import IncomingEvent
from voicemem.protocol.frames import Frame
from voicemem.server.ingest.dialect_connection import QUERY
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


def test_every_field_is_described() -> None:
    """What it says, its unit, and from where a time counts, stand with each field."""
    messages = [one["payload"] for one in described()["components"]["messages"].values()]
    schemas = [*described()["components"]["schemas"].values(), *messages]
    fields = [(name, field) for schema in schemas for name, field in schema.get("properties", {}).items()]
    assert len(fields) > 300
    assert [] == [name for name, field in fields if not field.get("description", "").endswith(".")]
    times = {name: field["description"] for name, field in fields if name.endswith("_ms") and name != "latency_ms"}
    assert {"audio_ms", "audio_end_ms", "total_audio_ms", "start_ms", "end_ms"} == set(times)
    assert [] == [name for name, text in times.items() if "beginning" not in text and "likewise" not in text]


def test_every_type_of_frame_is_in_it() -> None:
    """What may arrive and what is sent, and nothing else, besides several events together."""
    kinds = (*IncomingEvent.__args__, *Frame.__args__)
    events = {"events", *(str(kind.__struct_config__.tag) for kind in kinds)}
    channels = {name: set(channel["messages"]) for name, channel in described()["channels"].items()}
    assert events | {"frame.bare", "frame.envelope"} == set(described()["components"]["messages"])
    used = {*messages_of(*described()["operations"]), *messages_of(*described()["operations"], answers=True)}
    assert used == channels["ingest"] | channels["dialect"]
    assert channels["ingest"] == events | {"frame.envelope"}


def test_every_dialect_has_its_path() -> None:
    """The path of bare frames names each dialect, and what its address may say, as the server takes it."""
    channel = described()["channels"]["dialect"]
    assert channel["address"] == "/v1/ingest/{dialect}"
    assert channel["parameters"]["dialect"]["enum"] == sorted(DIALECTS)
    assert set(channel["bindings"]["ws"]["query"]["properties"]) == set(QUERY)
    token = described()["components"]["securitySchemes"]["session_token"]
    assert (token["name"], token["in"]) == ("token", "query")


def test_recorded_envelopes_are_documented() -> None:
    """Every envelope of a recorded call is one of the document's."""
    payload = described()["components"]["messages"]["frame.envelope"]["payload"]
    envelope = jsonschema_rs.Draft7Validator({"allOf": [payload], "components": described()["components"]})
    for recording in RECORDINGS:
        for sent in recording.envelopes():
            envelope.validate(sent)
    assert not envelope.is_valid({"type": "frame", "frame": {}})
    assert not envelope.is_valid({"frame": {}, "ts": "now"})


def test_every_close_code_is_in_it() -> None:
    """Each code that closes a connection stands with its number."""
    text = described()["channels"]["ingest"]["description"]
    assert [] == [name for name, code in CODES.items() if code.close and f"{code.close} `{name}`" not in text]
