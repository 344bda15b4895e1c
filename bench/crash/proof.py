"""Shows that the checker of `bench.crash` finds faults: each one is planted into a sound history.

python -m bench.crash --prove
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from bench.crash.checker import Final, shown
from bench.crash.history import History
from voicemem.protocol.codec import decode_journaled
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.state import State
from voicemem.transcript.turns import turns

JsonObject = dict[str, Any]
SESSION = "proof"
BEGIN_MS = 1_790_000_000_000
EVENTS: list[JsonObject] = [
    {"type": "asr", "seq": 1, "turn_id": 1, "text": "Tell me a joke.", "final": True, "ts": BEGIN_MS},
    {"type": "llm.delta", "seq": 2, "turn_id": 1, "text": "Why did ", "ts": BEGIN_MS + 10},
    {"type": "no.such.type", "seq": 3, "turn_id": 1},
    {"type": "llm.delta", "seq": 4, "turn_id": 1, "text": "the scarecrow win?", "ts": BEGIN_MS + 20},
    {"type": "session.end", "seq": 5, "reason": "left"},
]
CONFIG: JsonObject = {"labels": {"kind": "proof"}, "idle_timeout": 30}
LEASE_MS = 10_000


class Seen:
    """A sound history of one session: what was seen while it ran, and what the service has in the end."""

    def __init__(self) -> None:
        self.history = History()
        self.history.lease_ms = LEASE_MS
        self.history.begin(SESSION, CONFIG)
        self.rows = [row(position, "main", event) for position, event in enumerate(EVENTS, 1)]
        self.rows[2]["event"] = {"type": "refused", "code": "unknown_type"}
        self.rows.append(row(6, None, {"type": "session.closed", "ts": BEGIN_MS + 60, "reason": "left"}))
        self.session: JsonObject = {"state": "ended", "position": 6, "config": CONFIG}
        self.contents = contents(self.rows)
        self.turns: list[JsonObject] = [*turns(state(self.rows))]
        self.history.ready(SESSION, "main", {"epoch": 1, "next_seq": 1, "incarnation": "a"})
        for event in EVENTS:
            self.history.sent(SESSION, "main", event, "unknown_type" if event["seq"] == 3 else None)
        self.read(2)
        self.history.read_rows(SESSION, 0, self.rows[:3], 2, whole=True)
        self.history.refused(SESSION, "main", 3, "unknown_type")
        self.history.acknowledged(SESSION, "main", 5)
        self.history.ready(SESSION, "main", {"epoch": 2, "next_seq": 6, "incarnation": "a"})
        self.read(6)
        self.webhook_event("n1", self.contents)
        self.webhook_event("n1", self.contents)

    def read(self, position: int, floor: int = 0) -> None:
        """Note that the history was read at this position."""
        answer = {"position": position, "contents": contents(self.rows[:position])}
        self.history.read_history(SESSION, answer, self.history.acked(SESSION), floor)

    def webhook_event(
        self, webhook_event: str, told: list[JsonObject], verified: bool = True, session: str = SESSION
    ) -> None:
        """Note that a webhook arrived."""
        payload = {"stop_ts": BEGIN_MS // 1000, "contents": told}
        body = msgspec.json.encode({"noticeId": webhook_event, "sid": session, "payload": payload})
        self.history.noticed(webhook_event, body, verified)

    def found(self) -> list[str]:
        """What the checker finds."""
        if SESSION in self.history.calls:
            self.history.settle(SESSION, Final(self.rows, self.session, self.contents, self.turns))
        return [finding.what for finding in self.history.findings]


def row(position: int, producer: str | None, event: JsonObject) -> JsonObject:
    seq = event.get("seq")
    return {"position": position, "producer": producer, "seq": seq, "received_ms": BEGIN_MS + position, "event": event}


def state(rows: list[JsonObject]) -> State:
    decoded = [decode_journaled(msgspec.json.encode(one["event"])) for one in rows]
    entries = [
        DecodedRow(one["position"], one["received_ms"], event, one["producer"])
        for one, event in zip(rows, decoded, strict=True)
    ]
    return fold_all(State(), entries)


def contents(rows: list[JsonObject]) -> list[JsonObject]:
    return list(msgspec.to_builtins(messages(state(rows))))


# The faults


def renumber(seen: Seen) -> None:
    for position, one in enumerate(seen.rows, 1):
        one["position"] = position
    seen.session["position"] = len(seen.rows)


def lose_the_last(seen: Seen) -> None:
    del seen.rows[4]
    renumber(seen)


def lose_one(seen: Seen) -> None:
    del seen.rows[1]
    renumber(seen)


def double_one(seen: Seen) -> None:
    seen.rows.insert(2, dict(seen.rows[1]))
    renumber(seen)


def swap_two(seen: Seen) -> None:
    seen.rows[0], seen.rows[1] = seen.rows[1], seen.rows[0]
    renumber(seen)


def make_one_up(seen: Seen) -> None:
    seen.rows.insert(5, row(6, "main", {"type": "llm.done", "seq": 6, "turn_id": 1}))
    renumber(seen)


def change_one(seen: Seen) -> None:
    seen.rows[3]["event"] = {**seen.rows[3]["event"], "text": "the scarecrow lose?"}


def forget_a_position(seen: Seen) -> None:
    seen.rows[5]["position"] = 7


def store_the_refused(seen: Seen) -> None:
    seen.rows[2]["event"] = EVENTS[2]


def leave_a_gap(seen: Seen) -> None:
    seen.rows.insert(5, row(6, None, {"type": "session.gap", "producer": "main", "from_seq": 6, "to_seq": 7}))
    renumber(seen)


def read_what_never_was(seen: Seen) -> None:
    answer = {"position": 4, "contents": seen.contents}
    seen.history.read_history(SESSION, answer, {}, 0)


def read_without_the_acknowledged(seen: Seen) -> None:
    answer = {"position": 1, "contents": contents(seen.rows[:1])}
    seen.history.read_history(SESSION, answer, {"main": 5}, 0)


def read_other_rows(seen: Seen) -> None:
    seen.history.read_rows(SESSION, 3, [row(4, "main", EVENTS[1])], 0, whole=False)


def forget_a_patch(seen: Seen) -> None:
    seen.history.patched(SESSION, "patch-0", True)


def double_a_patch(seen: Seen) -> None:
    seen.history.patched(SESSION, "patch-0", False)
    for _ in range(2):
        seen.rows.insert(5, row(6, None, {"type": "session.update", "labels": {"patch-0": "set"}}))
    renumber(seen)


def close_twice(seen: Seen) -> None:
    seen.rows.append(dict(seen.rows[5]))
    renumber(seen)


def lose_the_webhook_event(seen: Seen) -> None:
    seen.history.calls[SESSION].webhook_events.clear()


def change_the_memory_after_the_check(seen: Seen) -> None:
    seen.found()
    seen.history.settled_again(SESSION, seen.rows[:5])


def tell_after_the_check(seen: Seen, told: list[JsonObject]) -> None:
    """The webhook event of a first close, before anybody has said anything, comes when everything has been checked."""
    seen.rows[:0] = [
        row(1, None, {"type": "session.closed", "ts": BEGIN_MS, "reason": "idle"}),
        row(2, None, {"type": "session.reopened", "ts": BEGIN_MS}),
    ]
    seen.found()
    seen.history.findings.clear()
    seen.webhook_event("n4", told)


def connect_through_the_close(seen: Seen, producer: str) -> None:
    stay = seen.history.arrived(SESSION, producer, "node")
    stay.begin_ms, stay.heard_ms = BEGIN_MS - 5_000, BEGIN_MS + 5_000


def close_as_idle(seen: Seen) -> None:
    seen.rows[5]["event"]["reason"] = "idle"


def close_under_a_connection(seen: Seen) -> None:
    close_as_idle(seen)
    connect_through_the_close(seen, "main")


def close_long_after_the_last(seen: Seen) -> None:
    close_as_idle(seen)
    seen.history.calls[SESSION].contact_ms = BEGIN_MS - 3_600_000


class Fault(NamedTuple):
    """A planted fault, and words of the sentence that must report it."""

    name: str
    plant: Callable[[Seen], Any]
    words: str


FAULTS = (
    Fault("an acknowledged event is lost", lose_the_last, "was acknowledged up to 5, stored is up to 4"),
    Fault("an event in the middle is lost", lose_one, "seq 3 of main stands where 2 should be"),
    Fault("an event is there twice", double_one, "seq 2 of main stands where 3 should be"),
    Fault("two events are swapped", swap_two, "seq 2 of main stands where 1 should be"),
    Fault("an event is there that was never sent", make_one_up, "was never sent"),
    Fault("an event has another content", change_one, "is not what was sent"),
    Fault("a position is left out", forget_a_position, "stands where 6 should be"),
    Fault("a refused event is stored", store_the_refused, "should stand there as refused"),
    Fault("a gap is declared that no producer declared", leave_a_gap, "contains a session.gap"),
    Fault("a read shows what never was", read_what_never_was, "was not the fold up to there"),
    Fault("a read lacks what was acknowledged", read_without_the_acknowledged, "did not show seq 5 of main"),
    Fault("a read of the journal shows other entries", read_other_rows, "a read showed another position 4"),
    Fault("a read goes back", lambda seen: seen.read(2, floor=6), "went back from position 6 to 2"),
    Fault("a turn disappears", lambda seen: seen.history.read_turns(SESSION, [], 1), "shows 0 turns after"),
    Fault("a change of the settings is lost", forget_a_patch, "the change patch-0 is there 0 times"),
    Fault("a change of the settings is made twice", double_a_patch, "the change patch-0 is there 2 times"),
    Fault("the settings are others", lambda seen: seen.session.update(config={}), "the configuration is not"),
    Fault("the session is still open", lambda seen: seen.session.update(state="running"), "was not closed"),
    Fault("the session is closed twice", close_twice, "closes and reopenings do not take turns"),
    Fault("the memory is not the fold", lambda seen: seen.contents.pop(), "the history is not the fold"),
    Fault("the turns are not the fold's", lambda seen: seen.turns.pop(), "the turns are not"),
    Fault("a close does not reach the receiver", lose_the_webhook_event, "did not reach the receiver"),
    Fault("a notice comes with another body", lambda seen: seen.webhook_event("n1", []), "with two different bodies"),
    Fault(
        "a close has two notices",
        lambda seen: seen.webhook_event("n2", seen.contents),
        "notices came for which there was",
    ),
    Fault("a notice is not signed", lambda seen: seen.webhook_event("n1", seen.contents, False), "is not signed"),
    Fault("a notice comes from nowhere", lambda seen: seen.webhook_event("n3", [], session="x"), "that does not exist"),
    Fault(
        "next_seq goes back",
        lambda seen: seen.history.ready(SESSION, "main", {"epoch": 3, "next_seq": 4, "incarnation": "a"}),
        "next_seq of main went back to 4",
    ),
    Fault(
        "next_seq is ahead of what was sent",
        lambda seen: seen.history.ready(SESSION, "main", {"epoch": 3, "next_seq": 9, "incarnation": "a"}),
        "next_seq of main is 9",
    ),
    Fault(
        "an epoch does not rise",
        lambda seen: seen.history.ready(SESSION, "main", {"epoch": 2, "next_seq": 6, "incarnation": "a"}),
        "the epoch of main went from 2 to 2",
    ),
    Fault(
        "the store is another one",
        lambda seen: seen.history.ready(SESSION, "main", {"epoch": 3, "next_seq": 6, "incarnation": "b"}),
        "another incarnation",
    ),
    Fault(
        "what was never sent is acknowledged", lambda seen: seen.history.acknowledged(SESSION, "main", 6), "never sent"
    ),
    Fault(
        "a good event is refused",
        lambda seen: seen.history.refused(SESSION, "main", 1, "invalid_field"),
        "was refused with invalid_field",
    ),
    Fault("a session is closed as idle that has a producer", close_under_a_connection, "as idle at"),
    Fault(
        "an end does not wait for a producer on another node",
        lambda seen: connect_through_the_close(seen, "other"),
        "before its last words",
    ),
    Fault("a session stays open that its producers have left", close_long_after_the_last, "after its last producer"),
    Fault(
        "a late notice has messages that its close had not",
        lambda seen: tell_after_the_check(seen, seen.contents),
        "there was no close",
    ),
    Fault("a journal changes after its end", change_the_memory_after_the_check, "is not what it was"),
)


def prove() -> list[tuple[str, bool]]:
    """Each fault, and whether it was found; first the sound histories, in which nothing may be found."""
    sound = Seen()
    assert shown(state(sound.rows)), "the history is empty"
    proved = [("no fault", sound.found() == [])]
    late = Seen()
    tell_after_the_check(late, [])
    proved.append(("a notice that may come late", late.found() == []))
    for fault in FAULTS:
        seen = Seen()
        fault.plant(seen)
        proved.append((fault.name, any(fault.words in what for what in seen.found())))
    return proved
