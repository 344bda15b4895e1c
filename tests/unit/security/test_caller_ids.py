"""Telephone numbers in any spelling, and the ids that are made of them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.rows import every_row
from voicemem.config.service import Settings
from voicemem.dialects.dialect import user_id_of
from voicemem.errors import CannotStart
from voicemem.security.caller_ids import caller_id, check_callers, e164, parse_identify_rules

AMERICAN, GERMAN = "+15551234567", "+491711234567"


@pytest.mark.parametrize(
    "written",
    [
        "+15551234567",
        "+1 (555) 123-4567",
        "+1.555.123.4567",
        "001 555 123 4567",
        "sip:+15551234567@pbx.example;user=phone",
        '"Ann" <sip:+15551234567@pbx.example>',
        "sip_+15551234567",
        "tel:+1-555-123-4567;ext=5",
        "whatsapp:+15551234567",
        "\u202a+1\u00a0555\u2011123\u20114567\u202c",
        "+1 555 123 4567 x12",
        " +15551234567 ",
    ],
)
def test_one_number_in_every_spelling(written: str) -> None:
    """Whatever stands around and between its digits, with a default region and without."""
    assert {AMERICAN} == {e164(written), e164(written, "US"), e164(written, "DE")}


@pytest.mark.parametrize(
    "written", ["+49 (0)171 1234567", "0049 171 1234567", "+٤٩١٧١١٢٣٤٥٦٧", "＋４９ １７１ １２３４５６７"]
)
def test_a_number_in_other_scripts_and_with_a_national_zero(written: str) -> None:
    """Digits are those of all scripts; a zero in brackets is none of the number."""
    assert GERMAN == e164(written)


@pytest.mark.parametrize(
    ("written", "region", "expected"),
    [
        ("0171 1234567", "DE", GERMAN),
        ("(555) 123-4567", "US", AMERICAN),
        ("15551234567", "US", AMERICAN),
        ("011 49 171 1234567", "US", GERMAN),
        ("0171 1234567", None, None),
        ("15551234567", None, None),
        ("1001", "DE", None),
    ],
)
def test_national_numbers_need_a_region(written: str, region: str | None, expected: str | None) -> None:
    """Without one they identify no one, and neither do extensions of an exchange."""
    assert expected == e164(written, region)


@every_row("region", [None, "US", "DE"])
@every_row(
    "written",
    [
        *("", " ", "+", "anonymous", "Anonymous", "unknown", "restricted", "Unavailable", "private", "ann"),
        *("anonymous@anonymous.invalid", "sip:anonymous@anonymous.invalid", "sip:ann@pbx.example"),
        *("+266696687", "266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"),
        *("+10000000000", "0000000000", "+123", "9" * 10_000, "+1" + "5" * 40, "+1555123456a"),
    ],
)
def test_placeholders_are_no_numbers(written: str, region: str | None) -> None:
    """Neither what platforms give in place of a number, nor what is too short or too long for one."""
    assert None is e164(written, region)


def test_an_id_depends_on_the_secret() -> None:
    """It says nothing of the number."""
    ids = {caller_id(AMERICAN, secret) for secret in (b"a" * 32, b"b" * 32)}
    assert 2 == len(ids)
    assert all(one.startswith("tel_") and len(one) == 68 and "5551234567" not in one for one in ids)


def test_long_ids_of_users() -> None:
    """Each is an id that a user may have; no two of a vendor's give the same."""
    long = ["x" * 10_000, "x" * 10_001, "a\nb", "a b\x85"]
    assert len(long) == len({*map(user_id_of, long)})
    assert all(1 <= len(user_id_of(one)) <= 128 and user_id_of(one).isprintable() for one in long)
    assert "ann@example.com" == user_id_of("ann@example.com")
    assert user_id_of("x" * 10_000) != user_id_of(user_id_of("x" * 10_000))


def test_what_may_say_who_calls() -> None:
    """It is given by dialect, of one project or of all."""
    given = "vapi=user,number", "shop/retell=number", "livekit-agents=off"
    assert {
        (None, "vapi"): {"user", "number"},
        ("shop", "retell"): {"number"},
        (None, "livekit-agents"): set(),
    } == parse_identify_rules(given)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(identify=("vapi",)), "DIALECT=user,number"),
        (Settings(identify=("vapi=name",)), "user, number"),
        (Settings(identify=("vappi=user",)), "did you mean"),
        (Settings(phone_region="Germany"), "two letters"),
        (Settings(phone_region="XX"), "two letters"),
    ],
)
def test_settings_that_cannot_be(settings: Settings, said: str) -> None:
    """The sentence says what would be right."""
    with pytest.raises(CannotStart, match=said):
        check_callers(settings)
