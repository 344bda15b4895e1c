"""Agora apps and their tokens: the holder of a certificate makes tokens that open its project on Agora's paths.

Agora gives every app two certificates, so that one can be replaced while the other is in use. Here the newer one is the
app's certificate, and the previous one stays valid until it is retired or until the next rotation.

A token is `007` and the base64 of a zlib stream of: signature, App ID, time of issue, lifetime, salt, and
services with their privileges. Numbers are little-endian; texts, and the signature, have their length in front.
The signature covers everything after it, and only the App ID is used before it is verified.
"""

import base64
import binascii
import hmac
import io
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from voicemem.errors import Refused
from voicemem.protocol.types import matching
from voicemem.security.access import SCOPES, Access, Grant, check_project, check_scopes
from voicemem.security.audit import audit
from voicemem.server.http.request import Request
from voicemem.server.http.routes import Routes
from voicemem.server.rest.keys import Scopes
from voicemem.store.directory import AgoraApp

VERSION = "007"
APP_ID_PATTERN = re.compile(r"[0-9A-Fa-f]{32}\Z", re.ASCII)
"""The form of app ids and certificates."""
MAX_TOKEN_LENGTH = 2048
MAX_CONTENT_BYTES = 4096
"""The size limit of an inflated token; Agora's builders make some 200 bytes."""
MAX_LIFETIME_S = 86_400
"""Agora's own limit; a token with a longer lifetime is valid for this long."""
CLOCK_SKEW_S = 60
"""How far the clock of a token's issuer may be ahead."""
RTC_SERVICE = 1
"""The type of the RTC service. Agora's builders write services in ascending order of type, so it is the first."""
JOIN_CHANNEL = 1
ANY_CHANNEL = "*"
NOT_A_TOKEN = "The token is not an AccessToken2 of Agora's (007…); make it with Agora's SDK or token builder."  # noqa: S105
WRONG_SIGNATURE = "The token is not signed with a certificate of an App ID that is registered here."
"""One sentence for both errors: a client must not learn which App IDs are registered."""
NO_CHANNEL = "The token must have the privilege to join a channel; make it as for a user of a channel (RTC)."
EXPIRED = "The token has expired; make a new one."


class SignedToken(Struct, frozen=True):
    """A decoded token, of which only the form was checked."""

    app_id: str
    issued_s: int
    lifetime_s: int
    salt: int
    signature: bytes
    signed: bytes
    service_count: int
    services: bytes


class Reader(io.BytesIO):
    """Reads the fields of a token in order. Raises `ValueError` at the end of the content."""

    def take(self, size: int) -> bytes:
        taken = self.read(size)
        if len(taken) < size:
            raise ValueError("the content ends too early")
        return taken

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text(self) -> bytes:
        return self.take(self.uint(2))

    def rest(self) -> bytes:
        return self.getvalue()[self.tell() :]


def looks_like_agora_token(text: str) -> bool:
    """Return whether this begins like an Agora token, of any version, and not like a key or session token."""
    return re.match(r"00[0-9][A-Za-z0-9+/]", text) is not None


def decode_agora_token(text: str) -> SignedToken:
    """Decode an untrusted token. Raises `Refused` (`unauthorized`)."""
    try:
        reader = Reader(inflate(text))
        signature, signed = reader.text(), reader.rest()
        app_id = reader.text().decode("ascii")
        issued_s, lifetime_s, salt, service_count = (reader.uint(4), reader.uint(4), reader.uint(4), reader.uint(2))
    except ValueError:
        raise Refused("unauthorized", NOT_A_TOKEN) from None
    if not APP_ID_PATTERN.match(app_id):
        raise Refused("unauthorized", NOT_A_TOKEN)
    return SignedToken(app_id, issued_s, lifetime_s, salt, signature, signed, service_count, reader.rest())


