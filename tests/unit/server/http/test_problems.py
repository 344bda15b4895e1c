"""Codes of errors and their problem documents."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from http import HTTPStatus

from tests.support.rows import every_row
from voicemem.errors import CODES
from voicemem.server.http.problems import problem_body


@every_row("code", CODES)
def test_every_code_has_a_problem_document(code: str) -> None:
    """Each says its status in numbers and words, and its code as type and reason."""
    document = json.loads(problem_body(code, CODES[code].sentence))
    status = CODES[code].status
    assert ["type", "title", "status", "detail", "reason"] == list(document)
    assert (status, HTTPStatus(status).phrase, code) == (document["status"], document["title"], document["reason"])
    assert document["type"].endswith(f":{code}")
    assert document["detail"].endswith(".")


@every_row("code", CODES)
def test_errors_have_error_statuses_and_private_close_codes(code: str) -> None:
    """An error is a 4xx or 5xx; what closes a websocket does so with a code that may be sent."""
    assert 400 <= CODES[code].status < 600
    assert CODES[code].close in (None, 1003, 1007, 1008, 1009, 1011, 1012, 1013)
