"""What the rules stand on: the model beside the service, choices among what there is, and frames and what they say."""

from __future__ import annotations

import functools
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine

from tests.support.callers.rest import RestResponse
from tests.support.model.reference_model import Answer, Model, Producer, ProducerLease, Session
from tests.support.model.service_driver import InProcessDriver
from voicemem.protocol.types import JsonObject

NOW = 1_778_390_400_000
MOST_SESSIONS = 8
READY = "session.ready"
Key = tuple[str | None, str | None]
Said = dict[Key, list[Answer]]
"""What is said on a connection, by session id and producer."""


class Conversation(RuleBasedStateMachine):
    """A service, its model, and the frames and requests between them."""

    times = True
    """Whether the model knows what the service's clock says."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model(NOW)
        self.service = self.begin(Path(self.folder.name))
        self.backup: dict[str, Session] | None = None
        self.incarnations: set[str] = set()
        self.former_incarnations: set[str] = set()
        """Of stores before they were restored."""
        self.steps = 0
        self.checked: dict[str, tuple[str, int]] = {}
        self.checked_ms = NOW
        """When all sessions were looked at last, and what they were like."""
        self.touched: set[str | None] = set()
        """Sessions that were spoken to in this step."""
        self.webhook_events: dict[str, JsonObject] = {}
        """The payload of each webhook event, as it came first."""

    def begin(self, folder: Path) -> InProcessDriver:
        raise NotImplementedError

    def teardown(self) -> None:
        try:
            self.service.finish()
        finally:
            self.folder.cleanup()

    # What there is to choose from

    def known(self) -> list[str]:
        return list(self.model.sessions)

    def session(self, choice: int) -> str:
        """A session, mostly a lively one."""
        lively = self.lively()
        pool = lively if lively and choice < 10 else self.known()
        return pool[choice % len(pool)]

    def lively(self) -> list[str]:
        """The sessions that take events, or may be reopened."""
        sessions = self.model.sessions.values()
        return [one.id for one in sessions if one.state == "running" or self.model.may_reopen(one)]

    def has_lively(self) -> bool:
        return bool(self.lively())

    def old_or_new(self, choice: int) -> str:
        """A session, or the id of a new one."""
        count = len(self.model.sessions)
        wanted = count < MOST_SESSIONS and (choice in (7, 8) or not self.lively())
        return f"s{count + 1}" if wanted or not count else self.session(choice)

    def line(self, choice: int) -> tuple[int, ProducerLease]:
        """A line with its connection, mostly one that is neither superseded nor of a session that ended."""
        lines, sessions = self.all_lines(), self.model.sessions
        lively = [one for one in lines if not one[1].dead and sessions[one[1].session_id].state == "running"]
        pool = lively if lively and choice < 10 else lines
        return pool[choice % len(pool)]

    def all_lines(self) -> list[tuple[int, ProducerLease]]:
        """Every line, with its connection."""
        return [(number, line) for number, lines in self.model.connections.items() for line in lines.values()]

    def lively_line(self, session_id: str, name: str) -> tuple[ProducerLease, int]:
        """The line of a producer that is connected, and its connection."""
        keys = {"session_id": session_id, "producer": name, "dead": False}
        found = [one for one in self.all_lines() if all(getattr(one[1], key) == keys[key] for key in keys)]
        return found[0][1], found[0][0]

    def has_lively_lines(self) -> bool:
        running = {one.id for one in self.model.sessions.values() if one.state == "running"}
        return any(self.model.connected(session_id) for session_id in running)

    def has_lines(self) -> bool:
        return any(self.model.connections.values())

    def producer(self, line: ProducerLease) -> Producer:
        """Where a line's producer stands."""
        return self.model.sessions[line.session_id].producers.get(line.producer, Producer())

    # Talking to the service

    def request(self, method: str, path: str, body: Any = None, headers: JsonObject | None = None) -> RestResponse:
        answered = self.service.run(self.service.request(method, path, body, headers))
        if method != "GET":
            note(f"{method} {path} {body!r} -> {answered.status} {answered.body!r}")
        return answered

    def exchange(
        self, frames: dict[int, list[Any]], said: dict[int, Said], opening: bool = False
    ) -> dict[int, list[JsonObject]]:
        """Send on some connections, or listen to all; the frames that came back are what should be said.

        Whoever is opening looks at what it is answered.
        """
        numbers = list(frames or self.model.connections)
        texts = [[one if isinstance(one, str) else json.dumps(one) for one in frames.get(n, [])] for n in numbers]
        enough = [functools.partial(is_enough, said.get(number, {})) for number in numbers]
        told = self.service.run(self.service.exchange_all(list(zip(numbers, texts, enough, strict=True))))
        for number, sent, found in zip(numbers, texts, told, strict=True):
            if sent or found:
                note(f"connection {number}: {sent} -> {found}")
            others = [frame for frame in found if not (opening and frame["type"] == READY)]
            self.check_said(others, said.get(number, {}))
        return dict(zip(numbers, told, strict=True))

    def check_said(self, frames: list[JsonObject], expected: Said) -> None:
        """Errors in their order, and acks that cover what must be acknowledged and nothing that is not stored."""
        by_line = defaultdict(list)
        for frame in frames:
            by_line[frame.get("session_id"), frame.get("producer")].append(frame)
        assert set(by_line) <= set(expected), frames
        self.touched |= {session_id for session_id, _ in expected}
        for key, answers in expected.items():
            errors = [frame for frame in by_line[key] if frame["type"] == "error"]
            acks = [frame["seq"] for frame in by_line[key] if frame["type"] == "ack"]
            assert len(errors) + len(acks) == len(by_line[key]), frames
            wanted = [(answer.seq, answer.code, answer.expected) for answer in answers if answer.code]
            assert wanted == [(frame.get("seq"), frame["code"], frame.get("expected")) for frame in errors]
            self.check_acks(key, acks, answers)

    def check_acks(self, key: Key, acks: list[int], answers: list[Answer]) -> None:
        least = ack_due(answers)
        assert bool(least) == bool(acks), (acks, answers)
        if acks:
            session_id, name = key
            assert session_id is not None
            assert name is not None
            producer = self.model.sessions[session_id].producers[name]
            assert least <= max(acks) < producer.next_seq
            assert min(acks) >= 1


def ack_due(answers: list[Answer]) -> int:
    """The seq that must be acknowledged; 0 for none."""
    return max((answer.seq for answer in answers if answer.seq is not None and answer.code is None), default=0)


def is_enough(expected: Said, frames: list[JsonObject]) -> bool:
    """Whether everything came that must come."""
    for key, answers in expected.items():
        own = [frame for frame in frames if (frame.get("session_id"), frame.get("producer")) == key]
        errors = [frame for frame in own if frame["type"] == "error"]
        acked = max((frame["seq"] for frame in own if frame["type"] == "ack"), default=0)
        if len(errors) < len([1 for answer in answers if answer.code]) or acked < ack_due(answers):
            return False
    return True
