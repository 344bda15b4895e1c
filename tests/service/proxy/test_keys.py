"""Keys of the vendor and of the memory at the proxy: who may call, and that neither key goes where it should not."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from typing import Any

import jwt
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.callers.tees import vendor_at
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.servers.voice_proxy import RunningProxy, proxy_to
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.config.service import Address
from voicemem.errors import CannotStart, RateLimited
from voicemem.proxy.key_check import FRESH_S
from voicemem.proxy.settings import UpstreamKey, parse_upstream_keys, parse_upstreams

ADMIN_KEY = "the operator's own key"
VENDOR_KEY = "sk-vendor-key"
DIALECT = "openai-realtime"
KEPT = {DIALECT: UpstreamKey("Authorization", f"Bearer {VENDOR_KEY}")}
OPEN = Address("0.0.0.0", 0)
FRAME = '{"type":"session.created","event_id":"event_1","session":{"id":"sess_1"}}'


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with keys."""
    return await serve(admin_key=ADMIN_KEY)


async def status(url: str, **options: Any) -> int:
    """The status of a handshake."""
    try:
        async with connect(url, **options):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


async def remembered(api: RestClient, session_id: str = "sess_1") -> None:
    """A session has what the vendor said."""

    async def state() -> int:
        return (await api.get(f"/v1/sessions/{session_id}")).status

    await eventually(200, state)


async def test_the_operator_s_vendor_key_is_not_for_everyone_on_the_machine(app: App, serve: Serve) -> None:
    """Such as callers of a proxy before it: they need a key, unless the proxy has its own or the memory none."""
    key = await make_key(app, "ingest")
    for service, own, expected in ((app, None, 401), (app, key, 101), (await serve(), None, 101), (None, None, 503)):
        async with vendor_at() as (url, _), proxy_to(service, {DIALECT: url}, KEPT, key=own) as proxy:
            assert expected == await status(proxy.url(DIALECT))
            with_own = {"Authorization": f"Bearer {VENDOR_KEY}"}
            async with proxy_to(service, {DIALECT: url}) as forwarding:
                assert 101 == await status(forwarding.url(DIALECT), additional_headers=with_own)


async def test_the_vendor_s_key_passes_and_ours_does_not(app: App) -> None:
    """With a key in X-Voicemem-Key the call is remembered in its project; the vendor sees its own key alone."""
    key = await make_key(app, "ingest", "read", project="shop")
    api = RestClient(app, key)
    async with vendor_at() as (url, vendor), proxy_to(app, {DIALECT: url}) as proxy:
        headers = {"Authorization": f"Bearer {VENDOR_KEY}", "X-Voicemem-Key": key}
        async with connect(proxy.url(DIALECT), additional_headers=headers) as caller:
            upstream = await vendor.connected
            await upstream.send(FRAME)
            await caller.recv()
            await remembered(api)
            assert upstream.request is not None
            assert f"Bearer {VENDOR_KEY}" == upstream.request.headers["Authorization"]
            assert key not in str([*upstream.request.headers.raw_items()])


async def test_the_proxy_s_own_key(app: App) -> None:
    """On loopback a caller may show none."""
    key = await make_key(app, "ingest", "read")
    api = RestClient(app, key)
    async with (
        vendor_at() as (url, vendor),
        proxy_to(app, {DIALECT: url}, key=key) as proxy,
        connect(proxy.url(DIALECT)) as caller,
    ):
        await (await vendor.connected).send(FRAME)
        await caller.recv()
        await remembered(api)


async def test_the_operator_keeps_the_vendor_s_key(app: App) -> None:
    """The SDK shows a key of the memory as its own; the vendor gets the operator's, and nothing else that is a key."""
    key = await make_key(app, "ingest", "read", project="shop")
    api = RestClient(app, key)
    async with vendor_at() as (url, vendor), proxy_to(app, {DIALECT: url}, KEPT) as proxy:
        extra = {"api-key": "mine", "Cookie": "a=b"}
        async with (
            AsyncOpenAI(api_key=key, websocket_base_url=proxy.url(DIALECT)) as sdk,
            sdk.realtime.connect(
                model="gpt-realtime", extra_headers=extra, extra_query={"key": "mine", "tier": "1"}
            ) as caller,
        ):
            upstream = await vendor.connected
            await upstream.send(FRAME)
            await caller.recv()
            await remembered(api)
            assert upstream.request is not None
            assert f"Bearer {VENDOR_KEY}" == upstream.request.headers["Authorization"]
            sent = [*upstream.request.headers.raw_items(), ("path", upstream.request.path)]
            assert not [value for _, value in sent if "mine" in value or key in value or value == "a=b"]
            assert "tier=1" in upstream.request.path


