"""What must be the same in the service and in its model after every step."""

from __future__ import annotations

import json
import time

import msgspec
from hypothesis.stateful import invariant

from tests.support.model.conversation import Conversation
from tests.support.model.reference_model import Session
from tests.support.model.service_driver import ERASED, LATE_S
from voicemem.protocol.events import JournaledEvent
from voicemem.protocol.types import JsonObject
from voicemem.transcript import history
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.state import State


class Agreement(Conversation):
    """Journals, states, histories, lists and deliveries, as everybody can read them."""

    @invariant()
    def agrees(self) -> None:
        """The service has the journals, states and connections of the model, and has delivered its closes."""
        self.steps += 1
        if self.model.now_ms != self.checked_ms:
            self.checked.clear()
        self.checked_ms = self.model.now_ms
        self.settle()
        self.exchange({}, {})
        assert len(self.incarnations) <= 1
        assert self.incarnations.isdisjoint(self.former_incarnations)
        for session in self.model.sessions.values():
            seen = session.state, len(session.journal)
            if session.id not in self.touched and self.checked.get(session.id) == seen and self.steps % 5:
                continue  # nothing should have happened to it
            self.checked[session.id] = seen
            if session.state == "erased":
                self.check_erased(session.id)
            else:
                self.check_session(session)
        self.touched.clear()
        listed = self.request("GET", "/v1/sessions").json["sessions"]
        assert self.model.listed() == [one["session_id"] for one in listed if one["session_id"] != ERASED]
        self.check_webhook_events()

    def settle(self) -> None:
        """Let the service, and the model, close what is to be closed by now."""
        self.model.settle()
        connected = {one: names for one in self.known() if (names := self.model.connected(one))}
        self.service.run(self.service.settle(connected))

    def check_erased(self, session_id: str) -> None:
        for path in ("", "/history", "/events", "/context", "/turns"):
            assert self.request("GET", f"/v1/sessions/{session_id}{path}").status in (404, 410)

    def check_session(self, session: Session) -> None:
        path = f"/v1/sessions/{session.id}"
        shown = self.shown(session)
        assert (session.state, session.reason, session.config) == (shown["state"], shown["reason"], shown["config"])
        if self.times:
            assert (session.started_ms, session.ended_ms) == (shown["started_at"], shown["ended_at"])
        rows = self.request("GET", f"{path}/events").lines
        self.check_journal(session, rows)
        told = self.request("GET", f"{path}/history").json
        assert len(rows) == shown["position"] == told["position"]
        assert told["state"] == session.state
        assert folded(rows) == told["contents"]

    def shown(self, session: Session) -> JsonObject:
        """A session as it is shown; an end is acknowledged before its close is there."""
        deadline = time.monotonic() + LATE_S
        while True:
            shown: JsonObject = self.request("GET", f"/v1/sessions/{session.id}").json
            behind = session.state == "ended" and shown["state"] == "running"
            if not behind or time.monotonic() > deadline:
                return shown

    def check_journal(self, session: Session, rows: list[JsonObject]) -> None:
        assert list(range(1, len(session.journal) + 1)) == [row["position"] for row in rows]
        for entry, row in zip(session.journal, rows, strict=True):
            assert (entry.producer, entry.seq) == (row["producer"], row["seq"])
            event = dict(entry.event)
            if not self.times and entry.producer is None:
                event.pop("ts", None)
            found = row["event"] if entry.producer else {key: row["event"].get(key) for key in event}
            assert event == found
            assert not self.times or entry.received_ms == row["received_ms"]

    def next_turn(self, session_id: str) -> int:
        """The number of a new turn, by the journal."""
        return state_after(self.request("GET", f"/v1/sessions/{session_id}/events").lines).newest_turn + 1

    def check_webhook_events(self) -> None:
        """One webhook event of each close, with the memory at that close; every attempt of it is the same."""
        for webhook_event in self.service.run(self.service.webhook_events(len(self.model.deliveries))):
            known = self.webhook_events.get(webhook_event["noticeId"])
            if known is None:
                self.check_webhook_event(webhook_event)
                self.webhook_events[webhook_event["noticeId"]] = webhook_event["payload"]
            else:
                assert known == webhook_event["payload"]
        assert len(self.model.deliveries) == len(self.webhook_events)

    def check_webhook_event(self, webhook_event: JsonObject) -> None:
        payload = webhook_event["payload"]
        session_id = payload["agent_id"]
        earlier = [one for one in self.webhook_events.values() if one["agent_id"] == session_id]
        closes = [delivery for delivery in self.model.deliveries if delivery.session_id == session_id]
        delivery = closes[len(earlier)]
        path = f"/v1/sessions/{session_id}/events?limit={delivery.position}"
        expected = {
            "agent_id": webhook_event["sid"],
            "name": delivery.config.get("name", ""),
            "channel": delivery.config.get("channel", ""),
            "start_ts": delivery.started_ms // 1000 if self.times else payload["start_ts"],
            "stop_ts": delivery.ended_ms // 1000 if self.times else payload["stop_ts"],
            "labels": delivery.config.get("labels", {}),
            "contents": folded(self.request("GET", path).lines),
        }
        assert expected == payload


def folded(rows: list[JsonObject]) -> list[JsonObject]:
    """The messages that a journal gives, as JSON."""
    return list(json.loads(msgspec.json.encode(history.messages(state_after(rows)))))


def state_after(rows: list[JsonObject]) -> State:
    """The fold of a journal, from its beginning."""
    entries = [
        DecodedRow(
            row["position"], row["received_ms"], msgspec.convert(row["event"], type=JournaledEvent), row["producer"]
        )
        for row in rows
    ]
    return fold_all(State(), entries)
