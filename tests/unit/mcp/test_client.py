"""What goes wrong, as an LLM reads it."""

from __future__ import annotations

from tests.support.rows import every_row
from voicemem.client.errors import ClientError, RequestRefused, Unreachable
from voicemem.errors import CODES
from voicemem.mcp.client import ADVICE, sentence_of


def test_an_absent_service_is_told_apart_by_what_was_to_be_done() -> None:
    """After a read there is nothing to fear; after a write it is not certain what became of it."""
    away = Unreachable("GET http://10.0.0.1: timed out.", "timed out after 10 s")
    assert "Go on without the memory" in sentence_of(away)
    assert "not certain whether this was done" in sentence_of(away, writes=True)
    assert "10.0.0.1" not in sentence_of(away)


@every_row("code", sorted(CODES))
def test_every_code_gives_whole_sentences(code: str) -> None:
    """What the service says, and what to do where that does not say it."""
    said = sentence_of(RequestRefused(code, CODES[code].sentence.rstrip(".")))
    assert said.endswith(".")
    assert ".." not in said


def test_advice_is_for_codes_that_there_are() -> None:
    """A code that has gone leaves the list."""
    assert set() == ADVICE.keys() - CODES.keys()


def test_a_key_that_does_not_work_is_no_reason_to_try_again() -> None:
    """Neither a wrong one nor an expired token."""
    for code in ("unauthorized", "token_expired"):
        assert "Trying again will not help" in sentence_of(ClientError(code, "x"))
