"""The addresses of calls that can be observed."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from voicemem.errors import CannotStart
from voicemem.observer.vendors import VENDORS, parse_observe_urls


@pytest.mark.parametrize(
    ("dialect", "url", "address"),
    [
        ("openai-realtime", None, "wss://api.openai.com/v1/realtime?call_id=rtc_1"),
        ("openai-realtime", "wss://h/r?api-version=2", "wss://h/r?api-version=2&call_id=rtc_1"),
        ("openai-live", None, "wss://api.openai.com/v1/live/sessions/rtc_1/attach"),
        ("openai-live", "wss://h/live/", "wss://h/live/sessions/rtc_1/attach"),
    ],
)
def test_the_address_of_a_call(dialect: str, url: str | None, address: str) -> None:
    """It is the vendor's, or the operator's, with the id of the call."""
    vendor = VENDORS[dialect]
    assert address == vendor.address(url or vendor.url, "rtc_1")


def test_an_id_stays_in_its_place() -> None:
    """Whatever stands in it, it leads nowhere else."""
    for vendor in VENDORS.values():
        address = vendor.address("wss://h/v1", "a/../b?c=d#e")
        assert address.startswith("wss://h/v1")
        assert "/../" not in address
        assert "#" not in address


def test_urls_are_for_dialects_that_can_be_observed() -> None:
    """Any other is refused at the start."""
    assert {"openai-realtime": "ws://h/a=b"} == parse_observe_urls(["openai-realtime=ws://h/a=b"])
    with pytest.raises(CannotStart):
        parse_observe_urls(["vapi=wss://h/"])