def inflate(text: str) -> bytes:
    """Inflate the content of a token, up to `MAX_CONTENT_BYTES`. Raises `ValueError`."""
    if not text.startswith(VERSION) or len(text) > MAX_TOKEN_LENGTH:
        raise ValueError("another version, or too long")
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(base64.b64decode(text[len(VERSION) :], validate=True), MAX_CONTENT_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("too large, cut off, or followed by other data")
    return content


def verify_agora_token(token: SignedToken, certificates: Iterable[str], now_ms: int) -> tuple[str, int]:
    """Verify a token. Return its channel and expiry, Unix ms. Raises `Refused` (`unauthorized`, `token_expired`)."""
    if not any(is_signed_with(token, certificate) for certificate in certificates):
        raise Refused("unauthorized", WRONG_SIGNATURE)
    if token.issued_s * 1000 > now_ms + CLOCK_SKEW_S * 1000:
        raise Refused("unauthorized", "The token was issued in the future; check the issuer's clock.")
    channel, privilege_s = channel_of(token)
    lifetimes = [MAX_LIFETIME_S, token.lifetime_s, *([privilege_s] if privilege_s else [])]
    expires_ms = (token.issued_s + min(lifetimes)) * 1000
    if expires_ms <= now_ms:
        raise Refused("token_expired", EXPIRED)
    return channel, expires_ms


def is_signed_with(token: SignedToken, certificate: str) -> bool:
    key = hmac.digest(struct.pack("<I", token.issued_s), certificate.encode(), "sha256")
    key = hmac.digest(struct.pack("<I", token.salt), key, "sha256")
    return hmac.compare_digest(hmac.digest(key, token.signed, "sha256"), token.signature)


def channel_of(token: SignedToken) -> tuple[str, int]:
    """Return a token's channel, and for how many seconds (0: while it is valid). Raises `Refused` (`unauthorized`)."""
    reader = Reader(token.services)
    try:
        if token.service_count == 0 or reader.uint(2) != RTC_SERVICE:
            raise Refused("unauthorized", NO_CHANNEL)
        privileges = {reader.uint(2): reader.uint(4) for _ in range(reader.uint(2))}
        channel = reader.text().decode()
    except ValueError:
        raise Refused("unauthorized", NOT_A_TOKEN) from None
    if JOIN_CHANNEL not in privileges or not channel:
        raise Refused("unauthorized", NO_CHANNEL)
    return channel, privileges[JOIN_CHANNEL]


APP_ID_RULE = "An App ID is 32 hexadecimal digits, as Agora's console shows it"
CERTIFICATE_RULE = "A certificate is 32 hexadecimal digits, as Agora's console shows it"
HEX_32 = r"^[0-9A-Fa-f]{32}\Z"
AgoraAppId = Annotated[str, matching(HEX_32, APP_ID_RULE)]
Certificate = Annotated[str, matching(HEX_32, CERTIFICATE_RULE)]


class AppRegistry:
    """Registers Agora apps and verifies their tokens."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.directory = access.directory

    async def grant(self, text: str | None) -> Grant:
        """Return the grant of a key or an app token. Raises `Refused` (`unauthorized`, `token_expired`)."""
        if text is None or not looks_like_agora_token(text) or self.access.is_admin_key(text):
            return await self.access.grant(text)
        token = decode_agora_token(text)
        app = await self.directory.find_agora_app(token.app_id)
        if app is None:
            raise Refused("unauthorized", WRONG_SIGNATURE)
        certificates = filter(None, (app.certificate, app.old_certificate))
        channel, expires_ms = verify_agora_token(token, certificates, self.access.clock())
        return Grant(app.project, app.scopes, app.app_id, expires_ms=expires_ms, channel=channel)

    async def opens(self, grant: Grant, app_id: str) -> bool:
        """Return whether a path with this App ID means the client's project."""
        if grant.channel is not None:
            return app_id == grant.key_id
        if app_id == grant.project:
            return True
        app = await self.directory.find_agora_app(app_id)
        return app is not None and app.project == grant.project

    async def list(self, project: str | None) -> list[AgoraApp]:
        return [app for app in await self.directory.list_agora_apps() if project in (None, app.project)]

    async def add(self, project: str, app_id: str, certificate: str, scopes: Sequence[str] = SCOPES) -> AgoraApp:
        """Register an app. Raises `Refused` (`invalid_field`; `agora_app_exists`, even if it is another project's)."""
        check_project(project)
        check_scopes(scopes)
        if not APP_ID_PATTERN.match(app_id):
            raise Refused("invalid_field", f"{APP_ID_RULE}.")
        check_certificate(certificate)
        app = AgoraApp(app_id, project, certificate, tuple(dict.fromkeys(scopes)), self.access.clock())
        if not await self.directory.add_agora_app(app):
            raise Refused("agora_app_exists")
        self.access.has_seen_key = True
        return app

    async def rotate(self, project: str | None, app_id: str, certificate: str) -> AgoraApp:
        """Rotate the certificate; the last stays valid. Raises `Refused` (`invalid_field`, `unknown_agora_app`)."""
        check_certificate(certificate)

        def change(app: AgoraApp) -> AgoraApp:
            is_same = certificate == app.certificate
            return app if is_same else replace(app, certificate=certificate, old_certificate=app.certificate)

        return await self.change(project, app_id, change)

    async def retire(self, project: str | None, app_id: str) -> AgoraApp:
        """Invalidate the certificate before the last rotation. Raises `Refused` (`unknown_agora_app`)."""
        return await self.change(project, app_id, lambda app: replace(app, old_certificate=None))

    async def remove(self, project: str | None, app_id: str) -> AgoraApp:
        """Remove an app; its tokens are refused from now on. Raises `Refused` (`unknown_agora_app`)."""
        app = await self.find(project, app_id)
        if not await self.directory.remove_agora_app(app_id):
            raise Refused("unknown_agora_app")
        return app

    async def find(self, project: str | None, app_id: str) -> AgoraApp:
        app = await self.directory.find_agora_app(app_id)
        if app is None or project not in (None, app.project):
            raise Refused("unknown_agora_app")
        return app

    async def change(self, project: str | None, app_id: str, change: Callable[[AgoraApp], AgoraApp]) -> AgoraApp:
        await self.find(project, app_id)
        changed = await self.directory.change_agora_app(app_id, change)
        if changed is None:
            raise Refused("unknown_agora_app")
        return changed


def check_certificate(certificate: str) -> None:
    if not APP_ID_PATTERN.match(certificate):
        raise Refused("invalid_field", f"{CERTIFICATE_RULE}.")


APPS = web.AppKey("agora_apps", AppRegistry)


class NewAgoraApp(Struct, frozen=True, forbid_unknown_fields=True):
    """An Agora app, and the scopes of tokens signed with its certificate."""

    app_id: AgoraAppId
    certificate: Certificate
    scopes: Scopes = ("ingest", "read", "admin")


class NewCertificate(Struct, frozen=True, forbid_unknown_fields=True):
    """The certificate that signs from now on."""

    certificate: Certificate


class ShownAgoraApp(Struct, frozen=True):
    """An app without its certificates; `has_old_certificate` until the one before the last rotation is retired."""

    app_id: AgoraAppId
    project: str
    scopes: list[str]
    created_at: int
    has_old_certificate: bool


class AgoraApps(Struct, frozen=True):
    """The apps, the oldest first."""

    agora_apps: list[ShownAgoraApp]


def app_view(app: AgoraApp) -> ShownAgoraApp:
    return ShownAgoraApp(app.app_id, app.project, list(app.scopes), app.created_ms, app.old_certificate is not None)


AGORA_APPS = "/v1/agora-apps"
AGORA_APP = AGORA_APPS + "/{app_id}"
ROUTES = Routes()
add_route_of_app = partial(ROUTES.add, placeholders={"app_id": AgoraAppId})


@ROUTES.add(f"GET {AGORA_APPS}", "admin")
async def list_agora_apps(request: Request) -> AgoraApps:
    """List the project's Agora apps, without their certificates."""
    apps = await request.shared[APPS].list(request.grant.project)
    return AgoraApps([app_view(app) for app in apps])


@ROUTES.add(f"POST {AGORA_APPS}", "admin", codes="invalid_field agora_app_exists no_keys", status=201)
async def add_agora_app(request: Request, body: NewAgoraApp) -> ShownAgoraApp:
    """Register an Agora app: tokens signed with its certificate open the project on Agora's paths."""
    grant = request.grant
    request.services.access.key_of(grant)
    app = await request.shared[APPS].add(grant.project, body.app_id, body.certificate, body.scopes)
    audit("agora_app_added", grant, app.project, app=app.app_id, scopes=app.scopes)
    return app_view(app)


@add_route_of_app(f"DELETE {AGORA_APP}", "admin", codes="unknown_agora_app")
async def remove_agora_app(request: Request) -> None:
    """Remove an Agora app and its certificates: its tokens are refused from now on."""
    grant, app_id = request.grant, request.in_path["app_id"]
    await request.shared[APPS].remove(grant.project, app_id)
    audit("agora_app_removed", grant, grant.project, app=app_id)


@add_route_of_app(f"POST {AGORA_APP}/rotate-certificate", "admin", codes="unknown_agora_app")
async def rotate_agora_certificate(request: Request, body: NewCertificate) -> ShownAgoraApp:
    """Give an app a new certificate; the previous one stays valid until it is retired, or until the next rotation."""
    grant, app_id = request.grant, request.in_path["app_id"]
    app = await request.shared[APPS].rotate(grant.project, app_id, body.certificate)
    audit("agora_certificate_rotated", grant, grant.project, app=app_id)
    return app_view(app)


@add_route_of_app(f"POST {AGORA_APP}/retire-certificate", "admin", codes="unknown_agora_app")
async def retire_agora_certificate(request: Request) -> ShownAgoraApp:
    """Refuse tokens signed with the certificate before the last rotation from now on."""
    grant, app_id = request.grant, request.in_path["app_id"]
    app = await request.shared[APPS].retire(grant.project, app_id)
    audit("agora_certificate_retired", grant, grant.project, app=app_id)
    return app_view(app)
