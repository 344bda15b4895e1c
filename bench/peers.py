"""voicemem and other stores of conversations on the same work, in the same run.

    python -m bench.peers [--messages 2000] [--sessions 200] [--reads 300] [--python PATH] [--runs 2] [--markdown]

Messages of about 115 characters. One session grows to 2,000 messages, each append awaited until it is durable; 200
sessions at once take 20 messages each, one under way in each; a history of 200 messages is read 300 times. voicemem is
its real server process, with a lean client over the websocket and over HTTP. The peers run in a process of the
interpreter `--python`, where they are installed; a peer that is missing is named and left out.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct

from bench.harness.load import http_client, websocket
from bench.harness.load.generator import usage
from bench.harness.peer import HISTORY, NOT_INSTALLED, PEERS, ROLES, Append, at_once, figures, growing, reading, text
from bench.harness.report import Measured, disk_folder, machine, number, show, table
from bench.harness.servers import ROOT, Server, raise_file_limit, serving
from voicemem.config.service import SQLITE_PREFIX

BASELINE = "openai-agents"
SPARE_S = 600.0
WAYS = {"ws": "voicemem, websocket", "http": "voicemem, HTTP"}
LIVE = {"idle_timeout": 0}
COLUMNS = {
    "appends_s": "one session, appends/s",
    "at_10_ms": "ms @10",
    "at_1000_ms": "ms @1,000",
    "at_end_ms": "ms @end",
    "many_appends_s": "many, appends/s",
    "many_p50_ms": "p50 ms",
    "many_p99_ms": "p99 ms",
    "errors": "errors",
    "read_p50_ms": "read p50 ms",
    "read_p99_ms": "read p99 ms",
    "kib_per_session": "KiB/session",
}
UNITS = {"errors": "appends", "kib_per_session": "KiB"}
Figures = dict[str, float]


class Options(Struct, kw_only=True):
    messages: int
    sessions: int
    reads: int
    runs: int
    python: str
    markdown: bool


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000, help="messages that one session grows to (2000)")
    parser.add_argument("--sessions", type=int, default=200, help="sessions at once (200)")
    parser.add_argument("--reads", type=int, default=300, help="reads of a history of 200 messages (300)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each system; the better of each figure counts (2)")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers installed (this one)")
    parser.add_argument("--markdown", action="store_true", help="also print the rows of the table in bench/README.md")
    return Options(**vars(parser.parse_args(arguments)))


# voicemem


def message(seq: int) -> bytes:
    """The event of one message."""
    role, source = ROLES[seq % 2], ("llm", "message")[seq % 2]
    event = {"type": "message", "turn_id": seq, "role": role, "text": text(seq), "source": source, "seq": seq}
    return msgspec.json.encode(event)


async def over_websocket(server: Server, session: str) -> Append:
    connection = await websocket.connect(server.host, server.port, server.path)
    line = connection.line(session)
    await line.open(LIVE)

    async def append(seq: int) -> None:
        line.send(message(seq), seq)
        await line.until(seq)

    return append


async def over_http(server: Server, session: str) -> Append:
    caller = await http_client.connect(*rest_of(server))
    host = rest_of(server)[0]
    opening = msgspec.json.encode({"session_id": session, **LIVE})
    await caller.call(http_client.request(host, "/v1/sessions", body=opening))

    async def append(seq: int) -> None:
        answer = await caller.call(http_client.request(host, f"/v1/sessions/{session}/events", body=message(seq)))
        if answer.status != 200:
            raise RuntimeError(f"An append was answered with {answer.status}.")

    return append


def rest_of(server: Server) -> tuple[str, int]:
    host, _, port = (server.rest or "").removeprefix("http://").rpartition(":")
    return host, int(port)


async def voicemem_figures(server: Server, way: str, options: Options) -> Figures:
    connect = over_websocket if way == "ws" else over_http
    alone = await growing(await connect(server, f"{way}-one"), options.messages)
    appends = [await connect(server, f"{way}-many-{session}") for session in range(options.sessions)]
    before = usage(server.process.pid).server_rss or 0.0
    many = await at_once(appends)
    grown_mib = (usage(server.process.pid).server_rss or 0.0) - before
    await growing(await connect(server, f"{way}-read"), HISTORY)
    reader = await http_client.connect(*rest_of(server))
    request = http_client.request(rest_of(server)[0], f"/v1/sessions/{way}-read/history")

    async def read() -> int:
        return len(msgspec.json.decode((await reader.call(request)).body)["contents"])

    reads = await reading(read, options.reads)
    return figures(alone, many, reads, grown_mib * 1024 / options.sessions)


def voicemem_run(way: str, folder: Path, options: Options) -> Figures:
    with serving("voicemem", f"{SQLITE_PREFIX}{folder}/bench.db") as server:
        return uvloop.run(voicemem_figures(server, way, options))


# The peers


def peer_run(name: str, options: Options) -> Figures | None:
    """One peer's figures; None if it is not installed. Raises `CalledProcessError` for any other error."""
    sizes = map(str, (options.messages, options.sessions, options.reads))
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        done = subprocess.run(
            [options.python, "-W", "ignore", "-m", "bench.harness.peer", name, folder, *sizes],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            timeout=SPARE_S,
        )
    if done.returncode == NOT_INSTALLED:
        return None
    done.check_returncode()
    told: Figures = msgspec.json.decode(done.stdout)
    return told


