"""Every pattern of the API has its sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.routes import ROUTES
from voicemem.protocol.types import PATTERN_SENTENCES
from voicemem.server.http.openapi import openapi_json


def patterns(schema: Any) -> Iterator[str]:
    """Every pattern in a document, as Python has it."""
    if isinstance(schema, dict) and isinstance(schema.get("pattern"), str):
        yield schema["pattern"].removesuffix("$")
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from patterns(value)


def test_every_pattern_of_the_api_has_its_sentence() -> None:
    """No route shows a pattern to whoever sent something else."""
    known = {
        said.split("regex ", 1)[1][1:-1].replace("\\\\", "\\").removesuffix("\\Z").removesuffix("$")
        for said in PATTERN_SENTENCES
    }
    shown = set(patterns(json.loads(openapi_json(ROUTES)))) - {"^[0-9]+"}  # of answers
    assert len(shown) > 5
    assert shown - known == set()
