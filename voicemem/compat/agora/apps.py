"""Apps of Agora's: anyone who has a certificate of one makes tokens that open its project on Agora's paths.

Agora gives every app two certificates, so that one can be replaced while the other is in use. Here the newer one is the
app's certificate, and the one before stays valid until it is retired or the next rotation.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from voicemem.compat.agora import tokens
from voicemem.errors import Refused
from voicemem.protocol.types import matching
from voicemem.security.access import SCOPES, Access, Grant, check_project, check_scopes
from voicemem.security.audit import audit
from voicemem.server.http.request import GRANT, json_response, read_struct
from voicemem.server.http.routes import Routes
from voicemem.server.rest.keys import Scopes
from voicemem.store.directory import AgoraApp

APP_ID_RULE = "An App ID is 32 hexadecimal digits, as Agora's console shows it"
CERTIFICATE_RULE = "A certificate is 32 hexadecimal digits, as Agora's console shows it"
HEX_32 = r"^[0-9A-Fa-f]{32}\Z"
AgoraAppId = Annotated[str, matching(HEX_32, APP_ID_RULE)]
Certificate = Annotated[str, matching(HEX_32, CERTIFICATE_RULE)]


class AppRegistry:
    """Registers apps of Agora's, and grants access to the holders of their tokens.

    `project` None stands for the operator, who reaches the apps of every project.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.directory = access.directory

    async def grant(self, text: str | None) -> Grant:
        """Return the grant of a key or of an app's token on Agora's paths.

        Raises `Refused` (`unauthorized`, `token_expired`).
        """
        if text is None or not tokens.looks_like_agora_token(text) or self.access.is_admin_key(text):
            return await self.access.grant(text)
        token = tokens.decode_agora_token(text)
        app = await self.directory.find_agora_app(token.app_id)
        if app is None:
            raise Refused("unauthorized", tokens.WRONG_SIGNATURE)
        certificates = filter(None, (app.certificate, app.old_certificate))
        channel, expires_ms = tokens.verify_agora_token(token, certificates, self.access.clock())
        return Grant(app.project, app.scopes, app.app_id, expires_ms=expires_ms, channel=channel)

    async def opens(self, grant: Grant, app_id: str) -> bool:
        """Return whether a path with this App ID means the caller's project."""
        if grant.channel is not None:
            return app_id == grant.key_id
        if app_id == grant.project:
            return True
        app = await self.directory.find_agora_app(app_id)
        return app is not None and app.project == grant.project

    async def list(self, project: str | None) -> list[AgoraApp]:
        return [app for app in await self.directory.list_agora_apps() if project in (None, app.project)]

    async def add(self, project: str, app_id: str, certificate: str, scopes: Sequence[str] = SCOPES) -> AgoraApp:
        """Register an app. Raises `Refused` (`invalid_field`; `agora_app_exists`, also for one of another project)."""
        check_project(project)
        check_scopes(scopes)
        if not tokens.APP_ID_PATTERN.match(app_id):
            raise Refused("invalid_field", f"{APP_ID_RULE}.")
        check_certificate(certificate)
        app = AgoraApp(app_id, project, certificate, tuple(dict.fromkeys(scopes)), self.access.clock())
        if not await self.directory.add_agora_app(app):
            raise Refused("agora_app_exists")
        self.access.has_seen_key = True
        return app

    async def rotate(self, project: str | None, app_id: str, certificate: str) -> AgoraApp:
        """Give an app a new certificate; the one before stays valid. The same again changes nothing.

        Raises `Refused` (`invalid_field`, `unknown_agora_app`).
        """
        check_certificate(certificate)

        def change(app: AgoraApp) -> AgoraApp:
            is_same = certificate == app.certificate
            return app if is_same else replace(app, certificate=certificate, old_certificate=app.certificate)

        return await self.change(project, app_id, change)

    async def retire(self, project: str | None, app_id: str) -> AgoraApp:
        """End the validity of the certificate before the last rotation. Raises `Refused` (`unknown_agora_app`)."""
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
    if not tokens.APP_ID_PATTERN.match(certificate):
        raise Refused("invalid_field", f"{CERTIFICATE_RULE}.")


APPS = web.AppKey("agora_apps", AppRegistry)


class NewAgoraApp(Struct, frozen=True, forbid_unknown_fields=True):
    """An app of Agora's, and what tokens signed with its certificate may do on Agora's paths."""

    app_id: AgoraAppId
    certificate: Certificate
    scopes: Scopes = ("ingest", "read", "admin")


class NewCertificate(Struct, frozen=True, forbid_unknown_fields=True):
    """The certificate that is to sign from now on."""

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
PLACEHOLDERS = {"app_id": AgoraAppId}
ROUTES = Routes()


@ROUTES.add(f"GET {AGORA_APPS}", "admin", AgoraApps)
async def list_agora_apps(request: web.Request) -> web.Response:
    """List the apps of Agora's of the project, without their certificates."""
    apps = await request.app[APPS].list(request[GRANT].project)
    return json_response(AgoraApps([app_view(app) for app in apps]))


@ROUTES.add(
    f"POST {AGORA_APPS}", "admin", ShownAgoraApp, NewAgoraApp, "invalid_field agora_app_exists no_keys", status=201
)
async def add_agora_app(request: web.Request) -> web.Response:
    """Register an app of Agora's: tokens signed with its certificate open the project on Agora's paths."""
    grant = request[GRANT]
    body = await read_struct(request, NewAgoraApp)
    if grant.key_id is None:
        raise Refused("no_keys")
    app = await request.app[APPS].add(grant.project, body.app_id, body.certificate, body.scopes)
    audit("agora_app_added", grant, app.project, app=app.app_id, scopes=app.scopes)
    return json_response(app_view(app), 201)


@ROUTES.add(f"DELETE {AGORA_APP}", "admin", None, codes="unknown_agora_app", placeholders=PLACEHOLDERS)
async def remove_agora_app(request: web.Request) -> web.Response:
    """Remove an app of Agora's and its certificates: its tokens are refused from now on."""
    grant, app_id = request[GRANT], request.match_info["app_id"]
    await request.app[APPS].remove(grant.project, app_id)
    audit("agora_app_removed", grant, grant.project, app=app_id)
    return web.Response(status=204)


@ROUTES.add(
    f"POST {AGORA_APP}/rotate-certificate",
    "admin",
    ShownAgoraApp,
    NewCertificate,
    "unknown_agora_app",
    placeholders=PLACEHOLDERS,
)
async def rotate_agora_certificate(request: web.Request) -> web.Response:
    """Give an app a new certificate; the one before stays valid until it is retired, or the next rotation."""
    grant, app_id = request[GRANT], request.match_info["app_id"]
    body = await read_struct(request, NewCertificate)
    app = await request.app[APPS].rotate(grant.project, app_id, body.certificate)
    audit("agora_certificate_rotated", grant, grant.project, app=app_id)
    return json_response(app_view(app))


@ROUTES.add(
    f"POST {AGORA_APP}/retire-certificate", "admin", ShownAgoraApp, codes="unknown_agora_app", placeholders=PLACEHOLDERS
)
async def retire_agora_certificate(request: web.Request) -> web.Response:
    """Refuse from now on what is signed with the certificate before the last rotation."""
    grant, app_id = request[GRANT], request.match_info["app_id"]
    app = await request.app[APPS].retire(grant.project, app_id)
    audit("agora_certificate_retired", grant, grant.project, app=app_id)
    return json_response(app_view(app))
