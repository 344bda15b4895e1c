"""Keys on several nodes: one that is revoked on one opens nothing on the others a second later."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, bearer_header
from tests.support.services import node_on
from voicemem.runtime import now_ms
from voicemem.security.access import KEY_CACHE_MS
from voicemem.store.port import Store


async def test_a_revoked_key_is_refused_everywhere(two_handles: tuple[Store, Store]) -> None:
    """No request that begins a second later is let in, nor one with a token of the key; its websockets are closed."""
    admin_key = "an operator's own key"
    one, other = two_handles
    async with node_on(one, admin_key=admin_key) as here, node_on(other, admin_key=admin_key) as there:
        admin = RestClient(here, admin_key)
        made = (await admin.post("/v1/keys", {"scopes": ["admin"]})).json
        user = RestClient(there, made["key"])
        await user.create()
        token = (await user.post("/v1/sessions/s/tokens", {"ttl_seconds": 600})).json["token"]
        bearer = RestClient(there, token)
        async with connected_producer(there, bearer_header(made["key"])) as producer:
            await producer.open()
            assert [200, 200] == [(await one.get("/v1/sessions/s")).status for one in (user, bearer)]
            assert 204 == (await admin.delete(f"/v1/keys/{made['id']}")).status
            revoked_ms = now_ms()
            for client in (user, bearer):
                status = 200
                while status == 200:  # by the clock of the node, which may be set meanwhile
                    begun_ms, status = now_ms(), (await client.get("/v1/sessions/s")).status
                    assert status != 200 or begun_ms - revoked_ms <= KEY_CACHE_MS
                assert 401 == status
            assert 1008 == (await producer.closed())[0]
