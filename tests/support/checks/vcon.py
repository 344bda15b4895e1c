"""What draft-ietf-vcon-vcon-core-04 demands of a vCon of texts in its unsigned form."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

KNOWN = {
    "vcon": {"vcon", "uuid", "extensions", "critical", "created_at", "updated_at", "subject", "redacted", "amended",
             "parties", "dialog", "analysis", "attachments"},
    "party": {"tel", "sip", "stir", "mailto", "name", "did", "validation", "gmlpos", "civicaddress", "uuid", "type",
              "org", "dept"},
    "dialog": {"type", "start", "duration", "parties", "originator", "mediatype", "filename", "body", "encoding",
               "url", "content_hash", "session_id", "party_history", "application", "message_id"},
    "analysis": {"type", "dialog", "mediatype", "filename", "vendor", "product", "schema", "body", "encoding", "url",
                 "content_hash"},
}  # fmt: skip
"""The parameters that the core has for each kind of object; any other would need an extension."""


def check_vcon(one: dict[str, Any]) -> None:
    """Raise `AssertionError` where a vCon is not what the draft says."""
    assert KNOWN["vcon"] >= set(one)
    assert one["vcon"] == "0.4.0"
    assert uuid.UUID(one["uuid"]).version == 8
    assert uuid.UUID(one["uuid"]).variant == uuid.RFC_4122
    for name in ("created_at", "updated_at"):
        check_date(one[name])
    for party in one["parties"]:
        assert KNOWN["party"] >= set(party)
        assert all(isinstance(value, str) for value in party.values())
        assert ("name" in party) == ("validation" in party)
    for dialog in one["dialog"]:
        check_dialog(dialog, len(one["parties"]))
    for analysis in one["analysis"]:
        check_analysis(analysis, len(one["dialog"]))


def check_dialog(dialog: dict[str, Any], parties: int) -> None:
    assert KNOWN["dialog"] >= set(dialog)
    check_date(dialog["start"])
    assert dialog.get("duration", 0) >= 0
    assert all(0 <= party < parties for party in dialog["parties"])
    if dialog["type"] == "recording":
        assert dialog["url"].startswith(("http://", "https://"))
        return
    assert dialog["type"] == "text"
    assert ("text/plain", "none", str) == (dialog["mediatype"], dialog["encoding"], type(dialog["body"]))


def check_analysis(analysis: dict[str, Any], dialogs: int) -> None:
    assert KNOWN["analysis"] >= set(analysis)
    places = analysis["dialog"] if isinstance(analysis["dialog"], list) else [analysis["dialog"]]
    assert all(0 <= place < dialogs for place in places)
    assert all(analysis[name] for name in ("type", "vendor", "product", "mediatype", "body"))
    assert analysis["encoding"] in ("json", "none")
    assert isinstance(analysis["body"], str) == (analysis["encoding"] == "none")


def check_date(text: str) -> None:
    """RFC 3339, with an offset."""
    assert datetime.fromisoformat(text).tzinfo is not None
