"""Whose requests the page's paths answer: those of the page itself, at an address that the operator named."""

from __future__ import annotations

import pytest

from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.server.page.login import PageOrigin

NAMED = "https://memory.example:8443"
JSON = {"Content-Type": "application/json"}
HERE = {"Host": "127.0.0.1:8080"}
OWN = {**HERE, "Origin": "http://127.0.0.1:8080"}
SAME = {"Sec-Fetch-Site": "same-origin"}


def host_code(origin: PageOrigin, host: str | None) -> str | None:
    """The code with which a host is refused."""
    try:
        origin.check_host(host)
    except Refused as refused:
        return refused.code
    return None


def sender_code(method: str, headers: dict[str, str], origin: PageOrigin | None = None) -> str | None:
    """The code with which a sender is refused."""
    try:
        (origin or PageOrigin()).check_sender(method, headers)
    except Refused as refused:
        return refused.code
    return None


@every_row("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]:8080", "localhost."])
def test_loopback_is_always_answered(host: str) -> None:
    """By whatever name of it, with a name of one's own and without."""
    assert host_code(PageOrigin(), host) is None
    assert host_code(PageOrigin(NAMED), host) is None


@every_row("host", [None, "", "evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0", "a b", "::1"])
def test_other_hosts_are_refused(host: str | None) -> None:
    """A name that was bent to this machine gets nothing."""
    assert host_code(PageOrigin(), host) == "foreign_host"
    assert host_code(PageOrigin(NAMED), host) == "foreign_host"


def test_the_refusal_names_the_setting() -> None:
    """Whoever put the service behind a proxy reads what is missing; who has set it, that this is another name."""
    with pytest.raises(Refused, match="--ui-origin https://NAME"):
        PageOrigin().check_host("memory.example")
    with pytest.raises(Refused, match="the name in --ui-origin"):
        PageOrigin(NAMED).check_host("other.example")


def test_the_operators_name_is_answered() -> None:
    """With its port, without it as proxies pass it on, and in any case of letters."""
    for host in ("memory.example:8443", "memory.example", "Memory.Example"):
        assert host_code(PageOrigin(NAMED), host) is None
    assert host_code(PageOrigin("https://[2001:db8::1]"), "[2001:DB8::1]:443") is None
    assert host_code(PageOrigin(anywhere=True), "10.0.0.1:8080") is None
    assert host_code(PageOrigin(anywhere=True), None) == "foreign_host"


@every_row("site", ["same-site", "cross-site", "none", "", "Same-Origin", "same-origin, same-site"])
@every_row("method", ["GET", "HEAD", "POST", "DELETE"])
def test_only_the_page_itself_is_answered(method: str, site: str) -> None:
    """Another port of the host is not the page, and neither is an address that someone opens."""
    assert sender_code(method, {**OWN, **JSON, "Sec-Fetch-Site": site}) == "foreign_origin"


def test_reads_need_no_origin() -> None:
    """Browsers send none with them; who says nothing of itself may read, since nothing speaks against it."""
    for headers in (SAME, {}, OWN, {**OWN, **SAME}):
        assert sender_code("GET", {**HERE, **headers}) is None


@every_row(
    "origin",
    ["null", "", "http://127.0.0.1:8081", "http://localhost:8080", "https://127.0.0.1:8080", "http://evil.example"],
)
@every_row("more", [{}, SAME], ids=["silent", "same-origin"])
def test_an_origin_that_is_there_is_the_pages(origin: str, more: dict[str, str]) -> None:
    """Another scheme, name or port is another origin, also where a browser says nothing else of itself."""
    for method in ("GET", "POST"):
        assert sender_code(method, {**HERE, **more, **JSON, "Origin": origin}) == "foreign_origin"


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE", "OPTIONS"])
def test_changes_show_where_they_come_from_and_are_json(method: str) -> None:
    """A form of any page can send neither."""
    for shown in (SAME, {"Origin": OWN["Origin"]}):
        assert sender_code(method, {**HERE, **shown, **JSON}) is None
        assert sender_code(method, {**HERE, **shown, "Content-Type": "Application/JSON; charset=utf-8"}) is None
        for media_type in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""):
            assert sender_code(method, {**HERE, **shown, "Content-Type": media_type}) == "foreign_origin"
        assert sender_code(method, {**HERE, **shown}) == "foreign_origin"
    assert sender_code(method, {**HERE, **JSON}) == "foreign_origin"


def test_behind_a_proxy_the_operators_origin_is_the_pages() -> None:
    """Whether the proxy passes the browser's host on or not; without the setting it is a stranger's."""
    sent = {"Origin": NAMED, **JSON, **SAME}
    for host in ("memory.example", "127.0.0.1:8080"):
        assert sender_code("POST", {"Host": host, **sent}, PageOrigin(NAMED)) is None
        assert sender_code("POST", {"Host": host, **sent}) == "foreign_origin"
    for origin in ("https://memory.example", "http://memory.example:8443", "https://memory.example:8444"):
        assert sender_code("POST", {"Host": "memory.example", **JSON, "Origin": origin}, PageOrigin(NAMED)) is not None


def test_https_is_what_the_operator_says() -> None:
    """At the operator's https name, by host or origin; loopback beside it is plain."""
    https = PageOrigin(NAMED)
    assert https.is_https("memory.example", None)
    assert https.is_https("127.0.0.1:8080", NAMED)
    assert not https.is_https("127.0.0.1:8080", OWN["Origin"])
    assert not https.is_https("127.0.0.1:8080", None)
    assert not PageOrigin("http://memory.example", True).is_https("memory.example", "http://memory.example")
    assert not PageOrigin().is_https("127.0.0.1:8080", None)
    assert not PageOrigin("https://localhost").is_https("localhost", None)
