"""Signing secrets of inbound webhooks, by project and dialect, and signed tokens in their URLs (docs/dialects.md).

A project sets its own over REST or by command; they are in the store, so that every node knows them. The operator's,
from the settings, are accepted as well.
"""

import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from voicemem.dialects.call_starts import CALL_STARTS
from voicemem.dialects.dialect import Dialect
from voicemem.dialects.registry import DIALECTS, WITH_WEBHOOKS
from voicemem.errors import CannotStart, Refused
from voicemem.protocol.types import Name, SessionId, join_cursor, split_cursor
from voicemem.runtime import Clock
from voicemem.security.caller_ids import ALLOWED, OFF, Fact, Identification, parse_facts
from voicemem.store.directory import Directory, InboundSecret

HOOK_SECRET = re.compile(r"(?:([A-Za-z0-9._:-]{1,128})/)?([a-z0-9-]{1,64})=(.+)", re.DOTALL)
"""PROJECT/DIALECT=SECRET, or DIALECT=SECRET for the project of a service without keys."""
SECRET = re.compile(r"[!-~]{8,256}")
OVERLAP_S, MAX_OVERLAP_S = 86_400, 7 * 86_400
"""For how long the previous secret is accepted too."""


class HookSecret(Struct, frozen=True):
    """A dialect whose webhooks are signed; the secrets themselves are not shown. Times are Unix ms.

    `set_at` is null where only the operator has set a secret (`in_settings`); where both have, both are accepted.
    `old_secret_until` is until when the previous secret is accepted.
    """

    dialect: str
    set_at: int | None
    old_secret_until: int | None
    in_settings: bool
    identify: tuple[Fact, ...] | None
    """The facts that identify a caller, the first before the second; null: those of the settings."""


class HookSecrets:
    """Finds and changes the secrets of webhooks. `settings` are the operator's, by project and dialect."""

    def __init__(self, directory: Directory, settings: Mapping[tuple[str, str], str], clock: Clock) -> None:
        self.directory = directory
        self.settings = settings
        self.clock = clock

    async def verifying(self, project: str, dialect: str) -> list[str]:
        """Return the secrets that are accepted now for webhooks of a dialect in a project."""
        kept = await self.directory.find_inbound_secret(project, dialect)
        old = None if kept is None or self.old_until(kept) is None else kept.old_secret
        known = (self.settings.get((project, dialect)), None if kept is None else kept.secret, old)
        return [secret for secret in known if secret is not None]

    async def list(self, project: str) -> list[HookSecret]:
        """Return the dialects of a project that have a secret, in the order of their names."""
        kept = {one.dialect: one for one in await self.directory.list_inbound_secrets(project)}
        in_settings = {dialect for of, dialect in self.settings if of == project}
        return [self.shown(project, name, kept.get(name)) for name in sorted({*kept, *in_settings})]

    async def set(
        self, project: str, dialect: str, secret: str, overlap_s: int, identify: Identification | None = None
    ) -> HookSecret:
        """Set the secret; the previous one is accepted as well for `overlap_s` seconds.

        `identify` are the facts that identify callers from now on; None leaves them as they are.

        The same secret again changes only the end of the overlap. Raises `Refused` (`unknown_dialect`, and
        `invalid_field` for an invalid secret).
        """
        check_hooked(dialect)
        check_hook_secret(secret, dialect)
        now, facts = self.clock(), None if identify is None else ",".join(sorted(identify, reverse=True)) or OFF

        def change(known: InboundSecret | None) -> InboundSecret:
            if known is None:
                return InboundSecret(project, dialect, secret, now, identify=facts)
            is_new = known.secret != secret
            before = known.secret if is_new else known.old_secret if self.old_until(known) is not None else None
            until = now + 1000 * overlap_s if before is not None and overlap_s else None
            set_ms = now if is_new else known.set_ms
            old = None if until is None else before
            return replace(
                known,
                secret=secret,
                set_ms=set_ms,
                old_secret=old,
                old_secret_until_ms=until,
                identify=known.identify if facts is None else facts,
            )

        return self.shown(project, dialect, await self.directory.change_inbound_secret(project, dialect, change))

    async def remove(self, project: str, dialect: str) -> None:
        """Remove the project's secret, and the previous one. Raises `Refused` (`unknown_hook_secret`)."""
        if not await self.directory.remove_inbound_secret(project, dialect):
            raise Refused("unknown_hook_secret")

    def shown(self, project: str, dialect: str, kept: InboundSecret | None) -> HookSecret:
        set_ms = None if kept is None else kept.set_ms
        until_ms = None if kept is None else self.old_until(kept)
        facts = None if kept is None or kept.identify is None else parse_facts(kept.identify)
        identify = None if facts is None else tuple(one for one in ALLOWED if one in facts)
        return HookSecret(dialect, set_ms, until_ms, (project, dialect) in self.settings, identify)

    def old_until(self, kept: InboundSecret) -> int | None:
        """Return until when the previous secret is accepted; None if it no longer is."""
        until = kept.old_secret_until_ms
        return until if until is not None and until > self.clock() else None


