"""MCP over streamable HTTP: the SDK's application behind a check of keys, with the resource's metadata."""

import asyncio
import hashlib
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse

from voicemem.client.errors import ClientError, RequestRefused
from voicemem.config.service import Address, is_loopback
from voicemem.errors import CannotStart
from voicemem.mcp.client import Client, Service, client_with, sentence_of
from voicemem.mcp.server import MemoryServer

PATH = "/mcp"
METADATA_PATH = "/.well-known/oauth-protected-resource"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
ANY_SESSION = ("/v1/sessions", {"limit": "1", "fields": "overview"})


class Refusal(NamedTuple):
    """A refusal of a request; `error` is the code of RFC 6750."""

    status: int
    error: str
    sentence: str


NO_KEY = Refusal(401, "invalid_token", "Send a key or a session token of voicemem as Authorization: Bearer KEY.")
OTHER_SCHEME = Refusal(401, "invalid_request", "The header Authorization must be Bearer KEY.")
TWO_KEYS = Refusal(400, "invalid_request", "The header Authorization may be sent once.")
OPEN_SERVICE = Refusal(
    403,
    "access_denied",
    "The memory service has no keys, so everyone who reaches this address could read everything. Create a key, or "
    "listen on loopback, or allow it with --insecure.",
)


def bearer_in(authorization: str | None) -> str | None:
    return None if authorization is None else authorization.partition(" ")[2].strip()


class KeyCheck:
    """Checks the key of each request. `is_private`: only this machine reaches the address, or everyone may."""

    def __init__(self, service: Service, is_private: bool) -> None:
        self.service = service
        self.is_private = is_private
        self.known: OrderedDict[bytes, float] = OrderedDict()
        self.needs_key = False
        """True if the service has required a key; once it does, it always will."""

    async def refuse(self, authorization: str | None) -> Refusal | None:
        """Return why a client is refused. While the service is away, none is: the tools say so; lists are no secret."""
        bearer = bearer_in(authorization)
        if authorization is not None and (authorization.partition(" ")[0].lower() != "bearer" or not bearer):
            return OTHER_SCHEME
        if not self.is_private and not self.needs_key and await self.refusal_of(Client(self.service)) is None:
            return OPEN_SERVICE
        digest = hashlib.sha256((bearer or "").encode("utf-8", "replace")).digest()
        if self.known.get(digest, 0.0) > time.monotonic():
            return None
        try:
            refusal = await self.refusal_of(client_with(self.service, bearer))
        except ClientError as error:
            return Refusal(401, "invalid_token", sentence_of(error))
        if refusal is None:
            self.known[digest] = time.monotonic() + 10.0  # the service checks it again with each request for a tool
            if len(self.known) > 1_000:
                self.known.popitem(last=False)
        return refusal

    async def refusal_of(self, client: Client) -> Refusal | None:
        """Ask the service about a client. Return its refusal, or None."""
        path, query = ANY_SESSION if client.session_id is None else (f"/v1/sessions/{client.session_id}", {})
        try:
            await client.get(path, query)
        except RequestRefused as refused:
            if refused.status == 401:
                self.needs_key = True
                return NO_KEY if client.bearer is None else Refusal(401, "invalid_token", sentence_of(refused))
            if refused.status == 429:
                return Refusal(429, "slow_down", sentence_of(refused))
        except ClientError:
            pass
        return None


class HttpSettings(NamedTuple):
    """The address of the server; `public_url` is the URL at which clients reach it, if another."""

    address: Address
    public_url: str | None = None
    issuer: str | None = None
    insecure: bool = False

    @property
    def is_private(self) -> bool:
        """True if only this machine can reach it, or the operator allows everyone."""
        public_host = None if self.public_url is None else urlsplit(self.public_url).hostname
        return self.insecure or (self.address.is_loopback and (public_host is None or is_loopback(public_host)))


