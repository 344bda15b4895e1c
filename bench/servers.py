"""The servers that are measured, each a process of its own: started, asked what it has stored, and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from voicemem.settings import SQLITE

ROOT = Path(__file__).parents[1]
START_S = 20.0
STOP_S = 30.0
LOG_LINES = 30
MADE = ("", "-wal", "-shm", ".lock")
"""What the files beside a database end in."""


class Server(NamedTuple):
    """A running server, and where it listens; the bare loop has no REST."""

    process: subprocess.Popen[str]
    host: str
    port: int
    path: str
    rest: str | None


class Stopped(NamedTuple):
    """What the server said at its end."""

    code: int
    output: str


@contextlib.contextmanager
def serving(name: str, store: str) -> Iterator[Server]:
    """`voicemem` on a store, or the `bare` loop on the same kind of one; killed if it does not stop by itself.

    What it logs is shown only when something has gone wrong.
    """
    command = [sys.executable, "-m", *arguments(name, store)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("VOICEMEM_")}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield listening(process, with_rest=name == "voicemem")
        finally:
            if process.poll() is None:
                stop(process)
            if process.returncode:
                log.seek(0)
                sys.stderr.writelines(log.readlines()[-LOG_LINES:])
            remove(store)


def arguments(name: str, store: str) -> list[str]:
    if name == "bare":
        return ["bench.bare", store.removeprefix(SQLITE) if store.startswith(SQLITE) else ":memory:"]
    return ["voicemem", "serve", "--store", store, "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"]


def listening(process: subprocess.Popen[str], with_rest: bool) -> Server:
    """Read where it listens. Raises `RuntimeError` when it ends instead."""
    assert process.stdout is not None
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    ingest, rest = None, None
    while ingest is None or (with_rest and rest is None):
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"The server did not start; it ended with {process.wait()}.")
        ingest = ingest or re.search(r"ws://([\d.]+):(\d+)(/\S*)", line)
        found = re.search(r"http://[\d.]+:\d+", line)
        rest = rest or (found[0] if found else None)
    watchdog.cancel()
    return Server(process, ingest[1], int(ingest[2]), ingest[3], rest)


def stop(process: subprocess.Popen[str]) -> Stopped:
    """Ask it to stop, and wait; its code, and what it had still to say."""
    process.terminate()
    try:
        output, _ = process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    return Stopped(process.returncode, output)


def remove(store: str) -> None:
    if store.startswith(SQLITE):
        for ending in MADE:
            Path(store.removeprefix(SQLITE) + ending).unlink(missing_ok=True)


# What voicemem has stored, by its REST


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def positions(rest: str) -> dict[str, int]:
    """The position of every session's journal."""
    found: dict[str, int] = {}
    cursor = None
    while True:
        more = f"&cursor={urllib.parse.quote(cursor)}" if cursor else ""
        page = json.loads(get(f"{rest}/v1/sessions?limit=1000{more}"))
        found |= {session["session_id"]: session["position"] for session in page["sessions"]}
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def journal(rest: str, session_id: str) -> list[dict[str, Any]]:
    """The events of a session, as the journal has them."""
    lines = get(f"{rest}/v1/sessions/{session_id}/events").splitlines()
    return [json.loads(line)["event"] for line in lines]
