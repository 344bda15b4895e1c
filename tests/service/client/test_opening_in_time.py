"""Opening while the server is away, silent, or something else: it ends in time, and says why."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.client_sessions import (
    REFUSING,
    SHORT_S,
    acknowledged_seqs,
    client_for,
    in_time,
    options,
    send_transcripts,
)
from tests.support.servers.certificates import self_signed_tls
from tests.support.servers.listeners import Handler, hang_up, listener, say_nothing, speak_another_protocol
from tests.support.servers.network_proxy import NetworkProxy
from voicemem.app import App
from voicemem.client import Client, Unreachable


async def why_not_opened(ingest_url: str, rest_url: str | None = None, expected: str = ": ", **more: Any) -> str:
    """What an open of `SHORT_S` says; on a busy machine the one by whose end the expected failure has come."""
    client = Client(ingest_url, rest_url, options=options(**more))
    try:
        async with in_time():
            while True:
                with pytest.raises(Unreachable) as unreachable:
                    await client.open("s", timeout=SHORT_S)
                if expected in unreachable.value.detail:
                    return unreachable.value.detail
    finally:
        await client.close()


async def test_an_open_that_is_refused_says_where() -> None:
    """Where no one listens, an open ends with both addresses, the reason and what to check."""
    over_http = f"http://{REFUSING}: connection refused."
    detail = await why_not_opened(f"ws://{REFUSING}", f"http://{REFUSING}", over_http, fallback_after=1)
    assert f"ws://{REFUSING}/v1/ingest: connection refused." in detail
    assert 1 == detail.count("Check that `voicemem serve` runs there")


async def test_an_unknown_host_is_named() -> None:
    """A name that does not exist is given as the reason."""
    expected = "wss://memory.invalid/v1/ingest: unknown host. Check the name"
    await why_not_opened("wss://memory.invalid", expected=expected)


async def test_a_certificate_that_is_not_trusted_is_named(tmp_path: Path) -> None:
    """The reason is OpenSSL's word for it, and the check says where trust comes from."""
    async with listener(hang_up, self_signed_tls(tmp_path)) as address:
        expected = f"wss://{address}/v1/ingest: CERTIFICATE_VERIFY_FAILED: "
        assert "SSL_CERT_FILE" in await why_not_opened(f"wss://{address}", expected=expected)


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_a_server_that_says_nothing_is_not_waited_for(scheme: str) -> None:
    """A connection that is accepted and never answered, before or after TLS, ends with the open's own time."""
    async with listener(say_nothing) as address:
        detail = await why_not_opened(f"{scheme}://{address}")
    assert f"{scheme}://{address}/v1/ingest: timed out after {SHORT_S:g} s." in detail


async def test_a_service_that_does_not_answer_an_open_is_not_waited_for(app: App) -> None:
    """A websocket that is there, and over which no answer comes, ends with the open's own time; then the next works."""
    async with NetworkProxy(app.ingest_address) as proxy, client_for(proxy.address) as client:
        await client.open("first")
        proxy.to_client.swallow = True
        async with in_time():
            with pytest.raises(Unreachable, match=r"timed out after 0\.3 s"):
                await client.open("s", timeout=SHORT_S)
        proxy.to_client.swallow = False
        await acknowledged_seqs(send_transcripts(await client.open("s"), [1]))


@pytest.mark.parametrize(
    ("handle", "reason"),
    [
        (hang_up, "the connection was closed before the answer was complete"),
        (speak_another_protocol, "the answer is not valid HTTP"),
    ],
)
async def test_what_is_not_voicemem_is_named(handle: Handler, reason: str) -> None:
    """A server of another kind is a reason too."""
    async with listener(handle) as address:
        await why_not_opened(f"ws://{address}", expected=f"ws://{address}/v1/ingest: {reason}")


async def test_tls_on_one_side_only_is_named() -> None:
    """`wss://` to a server without TLS."""
    async with listener(speak_another_protocol) as address:
        await why_not_opened(f"wss://{address}", expected=f"wss://{address}/v1/ingest: TLS failed: ")


async def test_secrets_of_an_address_are_not_shown() -> None:
    """User, password and query stay out of errors."""
    detail = await why_not_opened(f"ws://me:hidden@{REFUSING}/v1/ingest?token=hidden")
    assert (True, False) == (f"ws://{REFUSING}/v1/ingest: " in detail, "hidden" in detail)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://h", "http://", "http://h:99999"])
def test_a_rest_url_is_checked(url: str) -> None:
    """What cannot be the root of a REST API is an error where no one is on the phone."""
    with pytest.raises(ValueError, match=r"REST URL|Port"):
        Client("ws://h", url)


@pytest.mark.parametrize("key", ["vm_\n", "vm_é"])
def test_a_key_is_checked(key: str) -> None:
    """So is a key that no header can carry."""
    with pytest.raises(ValueError, match="printable ASCII"):
        Client("ws://h", key=key)
