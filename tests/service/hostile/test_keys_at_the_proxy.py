"""What callers of the proxy show as credentials, wherever their stack puts it: the vendor sees none of it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from typing import Any
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.callers.rest import make_key
from tests.support.callers.tees import vendor_at
from tests.support.rows import every_row
from tests.support.servers.voice_proxy import RunningProxy, proxy_to
from tests.support.services import Serve
from voicemem.errors import Refused
from voicemem.proxy.requests import Request, is_credential, read_request
from voicemem.proxy.settings import Settings, Upstream, UpstreamKey

KEY = "vm_0123456789ab_" + "K" * 40
OTHER = "sk-callers-own-0123456789"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJzIn0.c2lnbmF0dXJl"
KEPT = UpstreamKey("Authorization", "Bearer sk-operator")
SETTINGS = Settings(
    upstreams={
        name: Upstream(name, True, "vendor.example", 443, "/base", key=KEPT)
        for name in ("deepgram-agent", "elevenlabs-agents", "gemini-live", "openai-realtime")
    }
)
HEADERS = (
    *("Authorization: Bearer {}", "Authorization: Token {}", "Authorization: Basic {}", "api-key: {}", "x-api-key: {}"),
    *("X-Goog-Api-Key: {}", "xi-api-key: {}", "Cookie: session={}", "X-Auth-Token: {}", "X-Amz-Security-Token: {}"),
    *("Ocp-Apim-Subscription-Key: {}", "X-Access-Token: {}", "cf-access-client-secret: {}", "X-Twilio-Signature: {}"),
    *(
        "Sec-WebSocket-Protocol: token, {}",
        "Sec-WebSocket-Protocol: bearer, {}",
        "Sec-WebSocket-Protocol: {}, realtime",
    ),
    *("Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{}", "Sec-WebSocket-Protocol: auth.{}"),
    *("X-Unknown: {}", "Referer: https://app.example.com/?k={}", "X-Forwarded-Uri: /v1?token={}"),
)
QUERIES = (
    *("key={}", "api_key={}", "api-key={}", "apiKey={}", "access_token={}", "token={}", "auth[token]={}", "%6bey={}"),
    *("%256Bey={}", "xi_api_key={}", "signature={}", "authorization=Bearer%20{}", "client_secret={}", "KEY={}"),
    *("conversation_signature={}", "jwt={}", "x={}", "subscription-key={}", "a=1;key={}"),
)


def head_for(dialect: str, query: str, *headers: str, path: str = "") -> str:
    """The head that the vendor would get."""
    lines = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", *headers)
    named = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    target = f"/v1/proxy/{dialect}{path}?{query}" if query else f"/v1/proxy/{dialect}{path}"
    return read_request(Request("GET", target, named), SETTINGS).head.decode("latin-1")


@every_row("header", HEADERS)
def test_headers_and_subprotocols(header: str) -> None:
    """Neither a key of the memory nor another goes on, by the name of the header or by what it holds."""
    for dialect in SETTINGS.upstreams:
        for shown in (KEY, JWT):
            head = head_for(dialect, "model=m&tier=1", header.format(shown))
            assert shown not in head
            assert "Authorization: Bearer sk-operator" in head
            assert head.startswith("GET /base?model=m&tier=1 ")
    if "Unknown" not in header and "Referer" not in header and "Uri" not in header:
        assert OTHER not in head_for("openai-realtime", "", header.format(OTHER), f"X-Voicemem-Key: {KEY}")


@every_row("query", QUERIES)
def test_queries(query: str) -> None:
    """Nor in the URL, however the name is written; the rest of it goes on."""
    for shown in (KEY, quote(KEY, safe=""), "".join(f"%{ord(one):02x}" for one in KEY)):
        head = head_for("gemini-live", f"model=m&{query.format(shown)}&keyterm=a", f"X-Voicemem-Key: {KEY}")
        assert shown not in head
        assert head.startswith("GET /base?model=m&keyterm=a ")


ENCODED = (
    *(b64encode(KEY.encode()).decode(), b64encode(f"Bearer {KEY}".encode()).decode(), KEY.encode().hex(), KEY.upper()),
    *(urlsafe_b64encode(f"{before}{JWT}".encode()).decode().rstrip("=") for before in ("", "a:", "ab")),
    *(f"https://ann:{one}@app.example.com/" for one in (KEY, OTHER)),
    *(f'{{"a": {{"access_token": "{OTHER}"}}}}', f"https://app.example.com/?a=1;token={OTHER}"),
)


@every_row("text", ENCODED)
def test_encoded_keys(text: str) -> None:
    """Nor as base64, hex, a part of a URL or of JSON, in headers, their names, subprotocols, the query and the path."""
    many = quote(text, safe="")
    for _ in range(9):
        many = quote(many, safe="")
    for one in (quote(text, safe=""), many):
        head = head_for("gemini-live", f"model=m&x={one}&keyterm=a", f"X-Voicemem-Key: {KEY}", f"X-Unknown: {one}")
        assert head.startswith("GET /base?model=m&keyterm=a ")
        assert "X-Unknown" not in head
    if re.fullmatch(r"[\w-]+", text):
        protocols = f"Sec-WebSocket-Protocol: realtime, openai-project.{text}"
        head = head_for("openai-realtime", "", f"X-Unknown: {text}", f"X-{text}: a", protocols)
        assert text not in head
        assert "Sec-WebSocket-Protocol: realtime\r\n" in head
        with pytest.raises(Refused, match="path would show a key"):
            head_for("openai-realtime", "", path=f"/calls/{text}")


@every_row("header", (f"Sec-WebSocket-Key: {KEY}", f"Sec-WebSocket-Version: {KEY}", "Sec-WebSocket-Version: 12"))
def test_headers_that_must_go_on_hold_nothing_else(header: str) -> None:
    """Of those of the handshake, each has the one form that it may have."""
    name, _, value = header.partition(": ")
    right = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    with pytest.raises(Refused, match="accepts only websockets"):
        read_request(Request("GET", "/v1/proxy/gemini-live", [*{**right, name: value}.items()]), SETTINGS)


@every_row(
    "name",
    (
        *("X-ELEVENLABS-KEY", "OcpApimSubscriptionKey", "sessiontoken", "refreshToken", "oauth_verifier", "xApiKey"),
        *("clientSecret", "Authentication", "X-Authz", "client_assertion", "APIKEY", "x-goog-iam-authorization-token"),
        *("x-hub-signature-256", "secretKey", "user%5Bpassword%5D", "PRIVATE_KEY", "X-CSRF"),
    ),
)
def test_names_of_credentials(name: str) -> None:
    """However they are written."""
    assert is_credential(name)


def test_what_is_no_credential_goes_on() -> None:
    """Names that only look a little like one are those of settings."""
    for name in (
        "keyterm",
        "keywords",
        "max_tokens",
        "author",
        "model",
        "OpenAI-Beta",
        "User-Agent",
        "monkey",
        "design",
    ):
        assert not is_credential(name)
    kept = ("OpenAI-Beta: realtime=v1", "User-Agent: mine", "OpenAI-Safety-Identifier: ann", "X-Request-Id: 7")
    head = head_for("openai-realtime", "keyterm=a&max_tokens=5", *kept, f"Authorization: Bearer {KEY}")
    assert [] == [line for line in kept if line not in head]
    protocols = "Sec-WebSocket-Protocol: realtime, openai-beta.realtime-v1"
    assert protocols in head_for("openai-realtime", "", protocols, f"X-Voicemem-Key: {KEY}")


def test_a_path_with_a_key_is_refused() -> None:
    """It cannot be left out of a path."""
    with pytest.raises(Exception, match="path would show a key"):
        head_for("openai-realtime", "", f"X-Voicemem-Key: {OTHER}", path=f"/calls/{quote(OTHER)}")


@pytest.mark.parametrize("scheme", ["token", "bearer"])
async def test_a_browser_that_shows_its_key_in_two_subprotocols(serve: Serve, scheme: str) -> None:
    """It calls with a key of the memory, and is answered with the protocol that it offered; the vendor sees neither."""
    app = await serve()
    key = await make_key(app, "ingest")
    offered: Any = [scheme, key]
    kept = {"deepgram-agent": UpstreamKey("Authorization", "Token sk-operator")}
    async with (
        vendor_at() as (url, vendor),
        proxy_to(app, {"deepgram-agent": url}, kept) as proxy,
        connect(proxy.url("deepgram-agent"), subprotocols=offered) as caller,
    ):
        assert scheme == caller.subprotocol
        request = (await vendor.connected).request
        assert request is not None
        assert "Token sk-operator" == request.headers["Authorization"]
        assert "Sec-WebSocket-Protocol" not in request.headers
        assert key not in str([*request.headers.raw_items(), request.path])
        assert 401 == await status(proxy, [scheme, "vm_guessed"])


async def status(proxy: RunningProxy, offered: Any) -> int:
    try:
        async with connect(proxy.url("deepgram-agent"), subprotocols=offered):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code
