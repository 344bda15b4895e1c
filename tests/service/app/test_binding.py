"""Where the service may listen, and when it does not start."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from voicemem.config.service import Address
from voicemem.errors import CannotStart
from voicemem.security.access import Access
from voicemem.store.sqlite.store import SqliteStore

EVERYWHERE = Address("0.0.0.0", 0)
ADMIN_KEY = "sixteen letters."


async def test_the_service_does_not_start_open_to_the_network(serve: Serve) -> None:
    """Without keys and beyond loopback nothing listens."""
    with pytest.raises(CannotStart):
        await serve(rest=EVERYWHERE)
    with pytest.raises(CannotStart):
        await serve(ingest=EVERYWHERE)


@pytest.mark.parametrize("settings", [{"insecure": True}, {"admin_key": ADMIN_KEY}])
async def test_the_service_starts_on_the_network_when_asked_to(serve: Serve, settings: dict[str, Any]) -> None:
    """With the flag or with a key it listens everywhere."""
    app = await serve(rest=EVERYWHERE, ingest=EVERYWHERE, **settings)
    app.rest_address = Address("127.0.0.1", app.rest_address.port)
    assert 200 == (await RestClient(app).get("/livez")).status


async def test_a_stored_key_lets_the_service_listen_on_the_network(serve: Serve, tmp_path: Path) -> None:
    """A key that was made before the start counts, also when it was revoked."""
    path = str(tmp_path / "v.db")
    store = SqliteStore(path)
    key, _ = await Access(store.directory).create_key("default", "", ["read"])
    await store.directory.revoke_key(key.id, 1)
    await store.close_store()
    assert (await serve(store=f"sqlite:{path}", rest=EVERYWHERE)).rest_address.port


@pytest.mark.parametrize("network", ["10.0.0.0/33", "example.com", "10.1.2.3/8", ""])
async def test_a_wrong_allow_list_keeps_the_service_from_starting(serve: Serve, network: str) -> None:
    """An entry that is no network is never passed over in silence."""
    with pytest.raises(CannotStart, match="allow-list"):
        await serve(allow_addresses=(network,))