# The report


def better(runs: Sequence[Figures]) -> Figures:
    """The better of each figure: the higher rate, the lower time."""
    return {
        name: (max if name.endswith("_s") else min)(run[name] for run in runs) for name in COLUMNS if name in runs[0]
    }


def measured(found: dict[str, Figures]) -> list[Measured]:
    baseline = found.get(BASELINE, {})
    return [
        Measured(f"{key}_{name}", f"{what}: {column}", found[what][name], unit(name), baseline.get(name))
        for key, what in WAYS.items()
        for name, column in COLUMNS.items()
    ]


def unit(name: str) -> str:
    return "/s" if name.endswith("_s") else UNITS.get(name, "ms")


def markdown(found: dict[str, Figures]) -> str:
    """Rows for bench/README.md: appends to one session and how long they take as it grows, many sessions, reading."""
    rows = []
    for what, one in found.items():
        growth = " → ".join(number(one[name]) for name in ("at_10_ms", "at_1000_ms", "at_end_ms"))
        many = f"{number(one['many_p50_ms'])} / {number(one['many_p99_ms'])}"
        reads = f"{number(one['read_p50_ms'])} / {number(one['read_p99_ms'])}"
        cells = (what, number(one["appends_s"]), growth, number(one["many_appends_s"]), many, reads)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    raise_file_limit(2 * options.sessions + 500)
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        facts = machine(Path(folder))
        for way, what in WAYS.items():
            found[what] = better([voicemem_run(way, Path(folder), options) for _ in range(options.runs)])
    for name in PEERS:
        runs = [run for _ in range(options.runs) if (run := peer_run(name, options)) is not None]
        if runs:
            found[name] = better(runs)
        else:
            print(f"{name} is left out: install it for {options.python}, or name another with --python.")
    print(f"{options.messages:,} messages in one session; {options.sessions} sessions at once; {options.reads} reads;")
    print(f"the better of {options.runs} counts\n")
    print(table(("", *COLUMNS.values()), [(what, *map(number, one.values())) for what, one in found.items()]))
    print(f"\n{markdown(found)}\n" if options.markdown else "")
    told = msgspec.to_builtins(options) | {"python": None, "peers": [name for name in PEERS if name in found]}
    show("peers", facts, measured(found), options=told, found=found)
    return 1 if any(found[what]["errors"] for what in WAYS.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