@pytest.mark.parametrize("scope", ["ingest", "admin"])
async def test_a_key_in_a_subprotocol(app: App, scope: str) -> None:
    """A browser shows it as openai-insecure-api-key.KEY, which does not go on either; an admin's key will do, too."""
    key = await make_key(app, scope)
    protocols: Any = ["realtime", f"openai-insecure-api-key.{key}"]
    async with (
        vendor_at() as (url, vendor),
        proxy_to(app, {DIALECT: url}, KEPT) as proxy,
        connect(proxy.url(DIALECT), subprotocols=protocols),
    ):
        request = (await vendor.connected).request
        assert request is not None
        assert ["realtime"] == request.headers.get_all("Sec-WebSocket-Protocol")


async def test_a_session_token(app: App) -> None:
    """It opens the call of its own session."""
    admin = await client_with_key(app, "admin")
    await admin.create("call")
    made = await admin.post("/v1/sessions/call/tokens", {})
    assert 2 == made.status // 100, made.json
    headers = {"X-Voicemem-Key": made.json["token"], "X-Voicemem-Session": "call"}
    async with (
        vendor_at() as (url, vendor),
        proxy_to(app, {DIALECT: url}, KEPT) as proxy,
        connect(proxy.url(DIALECT), additional_headers=headers) as caller,
    ):
        await (await vendor.connected).send(FRAME)
        await caller.recv()
        await remembered(admin, "call")


@pytest.mark.parametrize("keeps", [True, False])
async def test_wrong_keys(app: App, keeps: bool) -> None:
    """A key that the memory does not know, or that may not send events, is refused before anything is dialled."""
    reader = await make_key(app, "read")
    async with vendor_at() as (url, vendor), proxy_to(app, {DIALECT: url}, KEPT if keeps else {}) as proxy:
        for key, expected in (("vm_wrong", 401), (reader, 403), ("ä", 401)):
            assert expected == await status(proxy.url(DIALECT), additional_headers={"X-Voicemem-Key": key})
        assert not vendor.connected.done()
        assert f'code="unauthorized"}} {2}' in proxy.server.metrics()


async def test_beyond_loopback_a_key_is_needed(app: App) -> None:
    """Who shows none is refused, also where the proxy has one of its own, but with --insecure."""
    key = await make_key(app, "ingest")
    async with vendor_at() as (url, _), proxy_to(app, {DIALECT: url}, key=key, listen=OPEN) as proxy:
        assert 401 == await status(proxy.url(DIALECT))
        assert 101 == await status(proxy.url(DIALECT), additional_headers={"X-Voicemem-Key": key})
    async with vendor_at() as (url, _), proxy_to(app, {DIALECT: url}, key=key, listen=OPEN, insecure=True) as proxy:
        assert 101 == await status(proxy.url(DIALECT))


async def test_beyond_loopback_a_memory_needs_keys(serve: Serve) -> None:
    """A memory without keys would let everybody in."""
    async with vendor_at() as (url, _), proxy_to(await serve(), {DIALECT: url}, listen=OPEN) as proxy:
        assert 403 == await status(proxy.url(DIALECT), additional_headers={"X-Voicemem-Key": "any"})


async def test_keys_while_the_memory_is_away(app: App) -> None:
    """One that was good is good until its grace is over; a new one will do where the caller has the vendor's key."""
    known, new = await make_key(app, "ingest"), await make_key(app, "ingest")
    for keeps, expected in ((True, 503), (False, 101)):
        async with NetworkProxy(app.rest_address) as network, vendor_at() as (url, vendor):
            rest = f"http://{network.address}"
            async with proxy_to(app, {DIALECT: url}, KEPT if keeps else {}, rest_url=rest) as proxy:

                async def answered(key: str) -> int:
                    vendor.connected = vendor.connected.get_loop().create_future()
                    return await status(proxy.url(DIALECT), additional_headers={"X-Voicemem-Key": key})

                assert 101 == await answered(known)
                await network.down()
                for seconds, status_then in ((0, 101), (FRESH_S + 1, 101), (590, 101), (601, expected)):
                    age(proxy, seconds)
                    assert status_then == await answered(known)
                assert expected == await answered(new)


