"""The rules of redaction that the settings name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.rows import every_row
from voicemem.config.service import Settings, check_service_settings
from voicemem.errors import CannotStart
from voicemem.redaction.digit_runs import Limit
from voicemem.redaction.texts import Rules
from voicemem.sessions.recording.redaction import load_rules

MODULE = """
def names(text):
    return [(0, 4)] if text.startswith("Anna") else []
def everything(text):
    return [(0, 1)]
def broken(text):
    raise ValueError
nothing = 5
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's module."""
    (tmp_path / "own_redaction.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_redaction", raising=False)


@pytest.mark.parametrize(
    ("names", "limit", "email"),
    [
        (("cards",), Limit(6), False),
        (("phone", "cards"), Limit(4), False),
        (("cards", "phone", "otp", "email"), Limit(2, codes=True), True),
        (("email",), None, True),
    ],
)
def test_the_strictest_rule_counts(names: tuple[str, ...], limit: Limit | None, email: bool) -> None:
    """Of several rules for runs of digits the one that keeps least holds."""
    assert load_rules(Settings(redact=names)) == Rules(limit, email)


def test_nothing_is_redacted_by_default() -> None:
    """Without the setting there are no rules, and nothing is looked at."""
    assert load_rules(Settings()) is None


def test_an_own_rule_is_imported() -> None:
    """MODULE:FUNCTION names a function of the operator's."""
    rules = load_rules(Settings(redact=("cards", "own_redaction:names")))
    assert rules is not None
    assert [[*find("Anna B.")] for find in rules.finders] == [[(0, 4)]]


@pytest.mark.parametrize("name", ["everything", "broken", "nothing", "missing"])
def test_an_own_rule_that_does_not_work_prevents_the_start(name: str) -> None:
    """It is imported and tried on an empty text at the start."""
    with pytest.raises(CannotStart, match=f"own_redaction:{name} cannot be used"):
        load_rules(Settings(redact=(f"own_redaction:{name}",)))


@every_row("name", ["card", "", "a b", "module:", "module:1x", "../x:y"])
def test_unknown_names_prevent_the_start(name: str) -> None:
    """The sentence names what is known."""
    with pytest.raises(CannotStart, match="known are cards, otp, email, phone"):
        check_service_settings(Settings(redact=(name,)))
