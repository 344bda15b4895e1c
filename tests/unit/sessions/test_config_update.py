"""Updates of a configuration: what is refused, and where the secrets go."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.protocol.codec import DecodedEvent, decode_event, decode_journaled
from voicemem.protocol.events import SessionUpdate
from voicemem.protocol.types import JsonObject
from voicemem.sessions.recording.batches import ConfigUpdate, validated_update

SECRET = "s3cret"


def validated(update: bytes) -> ConfigUpdate:
    decoded = decode_event(update)
    assert isinstance(decoded, DecodedEvent)
    assert isinstance(decoded.event, SessionUpdate)
    return validated_update(decoded.event, decoded.payload)


@pytest.mark.parametrize("patch", [{"llm": {"api_kee": "k"}}, {"labels": {str(n): "" for n in range(65)}}], ids=str)
def test_what_cannot_be_set_is_refused(patch: JsonObject) -> None:
    """Unknown settings, and more labels than a session has."""
    with pytest.raises(Refused) as refused:
        validated(msgspec.json.encode({"type": "session.update", **patch}))
    assert refused.value.code == "invalid_field"


LEAKS: list[bytes] = [
    b'{"type":"session.update","llm":{"style":"%s"}}',
    b'{"type":"session.update","llm":{"api_key":["%s"]}}',
    b'{"type":"session.update","webhook":{"contents":"%s","secret":"%s"}}',
    b'{"type":"session.update","labels":{"%s":1}}',
]


@given(
    st.sampled_from(LEAKS),
    st.text(alphabet="'\"`$. -[]\\xyz", max_size=6),
    st.text(alphabet="'\"`$. -[]\\xyz", max_size=6),
)
def test_no_detail_holds_what_was_sent(template: bytes, before: str, after: str) -> None:
    """Quotes and brackets around a value do not bring it into a sentence."""
    text = json.dumps(before + SECRET + after)[1:-1].encode()
    with pytest.raises(Refused) as refused:
        validated(template.replace(b"%s", text))
    assert SECRET not in refused.value.detail


UPDATES: list[bytes] = [
    b'{"type":"session.update","llm":{"api_key":"sk-s3cret"}}',
    b'{"type":"session.update","llm":{"model":"m","api_key":"sk-s3cret","params":{"a":1}},"metadata":{"mood":"kept"}}',
    b'{"type":"session.update","webhook":{"url":"https://hook.example/","secret":"sk-s3cret"}}',
    b'{"type":"session.update","llm":{"api_key":"sk-\\u0073\\u0033cret"}}',
    b'{"type":"session.update","llm":{"\\u0061pi_key":"sk-s3cret"}}',
    b'{"type":"session.update","llm":{"api_key":"sk-s3cret","api_key":null}}',
    b'{"type":"session.update","llm":{"api_key":"sk-s3cret"},"llm":{"api_key":"other"}}',
    b'{"type":"session.update","llm":{"api_key":"sk-s3cret"},"llm":{"model":"m"}}',
    b'{"type":"session.update","llm":{"api_key":"sk-s3cret"},"llm":null}',
    b'{"type":"session.update","webhook":{"secret":"sk-s3cret"},"webhook":{"contents":"full"}}',
    b'{"type":"session.update","llm":{"api_key":"sk-s3cret"},"system_messages":[]}',
]


@every_row("update", UPDATES, ids=[update.decode()[25:] for update in UPDATES])
def test_secrets_are_never_in_a_payload(update: bytes) -> None:
    """What is journaled of an update holds no secret, not even one that a later key of the same name replaced."""
    payload = validated(update).payload
    assert b"s3cret" not in payload
    assert isinstance(decode_journaled(payload), SessionUpdate)


def test_update_without_its_secrets_keeps_the_rest() -> None:
    """Other settings, metadata and the seq stay in the payload; the secrets are beside it."""
    update = validated(
        b'{"type":"session.update","seq":3,"llm":{"model":"m","api_key":"sk-s3cret"},"metadata":{"a":1}}'
    )
    kept = {"type": "session.update", "seq": 3, "llm": {"model": "m"}, "metadata": {"a": 1}}
    assert json.loads(update.payload) == kept
    assert update.patch.secrets == {"llm.api_key": "sk-s3cret"}
