"""Bad input 105 to 124: receivers and LLM addresses inside the operator's network, on every way to name one."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.support.callers.bad_input import SECRET
from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient, fresh_id
from tests.support.rows import every_row
from tests.support.servers.webhook_receiver import webhook_receiver
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

REFUSED, INVALID = "address_not_allowed", "invalid_field"


class Bad(NamedTuple):
    """A URL, and the code with which it is refused when it is given."""

    number: str
    url: str
    code: str


def host(number: int, text: str, code: str = REFUSED) -> list[Bad]:
    """A host in a URL, plain and with a port, a path and letters in capitals."""
    urls = (f"http://{text}/", f"https://{text}:8443/hook?x={SECRET}", f"https://{text.upper()}/{SECRET}")
    return [Bad(f"{number} {url}", url, code) for url in urls]


CASES = [
    *host(105, "127.0.0.1"),
    *host(105, "127.1.2.3"),
    *host(106, "localhost"),
    *host(106, "localhost."),
    *host(106, "app.localhost"),
    *host(107, "0x7f000001", INVALID),
    *host(107, "0x7f.0.0.1", INVALID),
    *host(108, "2130706433", INVALID),
    *host(109, "0177.0.0.1", INVALID),
    *host(109, "127.1", INVALID),
    *host(110, "①②⑦.⓪.⓪.①", INVALID),
    *host(110, "127。0。0。1", INVALID),
    *host(111, "0.0.0.0"),
    *host(111, "0.1.2.3"),
    *host(112, "[::1]"),
    *host(112, "[0:0:0:0:0:0:0:1]"),
    *host(113, "[::ffff:127.0.0.1]"),
    *host(113, "[::ffff:7f00:1]"),
    *host(113, "[::127.0.0.1]"),
    *host(114, "[::]"),
    *host(115, "169.254.169.254"),
    *host(115, "168.63.129.16"),
    *host(116, "[fd00:ec2::254]"),
    *host(116, "[fe80::1]"),
    *host(117, "[64:ff9b::7f00:1]"),
    *host(118, "[2002:7f00:1::]"),
    *host(119, "10.0.0.1"),
    *host(119, "172.31.255.255"),
    *host(119, "192.168.0.1"),
    *host(119, "100.64.0.1"),
    *host(119, "224.0.0.1"),
    Bad("123 a user and a password", f"https://user:{SECRET}@hook.example/", INVALID),
    Bad("123 a user that looks like a host", "https://hook.example@127.0.0.1/", INVALID),
    Bad("123 an empty user", "https://@hook.example/", INVALID),
    Bad("123 a fragment", f"https://hook.example/#{SECRET}", INVALID),
    Bad("123 a TAB", "https://hook.exam\tple/", INVALID),
    Bad("123 a line break", f"https://hook.example/\r\nX-{SECRET}: x", INVALID),
    Bad("123 a backslash", "https://hook.example\\@127.0.0.1/", INVALID),
    Bad("123 a NUL", "https://hook.example/\0", INVALID),
    Bad("124 file:", f"file:///etc/{SECRET}", INVALID),
    Bad("124 ftp:", "ftp://hook.example/", INVALID),
    Bad("124 gopher:", "gopher://127.0.0.1:6379/_FLUSHALL", INVALID),
    Bad("124 javascript:", "javascript:alert(1)", INVALID),
    Bad("124 no scheme", "hook.example/x", INVALID),
    Bad("124 a unix socket", "http+unix://%2Fvar%2Frun%2Fdocker.sock/", INVALID),
    *(
        Bad(f"124 port {port}", f"https://hook.example:{port}/", INVALID)
        for port in ("0", "22", "25", "53", "389", "1023", "6000", "6667", "65536", "-1", "x", "8443x")
    ),
    Bad("124 8 KB", "https://hook.example/" + SECRET * 1_400, INVALID),
    Bad("124 empty", "", INVALID),
]


def named(bad: Bad) -> str:
    return bad.number.replace("\0", "NUL")[:60]


@every_row("bad", CASES, ids=named)
async def test_bad_receivers(app: App, caplog: pytest.LogCaptureFixture, bad: Bad) -> None:
    """Each is refused when it is given, on every way in; nothing of it is kept, repeated or logged but why."""
    caplog.set_level("INFO")
    caplog.clear()
    session_id, refused_id = fresh_id(), fresh_id()
    api, hook = RestClient(app), {"webhook": {"url": bad.url}}
    told = [await api.post("/v1/sessions", {"session_id": refused_id, **hook})]
    await api.create(session_id)
    told.append(await api.patch(f"/v1/sessions/{session_id}", hook))
    assert [(400, bad.code)] * 2 == [answered.problem for answered in told]
    assert SECRET not in "".join(answered.body.decode() for answered in told)
    async with connected_producer(app) as producer:
        await producer.send({"type": "session.open", "session_id": refused_id, "session": hook})
        error = await producer.expect_error(bad.code)
        assert SECRET not in str(error)
    async with open_producer(app, session_id) as producer:
        await producer.send({"type": "session.update", "seq": 1, **hook})
        await producer.expect_error(bad.code, seq=1)
    assert 404 == (await api.get(f"/v1/sessions/{refused_id}")).status
    assert {} == (await api.session(session_id))["config"]
    assert [{"type": "refused", "code": bad.code}] == [row["event"] for row in await api.journal(session_id)]
    assert SECRET not in caplog.text
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    assert {bad.code} == {vars(record)["code"] for record in warned}


# Names: what they resolve to is seen when they are called


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses of names, as the resolver of this machine gives them while the test runs."""
    known: dict[str, list[str]] = {}
    real: Callable[..., list[tuple[Any, ...]]] = socket.getaddrinfo

    def resolve(name: Any, port: Any, *args: Any, **more: Any) -> list[tuple[Any, ...]]:
        if name not in known:
            return real(name, port, *args, **more)
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, (address, port)) for address in known[name]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


