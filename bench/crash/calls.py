"""What the sessions of a crash run do, each drawn from the seed and its number alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from bench.harness.load import calls

JsonObject = dict[str, Any]
UNKNOWN = "unknown_type"
SHAPES = {"one": 30, "two": 20, "http": 15, "mixed": 10, "client": 15, "idle": 10}
"""How a session is sent, and how often: by one producer, by two, over HTTP, both ways, by `voicemem.client`, or with a
silence in the middle that closes it and a return that opens it again."""
NODES_SHAPES = {**SHAPES, "quiet": 20, "left": 10}
"""With several nodes also: by two, of which one is away for a while and the other says nothing meanwhile; and by one
that leaves without an end."""
IDLE_S = {"idle": 0.3, "quiet": 0.5, "left": 0.5}
AWAY_S = 1.5


class Part(NamedTuple):
    """What one producer sends; `refused` are the seqs of events that the service must refuse."""

    producer: str
    transport: str
    """`websocket`, `http` or `client`."""
    events: list[JsonObject]
    refused: frozenset[int]
    pause_after: int | None = None
    """The seq after which it leaves, until the session is closed as idle, or for `away_s`."""
    away_s: float | None = None
    rest_after: int | None = None
    """The seq after which it is connected, and says nothing for a while."""


class Script(NamedTuple):
    """One session."""

    session: str
    config: JsonObject
    parts: list[Part]
    ended_over_rest: bool
    patches: int


def script(seed: int, number: int, shapes: Mapping[str, int] = SHAPES) -> Script:
    """The session of this number."""
    rng = random.Random(f"{seed}/session/{number}")
    shape = rng.choices([*shapes], [*shapes.values()])[0]
    over_rest = rng.random() < 0.2 and shape != "left"
    events = list(islice(calls.events(rng.randrange(calls.CYCLE)), rng.randint(20, 120)))
    shares = split(events) if shape in ("two", "mixed", "quiet") else {"main": events}
    transports = {"http": ["http"], "mixed": ["websocket", "http"], "client": ["client"]}.get(shape, ["websocket"])
    ends = not over_rest and shape != "left"
    parts = [
        part(rng, name, transports[index % len(transports)], share, ends)
        for index, (name, share) in enumerate(shares.items())
    ]
    if shape == "idle":
        parts = [one._replace(pause_after=rng.randint(1, len(one.events) - 1)) for one in parts]
    elif shape == "quiet":
        asr, llm = parts
        away = asr._replace(pause_after=max(1, len(asr.events) // 2), away_s=AWAY_S)
        parts = [away, llm._replace(rest_after=len(llm.events) // 2)]
    config = {"name": f"call {number}", "labels": {"shape": shape}, "idle_timeout": IDLE_S.get(shape, 30)}
    return Script(f"{shape}-{number}", config, parts, over_rest, rng.choice([0, 0, 1, 3]))


def split(events: list[JsonObject]) -> dict[str, list[JsonObject]]:
    """One call as two processes send it: the recogniser's events, and all others."""
    return {
        "asr": [event for event in events if event["type"] == "asr"],
        "llm": [event for event in events if event["type"] != "asr"],
    }


def part(rng: random.Random, name: str, transport: str, given: list[JsonObject], ends: bool) -> Part:
    events = [{key: value for key, value in event.items() if key != "seq"} for event in given]
    for _ in range(rng.choice([0, 0, 1, 2])):
        events.insert(rng.randint(0, len(events)), {"type": "no.such.type", "turn_id": 1})
    for _ in range(rng.choice([0, 0, 1])):
        update = {"type": "session.update", "labels": {f"update-{name}": str(rng.random())}}
        events.insert(rng.randint(0, len(events)), update)
    if ends:
        last_seq = {"last_seq": len(events)} if rng.random() < 0.5 or transport == "client" else {}
        events.append({"type": "session.end", "reason": "left", **last_seq})
    if transport == "client":  # the client would add the time itself, as well as the end's last_seq
        events = [{"ts": calls.BEGIN_MS, **event} for event in events]
    numbered = [{**event, "seq": seq} for seq, event in enumerate(events, 1)]
    refused = frozenset(event["seq"] for event in numbered if event["type"] == "no.such.type")
    return Part(name, transport, numbered, refused)