class GuardedApp:
    """The SDK's application behind a check of keys."""

    def __init__(self, app: Any, keys: KeyCheck, settings: HttpSettings, port: int) -> None:
        self.app = app
        self.keys = keys
        self.resource = settings.public_url or f"http://{settings.address._replace(port=port)}{PATH}"
        parts = urlsplit(self.resource)
        self.metadata_path = METADATA_PATH + parts.path.rstrip("/")
        self.metadata_url = f"{parts.scheme}://{parts.netloc}{self.metadata_path}"
        self.metadata = {  # RFC 9728; without an issuer, the key comes from the operator of the service
            "resource": self.resource,
            "resource_name": "voicemem",
            "bearer_methods_supported": ["header"],
            **({} if settings.issuer is None else {"authorization_servers": [settings.issuer]}),
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = await self.answer(scope) if scope["type"] == "http" else None
        await (answer or self.app)(scope, receive, send)

    async def answer(self, scope: Any) -> JSONResponse | None:
        if scope["path"] in (METADATA_PATH, METADATA_PATH + PATH, self.metadata_path):
            return JSONResponse(self.metadata, headers={"Access-Control-Allow-Origin": "*"})
        shown = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        refusal = TWO_KEYS if len(shown) > 1 else await self.keys.refuse(shown[0] if shown else None)
        if refusal is not None:  # with the address of the metadata about access (RFC 6750, RFC 9728)
            challenge = f'Bearer error="{refusal.error}", resource_metadata="{self.metadata_url}"'
            headers = {"WWW-Authenticate": challenge} if refusal.status == 401 else {}
            body = {"error": refusal.error, "error_description": refusal.sentence}
            return JSONResponse(body, refusal.status, headers)
        if scope["path"] == PATH and scope["method"] != "POST":  # a stream that no one would write to
            return JSONResponse({"error": "Only POST is served here."}, 405, {"Allow": "POST"})
        return None


def hosts_of(settings: HttpSettings) -> TransportSecuritySettings:
    """Return the `Host` names to accept: on loopback only its own and the public one, so that no web page gets in."""
    if not settings.address.is_loopback:
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    public = [] if settings.public_url is None else [urlsplit(settings.public_url).netloc]
    names = [form for name in LOOPBACK_NAMES for form in (name, f"{name}:*")]
    origins = [f"{scheme}://{name}" for name in (*names, *public) for scheme in ("http", "https")]
    return TransportSecuritySettings(allowed_hosts=[*names, *public], allowed_origins=origins)


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers: it stops when `should_exit` is set."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def http_server(service: Service, settings: HttpSettings) -> AsyncIterator[str]:
    """Serve during the block, which gets the URL. Raises `OSError` for an unavailable address."""
    family = socket.AF_INET6 if ":" in settings.address.host else socket.AF_INET
    listening = socket.create_server(settings.address, family=family, backlog=2048)
    memory = MemoryServer(lambda request: client_with(service, bearer_in(request.headers.get("authorization"))))
    app = memory.protocol.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, transport_security=hosts_of(settings)
    )
    guarded = GuardedApp(app, KeyCheck(service, settings.is_private), settings, listening.getsockname()[1])
    quiet: Any = {"log_config": None, "access_log": False, "server_header": False}
    # Seconds for requests that are being answered.
    config = uvicorn.Config(guarded, ws="none", lifespan="on", timeout_graceful_shutdown=3, **quiet)
    server = HttpServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield guarded.resource
    finally:
        server.should_exit = True
        await serving


async def check_reach(service: Service, settings: HttpSettings) -> None:
    """Raise `CannotStart` if other machines could reach a memory without keys, as far as is known now."""
    if settings.is_private:
        return
    with suppress(ClientError):  # it requires keys, or is away: then each request is checked
        await Client(service).get(*ANY_SESSION)
        raise CannotStart(OPEN_SERVICE.sentence)


async def serve_http(service: Service, settings: HttpSettings, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `started` gets the URL. Raises as `check_reach` and `http_server`."""
    await check_reach(service, settings)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with http_server(service, settings) as url:
        started(url)
        await stopped.wait()