def age(proxy: RunningProxy, seconds: float) -> None:
    """As if the memory had last known each key, and been away, so long before."""
    keys = proxy.server.keys
    keys.away_s = -FRESH_S
    for digest in keys.known:
        keys.known[digest] = time.monotonic() - seconds


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_revoked_key(app: App, keeps: bool) -> None:
    """It makes no call after five seconds; the calls that it has made go on."""
    admin = await client_with_key(app, "admin")
    made = (await admin.post("/v1/keys", {"name": "worker", "scopes": ["ingest"]})).json
    async with vendor_at() as (url, vendor), proxy_to(app, {DIALECT: url}, KEPT if keeps else {}) as proxy:
        shown = {"X-Voicemem-Key": made["key"]}
        async with connect(proxy.url(DIALECT), additional_headers=shown) as caller:
            assert 2 == (await admin.delete(f"/v1/keys/{made['id']}")).status // 100
            until = time.monotonic() + 5

            async def again() -> int:
                return await status(proxy.url(DIALECT), additional_headers=shown)

            upstream = await vendor.connected
            vendor.connected = vendor.connected.get_loop().create_future()
            await eventually(401, again)
            assert time.monotonic() < until
            await upstream.send(FRAME)
            assert FRAME == await caller.recv()


async def test_a_revoked_key_is_known_behind_a_flood_of_wrong_ones(app: App) -> None:
    """The memory then says that too many wrong keys came from the proxy, which is no reason to let one in."""
    admin = await client_with_key(app, "admin")
    made = (await admin.post("/v1/keys", {"name": "worker", "scopes": ["ingest"]})).json
    async with vendor_at() as (url, _), proxy_to(app, {DIALECT: url}, KEPT) as proxy:
        shown = {"X-Voicemem-Key": made["key"]}
        assert 101 == await status(proxy.url(DIALECT), additional_headers=shown)
        await admin.delete(f"/v1/keys/{made['id']}")
        with suppress(RateLimited):
            while True:
                app.services.limits.count_wrong_key("127.0.0.1")
        age(proxy, FRESH_S + 1)
        assert 401 == await status(proxy.url(DIALECT), additional_headers=shown)


async def test_a_token_that_expires(app: App) -> None:
    """It is refused from that moment, without a question, also while the memory is away."""
    admin = await client_with_key(app, "admin")
    await admin.create("call")
    token = (await admin.post("/v1/sessions/call/tokens", {"ttl_seconds": 2})).json["token"]
    shown = {"X-Voicemem-Key": token}
    async with (
        NetworkProxy(app.rest_address) as network,
        vendor_at() as (url, vendor),
        proxy_to(app, {DIALECT: url}, KEPT, rest_url=f"http://{network.address}") as proxy,
    ):
        assert 101 == await status(proxy.url(DIALECT), additional_headers=shown)
        await network.down()
        expires_s = jwt.decode(token, options={"verify_signature": False})["exp"]
        await asyncio.sleep(max(0.0, expires_s - time.time()))
        vendor.connected = vendor.connected.get_loop().create_future()
        assert 401 == await status(proxy.url(DIALECT), additional_headers=shown)
        assert 'code="token_expired"} 1' in proxy.server.metrics()
        assert not vendor.connected.done()


