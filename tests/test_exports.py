from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from standardwebhooks import Webhook

from voicemem.config.secrets import check_webhook_secret
from voicemem.config.session import HISTORY_EVENT
from voicemem.errors import Refused
from voicemem.transcript.messages import Message
from voicemem.webhooks.attempts import MAX_ATTEMPTS, RETRY_DELAYS_S, AttemptResult, next_delay_s, verdict
from voicemem.webhooks.payloads import envelope, history_payload, session_fields
from voicemem.webhooks.signing import signature_headers, verify

AGORA_BODY = (
    b'{"eventType":10,"noticeId":"4eb720f0-8da7-11e9-a43e-53f411c2761f","notifyMs":1560408533119,'
    b'"payload":{"a":"1","b":2},"productId":1}'
)
AGORA_BODY_WITH_TIME = AGORA_BODY.replace(b"{", b'{"eventMs":1560408533119,', 1)
NOW_S = 1_778_390_400
WHSEC = "whsec_" + b64encode(bytes(range(32))).decode()
ALL_RIGHT = {"Agora-Signature": True, "Agora-Signature-V2": True, "webhook-signature": True}
ALL_WRONG = dict.fromkeys(ALL_RIGHT, False)
MESSAGES = [
    Message("user", "Erzähl mir\nwas, 讲个故事 \u2028 🦩", 1, 1678901230, {"source": "asr", "user": "ü"}),
    Message(
        "assistant",
        "Why did the ",
        1,
        1678901236,
        {"extra": [1], "source": "llm", "original": "Why did the scarecrow", "interrupted": True},
    ),
]


def payload(**changes: Any) -> bytes:
    values: dict[str, Any] = {"messages": MESSAGES, "stopped_ms": 1_778_390_400_000, "fields": "full"}
    session = session_fields("S1", "joker", "room", {"tier": "vip"}, 1_778_390_300_999)
    return history_payload(session, **(values | changes))


def answer(status: int | None = 500, error: str | None = None, retry_after: str | None = None) -> AttemptResult:
    return AttemptResult(status, error, retry_after, 12, "")


def signed(secret: str | None, body: bytes = AGORA_BODY, timestamp_s: int = NOW_S) -> dict[str, str]:
    return signature_headers(body, secret=secret, notice_id="notice-1", timestamp_s=timestamp_s)


def test_full_payload_has_every_field_in_the_documented_order() -> None:
    """The payload is compact JSON in the documented key order, with whole seconds and non-ASCII text as it is."""
    contents = (
        '[{"role":"user","content":"Erzähl mir\\nwas, 讲个故事 \u2028 🦩","turn_id":1,"timestamp":1678901230,'
        '"metadata":{"source":"asr","user":"ü"}},'
        '{"role":"assistant","content":"Why did the ","turn_id":1,"timestamp":1678901236,'
        '"metadata":{"interrupted":true,"original":"Why did the scarecrow","source":"llm","extra":[1]}}]'
    )
    assert payload().decode() == (
        '{"agent_id":"S1","name":"joker","channel":"room","start_ts":1778390300,"stop_ts":1778390400,'
        f'"labels":{{"tier":"vip"}},"contents":{contents}}}'
    )


def test_standard_payload_carries_role_and_content_only() -> None:
    """`standard` contents hold nothing that a strict receiver refuses."""
    contents = json.loads(payload(fields="standard"))["contents"]
    assert contents == [{"role": m.role, "content": m.content} for m in MESSAGES]


def test_missing_values_are_empty_not_absent() -> None:
    """A session without name, channel, labels and messages gives empty values under all keys."""
    body = history_payload(session_fields("S1", None, None, {}, 1_778_390_300_999), 1_778_390_400_000, [], "full")
    assert body == (
        b'{"agent_id":"S1","name":"","channel":"","start_ts":1778390300,"stop_ts":1778390400,"labels":{},"contents":[]}'
    )


def test_envelope_splices_the_frozen_payload_in_unchanged() -> None:
    """The payload's bytes stand in the envelope as they are, spacing and escapes included."""
    frozen = b'{"b" : 1,\n"a":"\\u00e4"}'
    body = envelope(notice_id='n"1', event_type=HISTORY_EVENT, notify_ms=5, session_id="S1", payload=frozen)
    head = b'{"noticeId":"n\\"1","productId":17,"eventType":103,"notifyMs":5,"sid":"S1","payload":'
    assert body == head + frozen + b"}"


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


@settings(max_examples=30)
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


@pytest.mark.parametrize("secret", ["plain secret", "whsec_not base64!", "whsec_ab-_", "whsec_a", "whsec_ü", "whsec_"])
def test_a_secret_in_another_form_is_used_as_it_is(secret: str) -> None:
    """A secret that is not `whsec_` and base64 signs with its own UTF-8 bytes."""
    same_key = "whsec_" + b64encode(secret.encode()).decode()
    assert signed(secret)["webhook-signature"] == signed(same_key)["webhook-signature"]
    assert verify(signed(secret), AGORA_BODY, secret, NOW_S) == ALL_RIGHT


