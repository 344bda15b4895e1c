"""How things go now."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re

from tests.support.callers.rest import RestClient, make_key
from tests.support.events import final
from tests.support.services import Serve
from voicemem.server.rest.operations import is_failing
from voicemem.store.outbox import Endpoint

OWN = "an operator's own key"


async def test_figures_agree_with_the_metrics(api: RestClient) -> None:
    """What waits, runs and was refused is what the metrics say; a rate is there as soon as something happened."""
    await api.create()
    await api.send(final(1, "Hi.", 2_000))
    found = (await api.get("/v1/operations")).json
    text = (await api.get("/metrics")).body.decode()
    service = found["service"]

    def metric(name: str) -> float:
        matched = re.search(rf"^voicemem_{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert matched is not None, name
        return float(matched[1])

    assert (True, 1) == (found["ready"], found["sessions"]["running"])
    assert metric('sessions{state="running"}') == found["sessions"]["running"]
    assert metric("outbox_pending") == service["outbox"]["pending"]
    assert metric("db_bytes") == service["store"]["bytes"]
    assert service["rates"]["10s"]["events"] > 0
    assert service["ack_ms"]["p99"] >= service["ack_ms"]["p50"] > 0
    assert ([], {}, []) == (found["webhooks"], service["refused"], service["nodes"])


async def test_another_projects_key_sees_its_own(serve: Serve) -> None:
    """It hears of its own sessions and endpoints, and nothing of the service."""
    app = await serve(admin_key=OWN)
    own, other = RestClient(app, OWN), RestClient(app, await make_key(app, "read", "ingest", project="shop"))
    await own.create("a")
    await own.create("b")
    await other.create("c")
    found = (await other.get("/v1/operations")).json
    assert ("shop", {"running": 1}, None) == (found["project"], found["sessions"], found["service"])
    assert 3 == (await own.get("/v1/operations")).json["sessions"]["running"]


def test_which_endpoints_fail() -> None:
    """Those whose attempts fail, and those that were disabled for it; one that someone disabled does not."""

    def endpoint(disabled_ms: int | None, reason: str | None, since: int | None) -> Endpoint:
        named = {"disabled_reason": reason, "failing_since_ms": since}
        return Endpoint(1, None, "https://a.example/", None, "full", True, disabled_ms, **named)  # type: ignore[arg-type]

    assert [True, True, False, False] == [
        is_failing(endpoint(*one))
        for one in ((None, None, 5), (7, "gone", None), (7, "request", 5), (None, None, None))
    ]
