"""The audit lines in a log."""

from __future__ import annotations

import json

import pytest

from voicemem.protocol.types import JsonObject

ADMIN_KEY = "the operator's own key"


def acts(caplog: pytest.LogCaptureFixture) -> list[JsonObject]:
    """The audit lines; each must be one JSON object on one line that has no secret."""
    assert "hush" not in caplog.text
    assert ADMIN_KEY not in caplog.text
    records = [record for record in caplog.records if record.name == "voicemem.audit"]
    assert {"INFO"} >= {record.levelname for record in records}
    assert not [record for record in records if "\n" in record.getMessage()]
    return [json.loads(record.getMessage()) for record in records]
