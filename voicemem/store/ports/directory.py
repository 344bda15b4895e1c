"""API keys, apps of Agora's, secrets of hooks, the operator's endpoint, the identity. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from voicemem.store.records import (
    AgoraApp,
    ApiKey,
    HookSecret,
    KeyLimits,
)


class HookSecrets(Protocol):
    """What signs the webhooks of other stacks' platforms, by project and dialect."""

    async def list_hook_secrets(self, project: str) -> list[HookSecret]:
        """What signs webhooks of other stacks in a project, by dialect."""

    async def find_hook_secret(self, project: str, dialect: str) -> HookSecret | None:
        """What signs webhooks of a dialect in a project. Asked for every one of them."""

    async def change_hook_secret(
        self, project: str, dialect: str, change: Callable[[HookSecret | None], HookSecret]
    ) -> HookSecret:
        """Replace what signs by what `change` returns for it, or for None where there is nothing yet.

        `change` is pure, and may run more than once; it keeps the project and the dialect.
        """

    async def remove_hook_secret(self, project: str, dialect: str) -> bool:
        """Delete what signs, the old secret too; False where there is nothing."""


class Directory(HookSecrets, Protocol):
    """API keys, apps of Agora's, secrets of hooks, the operator's endpoint, and the store's own identity."""

    @property
    def incarnation(self) -> str:
        """Identifies the store until it is restored from a backup: positions and seqs of another one do not hold."""

    @property
    def cursor_secret(self) -> bytes:
        """Signs the cursors that callers get."""

    async def list_keys(self) -> list[ApiKey]:
        """The keys of all projects, revoked ones included, the oldest first."""

    async def find_key(self, key_id: str) -> ApiKey | None:
        """A key, also a revoked one; None when the id is unknown. Asked for every request."""

    async def has_keys(self) -> bool:
        """Whether any key or app of Agora's was ever made, revoked and removed ones included.

        Asked for every request while there is none.
        """

    async def add_key(self, key: ApiKey) -> None:
        """Store a new key."""

    async def set_key_limits(self, key_id: str, limits: KeyLimits) -> bool:
        """Replace the limits of a key; False when it is unknown or revoked."""

    async def revoke_key(self, key_id: str, now_ms: int) -> bool:
        """Revoke a key; False when it is unknown or revoked already."""

    async def revoked_keys(self, key_ids: Collection[str]) -> frozenset[str]:
        """Which of these keys are revoked, also by another process."""

    async def list_agora_apps(self) -> list[AgoraApp]:
        """The apps of all projects, the oldest first."""

    async def find_agora_app(self, app_id: str) -> AgoraApp | None:
        """An app; None when the id is unknown. Asked for every request on Agora's paths."""

    async def add_agora_app(self, app: AgoraApp) -> bool:
        """Store a new app; False when there is one with its id, in whatever project."""

    async def change_agora_app(self, app_id: str, change: Callable[[AgoraApp], AgoraApp]) -> AgoraApp | None:
        """Replace the certificates of an app by those that `change` returns for it; None when the id is unknown.

        `change` is pure, and may run more than once.
        """

    async def remove_agora_app(self, app_id: str) -> bool:
        """Delete an app and its certificates; False when the id is unknown."""

    async def set_operator_endpoint(
        self, url: str, secret: str | None, contents: str = "full", now_ms: int = 0
    ) -> None:
        """Set the receiver of every session's history, and enable it.

        It is one for all nodes, and stays until another one is set or it is turned off. `contents` holds for all
        payloads that are not frozen yet. A secret that is replaced, at the same URL, signs alongside the new one for
        `records.OPERATOR_OVERLAP_MS`.
        """

    async def turn_off_operator_endpoint(self) -> None:
        """Take that receiver away, on all nodes; does nothing when there is none."""