async def attempt(app: App, session_id: str = "s") -> tuple[str, str | None]:
    """End a session; the state of its delivery after the first attempt, and why that failed."""
    await RestClient(app).end(session_id)
    stream = await app.services.store.journal.find_session("default", session_id)
    assert stream is not None

    async def attempted() -> bool:
        (delivery,) = await app.services.store.deliveries.list_deliveries(stream.key)
        return bool(delivery.attempts)

    await eventually(True, attempted)
    (delivery,) = await app.services.store.deliveries.list_deliveries(stream.key)
    return delivery.state, delivery.attempts[0].error


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_120_a_public_name_with_a_private_address(
    serve: Serve, names: dict[str, list[str]], address: str
) -> None:
    """A name is taken when it is given, but no connection is made to where it leads."""
    names["hook.example"] = [address]
    app = await serve()
    async with webhook_receiver() as receiver:
        await RestClient(app).create(webhook={"url": receiver.url(host="hook.example")})
        assert ("pending", REFUSED) == await attempt(app)
        assert [] == receiver.webhook_events


@pytest.mark.parametrize("order", [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"]], ids=" ".join)
async def test_121_public_and_private_addresses(serve: Serve, names: dict[str, list[str]], order: list[str]) -> None:
    """Of a name's addresses only the allowed ones are called, whatever their order, and however they answer."""
    names["hook.example"] = order
    app = await serve(allow_addresses=("127.0.0.2",))
    came = asyncio.Event()

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        writer.transport.abort()

    async with webhook_receiver() as inside, await asyncio.start_server(hang_up, "127.0.0.2", inside.port):
        await RestClient(app).create(webhook={"url": inside.url(host="hook.example")})
        state, _ = await attempt(app)
        assert ("pending", True) == (state, came.is_set())
        assert [] == inside.webhook_events


async def test_122_a_name_that_changes_after_it_was_given(serve: Serve, names: dict[str, list[str]]) -> None:
    """DNS rebinding: what a name was when it was configured says nothing about the call."""
    app = await serve()
    async with webhook_receiver() as receiver:
        names["hook.example"] = ["93.184.216.34"]
        await RestClient(app).create(webhook={"url": receiver.url(host="hook.example")})
        await RestClient(app).patch("/v1/sessions/s", {"webhook": {"url": receiver.url("/2", host="hook.example")}})
        names["hook.example"] = ["127.0.0.1"]
        assert ("pending", REFUSED) == await attempt(app)
        assert [] == receiver.webhook_events
