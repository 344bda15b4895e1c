"""Which addresses and URLs the service may reach."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.errors import CannotStart, Refused
from voicemem.security.address_guard import IPV4_CARRIERS, allowed_networks, check_url, is_blocked

BLOCKED_V4 = """
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.255 168.63.129.16 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.3 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1
    203.0.113.1 224.1.2.3 239.255.255.250 240.0.0.1 255.255.255.255
"""
BLOCKED_V6 = """
    :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:0:7f00:1 64:ff9b::7f00:1 64:ff9b::10.0.0.1 64:ff9b:1::1
    100::1 100:0:0:1::1 2001::1 2001:0:7f00:1:: 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:a00:1::
    3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1
"""
LITERALS = """
    127.0.0.1 127.0.0.1. localhost LOCALHOST. a.localhost 0.0.0.0 10.1.2.3 100.64.0.1 169.254.169.254 [::1] [::]
    [::ffff:127.0.0.1] [fd00:ec2::254] [64:ff9b::7f00:1] [2002:7f00:1::] [0:0:0:0:0:0:0:1]
"""
NO_ADDRESSES = [
    "",
    "localhost",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "127.1",
    "①②⑦.⓪.⓪.①",
    "1.1.1.1 ",
    "1.1.1.1/32",
]
PUBLIC = """
    1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0 192.0.1.1 198.17.0.1 198.20.0.1
    223.255.255.255 2606:4700::1111 2a00:1450::1 ::ffff:1.1.1.1 ::1.1.1.1 64:ff9b::1.1.1.1 2002:101:101::
"""


@every_row("address", [*BLOCKED_V4.split(), *BLOCKED_V6.split(), *NO_ADDRESSES])
def test_addresses_inside_are_blocked(address: str) -> None:
    """No private, local, special or carried address may be called, nor what is no plain address."""
    assert is_blocked(address)


@every_row("address", PUBLIC.split())
def test_public_addresses_are_open(address: str) -> None:
    """The neighbours of every denied range, and carriers of public addresses, may be called."""
    assert not is_blocked(address)


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_a_carried_address_is_judged_as_itself(address: IPv4Address) -> None:
    """IPv4-mapped, IPv4-compatible, NAT64 and 6to4 forms of an address are as open as the address."""
    bits = int(address)
    forms = [0xFFFF << 32 | bits, bits, 0x64FF9B << 96 | bits, 0x2002 << 112 | bits << 80]
    assert {is_blocked(str(IPv6Address(form))) for form in forms} == {is_blocked(str(address))}


@given(st.ip_addresses())
def test_what_the_standard_library_calls_private_is_blocked(address: IPv4Address | IPv6Address) -> None:
    """The deny list is never weaker than `ipaddress` itself, carriers aside."""
    if address.is_private and not any(address in network for network, _ in IPV4_CARRIERS):
        assert is_blocked(str(address))


@given(st.text())
def test_any_text_has_an_answer(text: str) -> None:
    """Whatever is no address is blocked, and nothing raises."""
    try:
        ip_address(text)
    except ValueError:
        assert is_blocked(text)


def test_the_allow_list_opens_its_networks_only() -> None:
    """The operator's networks are open, also where IPv6 carries them; all others stay blocked."""
    allowed = allowed_networks(["10.1.0.0/16", " fd00::/8 ", "127.0.0.1", "::1"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00:ec2::254", "127.0.0.1", "::1"):
        assert not is_blocked(address, allowed)
    for address in ("10.2.0.1", "127.0.0.2", "::2", "fe80::1"):
        assert is_blocked(address, allowed)


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "example.com", "10.0.0.0/33"])
def test_a_wrong_allow_list_keeps_the_service_from_starting(text: str) -> None:
    """An entry that is no exact network is refused at the start, rather than guessed."""
    with pytest.raises(CannotStart):
        allowed_networks(["10.0.0.0/8", text])


@every_row(
    "url",
    [
        "https://example.com",
        "HTTPS://Example.COM./hook?x=1&y=%20",
        "http://example.com:8080/",
        "https://sub_1.xn--bcher-kva.example:443/ü",
        "https://1.1.1.1/",
        "https://[2606:4700::1111]:8443/",
        "https://4chan.example/?u=http://127.0.0.1",
        "https://example.com/" + "a" * 2028,
    ],
)
def test_ordinary_urls_pass(url: str) -> None:
    """http and https URLs to public hosts are taken."""
    check_url(url)


@every_row(
    "url",
    [
        "",
        "example.com/hook",
        "//example.com",
        "https://",
        "https:///hook",
        "https:example.com",
        "https://?x",
        "https://.",
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://example.com/",
        "https://user:pass@example.com/",
        "https://user@example.com/",
        "https://@example.com/",
        "https://example.com/#part",
        "https://example.com/#",
        "https://exam\tple.com/",
        "https://example.com/\r\nHost: x",
        " https://example.com/",
        "https://example.com/a b",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/\x00",
        "https://example.com/\u202e",
        "https://example.com/\u3000",
        "https://example.com:22/",
        "https://example.com:25/",
        "https://example.com:0/",
        "https://example.com:6667/",
        "https://example.com:65536/",
        "https://example.com:/",
        "https://example.com:x/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.0x1/",
        "https://①②⑦.⓪.⓪.①/",
        "https://127。0。0。1/",
        "https://%31%32%37.0.0.1/",
        "https://[::1/",
        "https://[::1%25eth0]/",
        "https://[2606:4700::1111]evil.example/",
        "https://[v1.x]/",
        "https://bücher.example/",
        "https://example.com/" + "a" * 2029,
        "https://example.com/" + "a" * 8192,
    ],
)
def test_urls_out_of_the_ordinary_are_refused(url: str) -> None:
    """A URL that some parser could read in another way, or that is none for a web service, is refused when given."""
    with pytest.raises(Refused) as caught:
        check_url(url)
    assert caught.value.code == "invalid_field"
    assert url not in caught.value.detail or not url


@every_row("host", LITERALS.split())
def test_urls_of_blocked_addresses_are_refused(host: str) -> None:
    """An address inside is refused when it is given, unless the operator allows it."""
    with pytest.raises(Refused) as caught:
        check_url(f"https://{host}/hook")
    assert caught.value.code == "address_not_allowed"
    check_url(f"https://{host}/hook", allowed_networks(["0.0.0.0/0", "::/0"]))


@given(st.text() | st.text().map("https://".__add__) | st.text("[]@:/\\.#?%0x127", max_size=20).map("http://".__add__))
def test_any_url_passes_or_is_refused(url: str) -> None:
    """Nothing but Refused comes out of a check, whatever the text."""
    with suppress(Refused):
        check_url(url)
