"""Secrets in a configuration: taken out, replaced, never shown."""

from __future__ import annotations

from base64 import b64encode
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.config.session import changes_outbound, check_webhook_secret, patch_changes_outbound, validate_config
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

URL = "https://public.example/"
SYSTEM = {"role": "system", "content": "Be brief."}


# What a configuration may hold


def test_a_webhook_secret_that_is_no_base64_is_refused() -> None:
    """After `whsec_` receivers expect base64; other secrets are taken as they are."""
    with pytest.raises(Refused, match="must be base64"):
        validate_config({"webhook": {"url": URL, "secret": "whsec_notbase64"}})
    assert validate_config({"webhook": {"secret": "notbase64"}}).secrets == {"webhook.secret": "notbase64"}


# Secrets


def test_secrets_are_taken_out() -> None:
    """Keys and webhook secrets are kept apart, by where they stood."""
    settled = validate_config({"llm": {"model": "m", "api_key": "k1"}, "webhook": {"url": URL, "secret": "s1"}})
    assert settled.secrets == {"llm.api_key": "k1", "webhook.secret": "s1"}
    assert settled.public == {"llm": {"model": "m"}, "webhook": {"url": URL}}


def test_patch_may_take_a_secret_away() -> None:
    """Null for a secret is no value of it."""
    settled = validate_config({"llm": {"api_key": None}})
    assert (settled.secrets, settled.public) == ({"llm.api_key": None}, {"llm": {}})


@pytest.mark.parametrize(
    ("section", "names"), [("llm", ["llm.api_key", "llm.headers"]), ("webhook", ["webhook.secret"])]
)
def test_patch_that_takes_a_section_away_takes_its_secrets(section: str, names: list[str]) -> None:
    """A secret does not stay behind when all that it stood in is removed."""
    assert validate_config({section: None}).secrets == dict.fromkeys(names)


def test_headers_are_secret_and_replaced_whole() -> None:
    """Headers are kept apart as one text, the same for the same headers; what a patch nulls among them is not there."""
    settled = validate_config({"llm": {"headers": {"X-B": "2", "X-A": "1", "X-C": None}}})
    assert (settled.secrets, settled.public) == ({"llm.headers": '{"X-A":"1","X-B":"2"}'}, {"llm": {}})
    assert validate_config({"llm": {"headers": None}}).secrets == {"llm.headers": None}


@every_row(
    "headers",
    [
        {"X A": "1"},
        {"": "1"},
        {"X-A:": "1"},
        {"X-A": "1\r\nX-B: 2"},
        {"X-A": "é"},
        {"X-A": 1},
        {"X\n": "1"},
        "X-A: 1",
        [],
    ],
)
def test_what_cannot_be_headers_is_refused(headers: Any) -> None:
    """Names are tokens, values printable ASCII: nothing can break out of its line."""
    with pytest.raises(Refused) as refused:
        validate_config({"llm": {"headers": headers}})
    assert refused.value.code == "invalid_field"


@given(st.text(min_size=8))
def test_no_secret_is_left_in_what_is_shown(secret: str) -> None:
    """What is public does not hold a secret, whatever it looks like."""
    given = {"llm": {"api_key": secret, "model": "m"}, "webhook": {"secret": secret}}
    settled = validate_config(given)
    assert settled.public == {"llm": {"model": "m"}, "webhook": {}}
    assert set(settled.secrets.values()) == {secret}


def test_settling_leaves_its_argument() -> None:
    """What was given is not changed."""
    given: JsonObject = {"llm": {"api_key": "k"}, "system_messages": [SYSTEM], "webhook": {"secret": "s"}}
    before = deepcopy(given)
    validate_config(given)
    assert given == before


CALLING_OUT: list[JsonObject] = [
    {"llm": {"url": URL}},
    {"llm": {"api_key": "k"}},
    {"llm": {"api_key": None}},
    {"llm": None},
    {"webhook": {"url": URL}},
    {"webhook": {"secret": "s"}},
    {"webhook": {"contents": "full"}},
    {"webhook": None},
]


@every_row("given", CALLING_OUT, ids=str)
def test_settings_that_call_out_are_known(given: JsonObject) -> None:
    """Addresses and secrets need the scope `admin`, before and after the secrets are taken out."""
    assert changes_outbound(given)
    assert patch_changes_outbound(validate_config(given))


@pytest.mark.parametrize("given", [{}, {"llm": {"model": "m"}}, {"name": "n", "labels": {"url": "u"}}])
def test_other_settings_do_not_call_out(given: JsonObject) -> None:
    """Names, labels and models make the server call no one."""
    assert not changes_outbound(given)
    assert not patch_changes_outbound(validate_config(given))


WHSEC = "whsec_" + b64encode(bytes(range(32))).decode()


@every_row("secret", ["whsec_not base64!", "whsec_hidden!", "whsec_ab-_", "whsec_a", "whsec_ü", "whsec_"])
def test_a_new_secret_that_looks_like_base64_and_is_none_is_refused(secret: str) -> None:
    """Receivers of Standard Webhooks could not verify with it; the sentence does not show it."""
    with pytest.raises(Refused) as refused:
        check_webhook_secret(secret)
    assert refused.value.code == "invalid_field"
    assert "hidden" not in refused.value.detail


@every_row("secret", [None, "", "plain", "whsec", WHSEC, WHSEC.rstrip("=")])
def test_other_secrets_are_taken(secret: str | None) -> None:
    """Base64 after `whsec_`, and any other text."""
    check_webhook_secret(secret)
