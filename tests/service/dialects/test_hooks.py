"""Webhooks of other stacks: who may send them, and what becomes of them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from tests.support.callers.rest import RestClient, make_key
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.dialects.dialect import Dialect, Frame, Hook, MalformedFrame, RawFrame, Side, session_id_of
from voicemem.dialects.known import Known, MadeEvent
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.events import MessageEvent, SessionEnd
from voicemem.protocol.types import JsonObject


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """Keep what was said, and which call it was."""
    if not isinstance(frame, dict) or not isinstance(frame.get("said"), str):
        raise MalformedFrame("A frame says something.")
    content: JsonObject = {key: value for key, value in frame.items() if key in ("said", "call", "last")}
    return Frame(content, id=frame["said"], session_id=frame.get("call"), end="hung_up" if "last" in frame else None)


def translate(frame: JsonObject, ts: int, known: Known) -> Iterator[MadeEvent]:
    """One message; the last one ends the call."""
    yield MessageEvent(role="user", text=frame["said"], source="message")
    if "last" in frame:
        yield SessionEnd()


def verify(body: bytes, headers: Mapping[str, str], secret: str, now_ms: int) -> bool:
    """A plain signature."""
    return hmac.compare_digest(hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(), headers["x-signature"])


def frames(body: JsonObject) -> list[JsonObject]:
    """A frame for each part of a body."""
    return [part | {"call": body["call"]} for part in body["parts"]]


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack that sends webhooks."""
    dialect = Dialect(
        name="platform",
        version=1,
        reduce=reduce,
        translate=translate,
        hook=Hook(verify, frames),
        texts=lambda content: (),
    )
    monkeypatch.setitem(DIALECTS, "platform", dialect)


CALL = session_id_of("call 1")
BODY = msgspec.json.encode({"call": "call 1", "parts": [{"said": "One."}, {"said": "Two.", "last": True}]})


async def post(api: RestClient, body: bytes = BODY, query: str = "", **headers: str) -> Any:
    """The answer to a webhook."""
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    return await api.call("POST", f"/v1/hooks/platform{query}", headers=sent, data=io.BytesIO(body))


def signature(secret: str, body: bytes = BODY) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    "value", [b"NaN", b"-Infinity", b"1e999", b"123456789012345678901", b"9" * 400, rb'"\ud83d a"', rb'{"\udc00":1}']
)
async def test_a_value_that_cannot_be_kept_loses_no_call(serve: Serve, value: bytes) -> None:
    """What a webhook says is taken, whatever numbers and halves of characters are in fields that no one keeps."""
    app = await serve(hook_secrets=("platform=secret",))
    body = BODY.replace(b'{"call"', b'{"cost":' + value + b',"usage":[{"tokens":' + value + b'}],"call"')
    answered = await post(RestClient(app), body, X_Signature=signature("secret", body))
    assert (200, 2) == (answered.status, answered.json["stored"])


async def test_a_signed_webhook_needs_no_key(serve: Serve) -> None:
    """It is taken once however often it comes, and ends its call."""
    app = await serve(hook_secrets=("platform=s=cret",))
    admin = RestClient(app, await make_key(app, "admin"))
    for stored in (2, 0):
        answered = await post(RestClient(app), X_Signature=signature("s=cret"))
        assert (200, CALL) == (answered.status, answered.json["session_id"])
        assert stored == answered.json["stored"]
    await eventually("ended", lambda: admin.state(CALL))
    assert ["One.", "Two."] == [one["content"] for one in await admin.contents(CALL)]
    assert "hung_up" == (await admin.session(CALL))["reason"]


async def test_what_is_not_signed_is_refused(serve: Serve) -> None:
    """A wrong, missing or foreign signature, or another body, is refused before the body is read as JSON."""
    app = await serve(hook_secrets=("platform=secret", "other/platform=others"))
    key = await make_key(app, "ingest")
    for body, headers in (
        (BODY, {}),
        (BODY, {"X_Signature": signature("others")}),
        (BODY + b" ", {"X_Signature": signature("secret")}),
        (b"{", {"X_Signature": "é".encode().decode("latin-1")}),
        (BODY, {"Authorization": f"Bearer {key}"}),
    ):
        assert (401, "unauthorized") == (await post(RestClient(app), body, **headers)).problem
    assert 200 == (await post(RestClient(app), query="?project=other", X_Signature=signature("others"))).status
    assert (404, "unknown_session") == (
        await RestClient(app, await make_key(app, "read")).get("/v1/sessions/" + CALL)
    ).problem


async def test_without_a_secret_a_key_is_needed(serve: Serve) -> None:
    """A key with the scope `ingest` stands in for the signature, in its own project only."""
    app = await serve()
    key, reader = await make_key(app, "ingest"), await make_key(app, "read")
    assert (401, "unauthorized") == (await post(RestClient(app))).problem
    assert (403, "forbidden") == (await post(RestClient(app, reader))).problem
    assert (403, "forbidden") == (await post(RestClient(app, key), query="?project=other")).problem
    assert 200 == (await post(RestClient(app, key))).status


@pytest.mark.parametrize("body", [b"[]", b'{"call":"c","parts":[{"said":1}]}', b"{}", b'{"call":"c","parts":5}'])
async def test_malformed_webhooks_are_refused(serve: Serve, body: bytes) -> None:
    """A body that is not of the dialect stores nothing."""
    app = await serve()
    assert (400, "malformed_frame") == (await post(RestClient(app), body)).problem


async def test_dialects_without_webhooks_have_no_path(serve: Serve) -> None:
    """A stack that calls no one has no webhooks."""
    app = await serve()
    answered = await RestClient(app).post("/v1/hooks/openai-realtime", {})
    assert (404, "unknown_dialect") == answered.problem
