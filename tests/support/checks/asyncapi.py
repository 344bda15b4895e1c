"""The AsyncAPI document, and the messages of its operations."""

from __future__ import annotations

import json
from functools import cache

from voicemem.protocol.types import JsonObject
from voicemem.server.rest.asyncapi import asyncapi_json


@cache
def described() -> JsonObject:
    return dict(json.loads(asyncapi_json()))


def messages_of(*operations: str, answers: bool = False) -> list[str]:
    """The names of the messages that come by some operations, or answer them."""
    found = [described()["operations"][name] for name in operations]
    lists = [one.get("reply", {}).get("messages", []) if answers else one["messages"] for one in found]
    return [one["$ref"].rpartition("/")[2] for some in lists for one in some]
