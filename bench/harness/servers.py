"""The servers under measurement, each a process of its own: start them, ask what they have stored, stop them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from voicemem.config.service import POSTGRESQL_PREFIXES, SQLITE_PREFIX
from voicemem.store.sqlite.transcript_file import INDEX_FILES

ROOT = Path(__file__).parents[2]
START_S = 60.0
STOP_S = 30.0
LOG_LINES = 30
MADE = ("", "-wal", "-shm", ".lock", ".opening", *INDEX_FILES)
"""Suffixes of the files that belong to a database."""


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
def started(module: str, *arguments: str, told: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a program of this repository, with `told` as its standard input; it is killed if it does not stop by itself.

    Its log is shown only if something goes wrong.
    """
    command = [sys.executable, "-m", module, *arguments]
    env = {key: value for key, value in os.environ.items() if not key.startswith("VOICEMEM_")}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            if told is not None and process.stdin is not None:
                process.stdin.write(told)
                process.stdin.close()
                process.stdin = None  # `communicate` would write to it
            yield process
        finally:
            if process.poll() is None:
                stop(process)
            if process.returncode not in (0, -signal.SIGKILL):
                log.seek(0)
                sys.stderr.writelines(log.readlines()[-LOG_LINES:])


@contextlib.contextmanager
def serving(name: str, store: str, *more: str) -> Iterator[Server]:
    """Run `voicemem` on a store, with `more` arguments, or the `bare` loop on a similar one."""
    module, *arguments = command(name, store)
    try:
        with started(module, *arguments, *more) as process:
            yield listening(process, with_rest=name == "voicemem")
    finally:
        remove(store)


def command(name: str, store: str) -> list[str]:
    if name == "bare":
        return [
            "bench.harness.baselines.bare",
            store.removeprefix(SQLITE_PREFIX) if store.startswith(SQLITE_PREFIX) else ":memory:",
        ]
    return ["voicemem", "serve", "--store", store, "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"]


def listening(process: subprocess.Popen[str], with_rest: bool) -> Server:
    """Read where the server listens. Raises `RuntimeError` if it ends instead."""
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


def port_of(process: subprocess.Popen[str]) -> int:
    """The port that a helper program prints as its first line. Raises `RuntimeError` if it ends instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"The program did not start; it ended with {process.wait()}.")
    return int(line)


def stop(process: subprocess.Popen[str]) -> Stopped:
    """Ask a process to stop, and wait; returns its exit code and the rest of its output."""
    process.terminate()
    try:
        output, _ = process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    return Stopped(process.returncode, output)


def raise_file_limit(files: int) -> None:
    """Let this process and its children open so many files, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files if hard < 0 else min(hard, files)), hard))


def remove(store: str) -> None:
    """Delete what a run has stored, so that the next one begins with an empty store."""
    if store.startswith(POSTGRESQL_PREFIXES):
        import psycopg

        with psycopg.connect(store, autocommit=True) as connection:
            tables = connection.execute("select quote_ident(tablename) from pg_tables where schemaname = 'public'")
            named = ", ".join(name for (name,) in tables)
            connection.execute(f"drop table {named} cascade".encode())
    if store.startswith(SQLITE_PREFIX):
        for ending in MADE:
            Path(store.removeprefix(SQLITE_PREFIX) + ending).unlink(missing_ok=True)


# What voicemem has stored, over REST


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def post(url: str, body: bytes, method: str = "POST") -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(url, body, method=method), timeout=60) as answer:
        told: dict[str, Any] = json.loads(answer.read())
        return told


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
