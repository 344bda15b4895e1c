"""The meter of a phone in the JavaScript package reports what ours does."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from typing import Any

from tests.support.needs import needs
from tests.support.paths import ROOT
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.integrations.tee.phone import PhoneMeter

SCRIPT = ROOT / "clients/javascript/tests/tee/meter-lines.js"
FORMATS: list[Any] = [
    {"encoding": "audio/x-mulaw", "sampleRate": 8000},
    {"encoding": "L16", "sample_rate": 16000},
    {"encoding": "audio/l16;rate=24000"},
    {"encoding": "G722", "sample_rate": 16000},
    {"encoding": "OPUS"},
    {},
    None,
]


def crossings(dice: random.Random) -> list[tuple[int, str, Any]]:
    """Frames of a phone's stream, in any order."""
    ts = 1_790_000_000_000
    found: list[tuple[int, str, Any]] = []
    form = dice.choice(FORMATS)
    found.append((ts, "vendor", {"event": "start", "streamSid": "MZ1", "start": {"mediaFormat": form}}))
    for _ in range(300):
        ts += dice.choice((0, 5, 20, 90, 400, 1_500))
        payload = base64.b64encode(bytes(dice.choice((0, 1, 160, 161, 4_000)))).decode()
        mark = {"event": "mark", "mark": {"name": dice.choice("abc")}}
        app: list[Any] = [{"event": "media", "media": {"payload": payload}}] * 4
        app += [mark, mark, {"event": "clear"}, {"event": "checkpoint", "name": "a"}, {"action": "clear"}, 640]
        notify = {"payload": dice.choice(({"name": "a"}, {"name": "b"}, 7, None))}
        app.append({"action": "notify", **notify})
        stopped = [{"event": "stop"}] if dice.random() < 0.05 else []
        vendor: list[Any] = [
            *stopped,
            {"event": "websocket:notify", **notify},
            {"event": "websocket:connected", "content-type": "audio/l16;rate=16000"} if stopped else mark,
            mark,
            {"event": "media", "media": {"payload": payload}},
            {"event": "playedStream", "name": "b"},
        ]
        side = dice.choice(("app", "app", "vendor"))
        found.append((ts, side, dice.choice(app if side == "app" else vendor)))
        if dice.random() < 0.02:
            found.append((ts, "app", {"event": "media", "media": {"payload": 7}}))
    return found


def reported(frames: list[tuple[int, str, Any]]) -> list[Any]:
    """What our meter reports."""
    meter = PhoneMeter()
    reports: list[Any] = []
    for ts, side, frame in frames:
        try:
            meter.take(bytes(frame) if isinstance(frame, int) else frame, side, ts)  # type: ignore[arg-type]
        except (MalformedFrame, UnknownFrame) as error:
            reports.append(type(error).__name__)
        due = meter.due(ts)
        if due is not None and due <= ts:
            reports.append(meter.report(ts))
    return reports


def test_same_reports() -> None:
    """Whatever is sent, cleared and marked, at whatever times and in whatever format."""
    streams = [crossings(random.Random(seed)) for seed in range(60)]
    lines = "".join(json.dumps(stream) + "\n" for stream in streams)
    done = subprocess.run([needs("node"), SCRIPT], input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for stream, reports in zip(streams, found, strict=True):
        assert reports == reported(stream)