async def test_nothing_of_keys_is_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Neither keys nor queries nor what is said stand in the log, whatever becomes of the call."""
    caplog.set_level(logging.DEBUG)
    key = await make_key(app, "ingest")
    async with vendor_at() as (url, vendor), proxy_to(app, {DIALECT: url}) as proxy:
        headers = {"Authorization": f"Bearer {VENDOR_KEY}", "X-Voicemem-Key": key}
        async with connect(f"{proxy.url(DIALECT)}?model=secret-model", additional_headers=headers) as caller:
            await (await vendor.connected).send(FRAME.replace("sess_1", "sess_2"))
            await caller.recv()
        wrong = {"Authorization": f"Bearer {VENDOR_KEY}", "X-Voicemem-Key": "vm_wrong_key"}
        assert 401 == await status(proxy.url(DIALECT), additional_headers=wrong)
        for call in list(proxy.server.calls):
            await call
    logged = " ".join(str(vars(record)) for record in caplog.records if record.name.startswith("voicemem"))
    assert "A call has ended" in logged
    assert [] == [text for text in (VENDOR_KEY, key, "vm_wrong_key", "secret-model") if text in logged]


def test_settings_that_cannot_be() -> None:
    """Each is one sentence, which says what would be right."""
    for texts, sentence in (
        ([], "Say where calls go"),
        (["openai-realtim=wss://x"], "did you mean"),
        ([f"{DIALECT}=https://x"], "wss://HOST/PATH"),
        ([f"{DIALECT}=wss://user:pass@x"], "without user"),
        ([f"{DIALECT}=wss://x:port"], "wss://HOST/PATH"),
        ([f"{DIALECT}=wss://x", f"{DIALECT}=wss://y"], "twice"),
    ):
        with pytest.raises(CannotStart, match=sentence):
            parse_upstreams(texts, {})
    with pytest.raises(CannotStart, match="no --upstream"):
        parse_upstreams(["gemini-live=wss://x"], KEPT)
    for text in (f"{DIALECT}=NONE", DIALECT, f"{DIALECT}=a b:KEY"):
        with pytest.raises(CannotStart, match="upstream-key-env"):
            parse_upstream_keys([text], {"KEY": "sk"})
    assert (
        UpstreamKey("xi-api-key", "sk")
        == parse_upstream_keys(["elevenlabs-agents=K"], {"K": "sk"})["elevenlabs-agents"]
    )
    deepgram = parse_upstream_keys(["deepgram-agent=K"], {"K": "sk"})["deepgram-agent"]
    assert UpstreamKey("Authorization", "Token sk") == deepgram
    assert UpstreamKey("api-key", "sk") == parse_upstream_keys([f"{DIALECT}=api-key:K"], {"K": "sk"})[DIALECT]


async def test_what_a_caller_shows_as_credentials_is_not_remembered(app: App) -> None:
    """Wherever it stands in a message, in a text or in JSON within one; the messages themselves pass as they are."""
    key = await make_key(app, "ingest", "read", project="shop")
    api = RestClient(app, key)
    others = "sk-vendors-0123456789", "cookie-0123456789", "query-0123456789"
    texts = [f"I say {one}, twice {one}" for one in (key, *others)]
    arguments = json.dumps({"header": f"Bearer {key}", "keys": [others[0]]})
    items: list[dict[str, Any]] = [
        *({"type": "message", "role": "user", "content": [{"type": "input_text", "text": one}]} for one in texts),
        {"type": "function_call", "call_id": "c", "name": "fetch", "arguments": arguments},
    ]
    async with vendor_at() as (url, vendor), proxy_to(app, {DIALECT: url}) as proxy:
        headers = {"Authorization": f"Bearer {others[0]}", "Cookie": others[1], "X-Voicemem-Key": key}
        async with connect(f"{proxy.url(DIALECT)}?api_key={others[2]}", additional_headers=headers) as caller:
            upstream = await vendor.connected
            await upstream.send(FRAME)
            for number, item in enumerate(items):
                added = {
                    "type": "conversation.item.added",
                    "event_id": f"e{number}",
                    "item": {"id": f"i{number}", **item},
                }
                frame = json.dumps(added).replace("sk-vendors", "sk-vend\\u006frs")
                await upstream.send(frame)
            frames = [str(await caller.recv()) for _ in range(len(items) + 1)]
            assert all(one in "".join(frames) for one in (key, *others[1:]))
            await remembered(api)

            async def found() -> int:
                return len(await api.journal("sess_1"))

            await eventually(len(items) + 1, found)
            kept = json.dumps(await api.journal("sess_1"))
            assert [] == [one for one in (key, *others) if one in kept]
            assert "I say ████" in kept.encode().decode("unicode_escape")
