"""Questions at the start of a call: what is read of them, who has signed them, answers against vendors' types."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import time
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.callers.call_starts import SECRETS, STARTS, credential_of, start_of
from tests.support.rows import every_row
from voicemem.dialects.call_starts import CALL_STARTS, StartAnswer, Variables, check_public_key
from voicemem.dialects.caller_fields import Caller
from voicemem.protocol.types import JsonObject

NUMBER = "+4915112345678"
VARIABLES: Variables = {"memory": "It is known.", "open": True, "lines": 3, "rate": 0.5}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def now_ms() -> int:
    return int(time.time() * 1000)


@every_row("dialect", STARTS)
def test_a_question_says_who_calls(dialect: str) -> None:
    """The caller's number, and not that of the agent."""
    start = CALL_STARTS[dialect].read(STARTS[dialect](NUMBER))
    assert start is not None
    assert (None, NUMBER) == start.caller[:2]


def test_vapi_also_says_which_user() -> None:
    """As the customer has it, or the call; a number is no user's id."""
    asked = STARTS["vapi"](NUMBER)
    for place in (asked["message"]["customer"], asked["message"]["call"]["customer"]):
        place["externalId"] = "ann"
        start = CALL_STARTS["vapi"].read(asked)
        assert start is not None
        assert ("ann", NUMBER) == start.caller[:2]
        place["externalId"] = NUMBER
        start = CALL_STARTS["vapi"].read(asked)
        assert start is not None
        assert start.caller.user is None
        del place["externalId"]


@given(JSON, st.sampled_from(sorted(STARTS)), st.data())
def test_anything_may_stand_in_a_question(value: Any, dialect: str, data: st.DataObject) -> None:
    """What is not as it should be says nothing of a caller; it is answered all the same."""
    asked = STARTS[dialect](NUMBER)
    holders = [one for one in (asked, *inner(asked)) if isinstance(one, dict)]
    holder = data.draw(st.sampled_from(holders))
    holder[data.draw(st.sampled_from(sorted(holder)))] = value
    start = CALL_STARTS[dialect].read(asked)
    if start is not None:
        assert isinstance(start.caller, Caller)
        assert isinstance(CALL_STARTS[dialect].answer(start, StartAnswer(VARIABLES)), dict)


def inner(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [found for item in items for found in (item, *inner(item))]


@every_row("dialect", STARTS)
def test_mark_is_in_every_question(dialect: str) -> None:
    """A body without it is not read."""
    assert CALL_STARTS[dialect].mark in start_of(dialect, NUMBER)


@every_row("dialect", STARTS)
def test_other_webhooks_are_no_question(dialect: str) -> None:
    """Nor is what looks like one a little."""
    bodies: list[JsonObject] = [
        {},
        {"event": "call_ended"},
        {"message": {"type": "transcript"}},
        {"data": []},
        {"type": "x"},
    ]
    for body in bodies:
        assert CALL_STARTS[dialect].read(body) is None


@every_row("age_s, valid", [(0, True), (299, True), (-299, True), (301, False), (-301, False)])
def test_signatures_of_telnyx_have_a_time(age_s: int, valid: bool) -> None:
    """Five minutes before and after, as in Telnyx' SDK."""
    body = start_of("telnyx", NUMBER)
    headers = {name.lower(): value for name, value in credential_of("telnyx", body, age_s=age_s).items()}
    verify = CALL_STARTS["telnyx"].verify
    assert valid == verify(body, headers, SECRETS["telnyx"], now_ms())
    assert not verify(body + b" ", headers, SECRETS["telnyx"], now_ms())
    for change in ({"telnyx-timestamp": "1" * 400}, {"telnyx-timestamp": "١"}, {"telnyx-signature-ed25519": "AAAA"}):
        assert not verify(body, headers | change, SECRETS["telnyx"], now_ms())
    assert not verify(body, {}, SECRETS["telnyx"], now_ms())
    assert not verify(body, headers, "", now_ms())


def test_a_public_key_is_32_bytes_in_base64() -> None:
    """Nothing else can verify a signature of Telnyx'."""
    check_public_key(SECRETS["telnyx"])
    for secret in ("", "no key", "A" * 43, SECRETS["telnyx"][:-4], SECRETS["telnyx"] + "AAAA"):
        with pytest.raises(ValueError, match="public key"):
            check_public_key(secret)


def test_retell_takes_texts_alone() -> None:
    """Its SDK has variables of a call as a mapping of texts to texts."""
    from retell.types import call_create_phone_call_params as retell_params  # two seconds

    start = CALL_STARTS["retell"].read(STARTS["retell"](NUMBER))
    assert start is not None
    answer = CALL_STARTS["retell"].answer(start, StartAnswer(VARIABLES, "ann"))["call_inbound"]
    assert {"memory": "It is known.", "open": "true", "lines": "3", "rate": "0.5"} == answer["dynamic_variables"]
    assert {"user_id": "ann"} == answer["metadata"]
    hints = get_type_hints(retell_params.CallCreatePhoneCallParams)
    assert "Dict[str, str]" in str(hints["retell_llm_dynamic_variables"])


def test_elevenlabs_takes_texts_numbers_and_booleans() -> None:
    """Its SDK's type for what a conversation begins with reads the answer."""
    from elevenlabs.types import ConversationInitiationClientDataInternal

    start = CALL_STARTS["elevenlabs-agents"].read(STARTS["elevenlabs-agents"](NUMBER))
    assert start is not None
    answer = CALL_STARTS["elevenlabs-agents"].answer(start, StartAnswer(VARIABLES))
    assert "conversation_initiation_client_data" == answer.pop("type")
    assert VARIABLES == ConversationInitiationClientDataInternal.model_validate(answer).dynamic_variables
