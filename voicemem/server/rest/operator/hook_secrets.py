"""What signs the webhooks of other stacks' platforms in the caller's project: listed, set, rotated, removed."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from voicemem.security.audit import Act, audit
from voicemem.security.hook_secrets import ShownHookSecret, new_hook_secret
from voicemem.server.http.request import GRANT, NoQuery, convert_body, json_response, read_object, services_of
from voicemem.server.http.routes import JSON, BodySpec, ResponseSpec, Route, json_ok
from voicemem.server.rest.webhooks.endpoints import NewSecret


class HookSecret(Struct, frozen=True):
    """That a dialect's webhooks are signed; the secrets themselves are not shown. Times are Unix ms.

    `set_at` is null where only the operator has set one, when the service was started (`in_settings`); both verify.
    `old_secret_until` is when the secret before the last change stops verifying.
    """

    dialect: str
    set_at: int | None
    old_secret_until: int | None
    in_settings: bool


class HookSecretSet(HookSecret, frozen=True):
    """The same, with `secret` where the service has made it: only this answer shows it."""

    secret: Annotated[str, Meta(extra_json_schema={"readOnly": True})] | UnsetType = UNSET


class HookSecretList(Struct, frozen=True):
    """The dialects whose webhooks are signed, by name."""

    hooks: list[HookSecret]


def view(shown: ShownHookSecret) -> HookSecret:
    return HookSecret(shown.dialect, shown.set_ms, shown.old_until_ms, shown.in_settings)


def audit_hook(request: web.Request, act: Act) -> None:
    audit(act, request[GRANT], request[GRANT].project, None, dialect=request.match_info["dialect"])


async def list_hook_secrets(request: web.Request, _: NoQuery) -> web.Response:
    """List the dialects whose webhooks are signed in the project, without the secrets."""
    shown = await services_of(request).hook_secrets.list(request[GRANT].project)
    return json_response(HookSecretList([view(one) for one in shown]))


async def set_hook_secret(request: web.Request, _: NoQuery) -> web.Response:
    """Set what signs webhooks of a dialect in the project, or rotate it; for a while the old secret verifies too.

    Without a `secret` the service makes one, which the answer shows.
    """
    body = convert_body(await read_object(request), NewSecret)
    secret = new_hook_secret() if body.secret is UNSET else body.secret
    project, dialect = request[GRANT].project, request.match_info["dialect"]
    shown = await services_of(request).hook_secrets.set(project, dialect, secret, body.overlap_seconds)
    audit_hook(request, "hook_secret_set")
    made = secret if body.secret is UNSET else UNSET
    return json_response(HookSecretSet(**structs.asdict(view(shown)), secret=made))


async def remove_hook_secret(request: web.Request, _: NoQuery) -> web.Response:
    """Remove what the project has set; without another secret, webhooks of the dialect need a key."""
    await services_of(request).hook_secrets.remove(request[GRANT].project, request.match_info["dialect"])
    audit_hook(request, "hook_secret_removed")
    return web.Response(status=204)


PLACE = "/v1/hooks/{dialect}/secret"
ROUTES = (
    Route("GET", "/v1/hooks", list_hook_secrets, "admin", NoQuery, json_ok(HookSecretList)),
    Route(
        "PUT",
        PLACE,
        set_hook_secret,
        "admin",
        NoQuery,
        json_ok(HookSecretSet),
        BodySpec({JSON: NewSecret}, required=False),
        ("invalid_field", "unknown_dialect"),
    ),
    Route(
        "DELETE",
        PLACE,
        remove_hook_secret,
        "admin",
        NoQuery,
        {204: ResponseSpec()},
        codes=("unknown_hook_secret",),
    ),
)