@pytest.mark.parametrize("secret", ["whsec_not base64!", "whsec_hidden!", "whsec_ab-_", "whsec_a", "whsec_ü", "whsec_"])
def test_a_new_secret_that_looks_like_base64_and_is_none_is_refused(secret: str) -> None:
    """Receivers of Standard Webhooks could not verify with it; the sentence does not show it."""
    with pytest.raises(Refused) as refused:
        check_webhook_secret(secret)
    assert refused.value.code == "invalid_field"
    assert "hidden" not in refused.value.detail


@pytest.mark.parametrize("secret", [None, "", "plain", "whsec", WHSEC, WHSEC.rstrip("=")])
def test_other_secrets_are_taken(secret: str | None) -> None:
    """Base64 after `whsec_`, and any other text."""
    check_webhook_secret(secret)


def test_a_whsec_secret_without_padding_is_decoded_as_the_public_verifier_does() -> None:
    """Missing `=` at the end of a secret changes nothing."""
    assert signed(WHSEC)["webhook-signature"] == signed(WHSEC.rstrip("="))["webhook-signature"]


@pytest.mark.parametrize("secret", [None, ""])
def test_without_a_secret_a_notice_is_identified_but_not_signed(secret: str | None) -> None:
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


@pytest.mark.parametrize(
    ("given_answer", "expected"),
    [
        (answer(200), "delivered"),
        (answer(204), "delivered"),
        (answer(299), "delivered"),
        (answer(410), "gone"),
        (answer(301, "redirect"), "retry"),
        (answer(304, "redirect"), "retry"),
        (answer(400), "retry"),
        (answer(503), "retry"),
        (answer(101), "retry"),
        (answer(None, "dns"), "retry"),
    ],
)
def test_verdict(given_answer: AttemptResult, expected: str) -> None:
    """2xx is delivered, 410 is gone, everything else is tried again."""
    assert verdict(given_answer) == expected


def test_retries_follow_the_documented_schedule_and_end() -> None:
    """At once, 5 s, 5 min … 24 h, then no more; the middle of the jitter is the schedule itself."""
    assert [next_delay_s(n, answer(), 0.5) for n in range(1, MAX_ATTEMPTS)] == list(RETRY_DELAYS_S)
    assert next_delay_s(0, answer(), 0.5) == 0
    assert next_delay_s(MAX_ATTEMPTS, answer(), 0.5) is None
    assert next_delay_s(MAX_ATTEMPTS + 1, answer(retry_after="1"), 0.5) is None


@pytest.mark.parametrize("overload", [answer(429), answer(503), answer(504), answer(None, "timeout")])
def test_an_overloaded_receiver_is_not_tried_again_at_once(overload: AttemptResult) -> None:
    """The first retry after a 429, 503 or timeout waits for at least five seconds."""
    assert [next_delay_s(1, overload, jitter) for jitter in (0.0, 0.5)] == [5, 5.5]


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1", 1),
        (" 120 ", 120),
        ("7.5", 7.5),
        ("315360000", 86_400),
        ("9" * 5000, 86_400),
        (format_datetime(datetime.fromtimestamp(NOW_S, UTC) + timedelta(minutes=2), usegmt=True), 120),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
        ("Fri, 31 Dec 9999 23:59:59 -0000", 86_400),
    ],
)
def test_retry_after_is_honoured_up_to_a_day(status: int, value: str, seconds: float) -> None:
    """Seconds or a date are waited for, and no promise of years is taken."""
    assert next_delay_s(1, answer(status, retry_after=value), 0.0, NOW_S) == seconds


@pytest.mark.parametrize(
    "value", ["", "soon", "-5", "nan", "inf", "1e3", "٣", "Wed, 21 Oct 2015 07:28:00 GMT", "Mon, 99 Foo 2099", "0"]
)
def test_garbage_and_past_times_in_retry_after_change_nothing(value: str) -> None:
    """What is no time to come leaves the schedule as it is."""
    assert next_delay_s(2, answer(retry_after=value), 0.5, NOW_S) == 5


def test_a_date_needs_the_time_now() -> None:
    """Without the present time a date in Retry-After is passed over."""
    assert next_delay_s(2, answer(retry_after="Fri, 31 Dec 9999 23:59:59 GMT"), 0.5) == 5


@given(
    attempts=st.integers(1, MAX_ATTEMPTS - 1),
    status=st.sampled_from([None, 429, 500, 503]),
    retry_after=st.none() | st.text() | st.integers(0, 10**9).map(str),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_delays_stay_in_their_bounds(attempts: int, status: int | None, retry_after: str | None, jitter: float) -> None:
    """A delay is never below the schedule less a fifth, nor the receiver's wish, nor above a day."""
    delay = next_delay_s(attempts, answer(status, retry_after=retry_after), jitter, NOW_S)
    assert delay is not None
    assert 0.8 * RETRY_DELAYS_S[attempts - 1] <= delay <= 86_400
    if retry_after and retry_after.isascii() and retry_after.isdigit():
        assert delay >= min(int(retry_after), 86_400)
    elif status == 500 and retry_after is None:
        assert delay <= 1.2 * RETRY_DELAYS_S[attempts - 1]
