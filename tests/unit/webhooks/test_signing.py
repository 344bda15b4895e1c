"""Signatures of webhooks, and their verification."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from tests.support.rows import every_row
from voicemem.webhooks.requests import Signing, verify

AGORA_BODY = (
    b'{"eventType":10,"noticeId":"4eb720f0-8da7-11e9-a43e-53f411c2761f","notifyMs":1560408533119,'
    b'"payload":{"a":"1","b":2},"productId":1}'
)
AGORA_BODY_WITH_TIME = AGORA_BODY.replace(b"{", b'{"eventMs":1560408533119,', 1)
NOW_S = 1_778_390_400
WHSEC = "whsec_" + b64encode(bytes(range(32))).decode()
ALL_RIGHT = {"Agora-Signature": True, "Agora-Signature-V2": True, "webhook-signature": True}
ALL_WRONG = dict.fromkeys(ALL_RIGHT, False)


def signed(secret: str | None, body: bytes = AGORA_BODY, timestamp_s: int = NOW_S) -> dict[str, str]:
    signing = Signing(secret, "notice-1", str(timestamp_s))
    for part in (body[:7], body[7:]):
        signing.add(part)
    return signing.signed()


@pytest.mark.parametrize(
    ("body", "sha1", "sha256"),
    [
        (
            AGORA_BODY,
            "5a3bb6a6d9fad2ea9ae3fb707a14c9d7f3136df1",
            "de96da5acf03b0021ac3b4fa2225e7ae6f3533a30d50bb02c08ea4fa748bda24",
        ),
        (
            AGORA_BODY_WITH_TIME,
            "033c62f40f687675f17f0f41f91a40c71c0f134c",
            "6d3320c60b11101395b7fc8f9068748808a0aa1bfa064438e39d1bc2c7d74d99",
        ),
    ],
)
def test_agora_signatures_are_those_of_agoras_documentation(body: bytes, sha1: str, sha256: str) -> None:
    """The documented bodies give the documented digests under the secret `secret`."""
    headers = signed("secret", body)
    assert headers["Agora-Signature"] == sha1
    assert headers["Agora-Signature-V2"] == sha256


@given(key=st.binary(min_size=24, max_size=64), body=st.text().map(str.encode))
def test_standard_webhooks_own_verifier_accepts_the_signature(key: bytes, body: bytes) -> None:
    """The public verifier takes what we sign with a `whsec_` secret, and we take what it signs."""
    now = datetime.now(UTC).replace(microsecond=0)
    now_s = int(now.timestamp())
    secret = "whsec_" + b64encode(key).decode()
    headers = signed(secret, body, now_s)
    verifier = Webhook(secret)
    verifier.verify(body, headers, json_parse=False)
    assert headers["webhook-signature"] == verifier.sign("notice-1", now, body.decode())
    assert verify(headers, body, secret, now_s) == ALL_RIGHT


@every_row("secret", ["plain secret", "whsec_not base64!", "whsec_ab-_", "whsec_a", "whsec_ü", "whsec_"])
def test_a_secret_in_another_form_is_used_as_it_is(secret: str) -> None:
    """A secret that is not `whsec_` and base64 signs with its own UTF-8 bytes."""
    same_key = "whsec_" + b64encode(secret.encode()).decode()
    assert signed(secret)["webhook-signature"] == signed(same_key)["webhook-signature"]
    assert verify(signed(secret), AGORA_BODY, secret, NOW_S) == ALL_RIGHT


def test_a_whsec_secret_without_padding_is_decoded_as_the_public_verifier_does() -> None:
    """Missing `=` at the end of a secret changes nothing."""
    assert signed(WHSEC)["webhook-signature"] == signed(WHSEC.rstrip("="))["webhook-signature"]


@pytest.mark.parametrize("secret", [None, ""])
def test_without_a_secret_a_webhook_event_is_identified_but_not_signed(secret: str | None) -> None:
    """No secret gives no signature, and nothing verifies without one."""
    assert signed(secret) == {"webhook-id": "notice-1", "webhook-timestamp": str(NOW_S)}
    assert verify(signed("x"), AGORA_BODY, secret, NOW_S) == ALL_WRONG


def test_verify_tells_right_wrong_and_absent_signatures_apart() -> None:
    """Each signature is judged alone; another body or secret breaks all, an absent header only its own."""
    headers = signed(WHSEC)
    assert verify(headers, AGORA_BODY, WHSEC, NOW_S) == ALL_RIGHT
    assert verify(headers, AGORA_BODY + b" ", WHSEC, NOW_S) == ALL_WRONG
    assert verify(headers, AGORA_BODY, WHSEC + "A", NOW_S) == ALL_WRONG
    del headers["Agora-Signature"]
    assert verify(headers, AGORA_BODY, WHSEC, NOW_S) == ALL_RIGHT | {"Agora-Signature": False}


def test_verify_reads_header_names_in_any_case_and_several_signatures() -> None:
    """Header names have no case, and one right signature in a list is enough."""
    headers = {name.upper(): value for name, value in signed(WHSEC).items()}
    headers["WEBHOOK-SIGNATURE"] = f"v1a,x v1,AAAA {headers['WEBHOOK-SIGNATURE']} v2"
    assert verify(headers, AGORA_BODY, WHSEC, NOW_S) == ALL_RIGHT


@pytest.mark.parametrize(("age_s", "right"), [(300, True), (301, False), (-300, True), (-301, False)])
def test_verify_refuses_old_and_future_timestamps(age_s: int, right: bool) -> None:
    """A Standard Webhooks signature counts for five minutes before and after; Agora's have no time."""
    assert verify(signed(WHSEC), AGORA_BODY, WHSEC, NOW_S + age_s) == ALL_RIGHT | {"webhook-signature": right}


@given(st.dictionaries(st.sampled_from([*signed(WHSEC), "x"]), st.text(st.characters(codec=None))))
@example({"webhook-signature": "v1,\ud800", "webhook-id": "\udcff", "webhook-timestamp": "١" * 9})
@example({"webhook-timestamp": "9" * 5000, "agora-signature": "é"})
def test_garbage_headers_verify_as_wrong(headers: dict[str, str]) -> None:
    """Whatever stands in the headers, verify answers False and never raises."""
    assert verify(headers, AGORA_BODY, WHSEC, NOW_S) == ALL_WRONG