def check_hooked(name: str) -> None:
    """Raise `Refused` (`unknown_dialect`) for a dialect that has no webhooks."""
    if name not in CALL_STARTS and find_hooked(name) is None:
        known = dict.fromkeys((*WITH_WEBHOOKS, *CALL_STARTS))
        raise Refused("unknown_dialect", f"Dialects with webhooks: {', '.join(known)}.")


def find_hooked(name: str) -> Dialect | None:
    """Return a dialect whose webhooks report calls; None for a platform that only asks at the start of a call."""
    dialect = DIALECTS.get(name)
    return None if dialect is None or dialect.hook is None else dialect


def check_hook_secret(secret: str, dialect: str) -> None:
    """Raise `Refused` (`invalid_field`) for a secret that the platform would not generate or accept."""
    if not SECRET.fullmatch(secret):
        raise Refused("invalid_field", "A secret must be 8 to 256 printable ASCII characters without spaces.")
    check_start_secret(dialect, secret, partial(Refused, "invalid_field"))


def check_start_secret(dialect: str, secret: str, error: Callable[[str], Exception]) -> None:
    """Raise `error` if this cannot be the secret of a dialect, or cannot be used here."""
    try:
        if dialect in CALL_STARTS:
            CALL_STARTS[dialect].check_secret(secret)
    except ValueError as wrong:
        raise error(str(wrong)) from None


def new_hook_secret() -> str:
    return secrets.token_urlsafe(32)


def parse_hook_secrets(settings: tuple[str, ...], default_project: str) -> dict[tuple[str, str], str]:
    """Return the secrets of the settings by project and dialect. Raises `CannotStart`, which quotes none of them."""
    secrets_by_dialect: dict[tuple[str, str], str] = {}
    for one in settings:
        match = HOOK_SECRET.fullmatch(one)
        if match is None:
            raise CannotStart("A hook secret is DIALECT=SECRET, or PROJECT/DIALECT=SECRET.")
        check_start_secret(match[2], match[3], CannotStart)
        secrets_by_dialect[match[1] or default_project, match[2]] = match[3]
    return secrets_by_dialect


class HookTarget(Struct, frozen=True, omit_defaults=True):
    """The session and user of the webhooks that come to a URL, as the operator has signed them into it.

    The signature of a webhook is over its body alone: anyone who has seen one could send it to another URL.
    """

    project: str
    dialect: str
    session_id: SessionId | None = None
    user_id: Name | None = None


TARGET_PROOF_BYTES = 16


def sign_target(target: HookTarget, secret: bytes) -> str:
    """Return the token of a target, signed with the store's secret, but not encrypted."""
    body = msgspec.json.encode(target)
    return join_cursor(target_proof(body, secret), body)


def read_target(token: str, project: str, dialect: str, secret: bytes) -> HookTarget:
    """Return the target of a token of this project and dialect. Raises `Refused` (`forbidden`)."""
    wrong = Refused("forbidden", "The token t in the URL is not one of this service's for this project and dialect.")
    try:
        proof, body = split_cursor(token, TARGET_PROOF_BYTES)
        if not hmac.compare_digest(proof, target_proof(body, secret)):
            raise wrong
        target = msgspec.json.decode(body, type=HookTarget)
    except (Refused, msgspec.MsgspecError):
        raise wrong from None
    if (target.project, target.dialect) != (project, dialect):
        raise wrong
    return target


def target_proof(body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, b"hook target\0" + body, "sha256")[:TARGET_PROOF_BYTES]
