"""Kills the service again and again while sessions stream and end, and checks that nothing is lost or doubled.

Real processes on a real file: `voicemem serve` is ended with SIGKILL at random points (in time, right after an ack or
an end, when a webhook has arrived or was answered, while it starts, while it drains) and started again on the same
ports. Producers resume, readers read, a receiver takes webhooks; everything goes into a history, which a checker goes
through (`checker.py`). The program ends with a table, one line of JSON, and exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import apsw
import msgspec

from bench.crash.history import History
from bench.crash.producers import World
from bench.crash.proof import prove
from bench.crash.receiver import SECRET, Receiver
from bench.crash.server import Server, Trigger, free_ports
from bench.crash.sessions import Reader, Sessions
from bench.harness.report import machine, table

MOMENTS = {
    "time": 30,
    "acknowledged": 20,
    "end sent": 10,
    "end acknowledged": 10,
    "webhook arrived": 8,
    "webhook answered": 12,
    "opened": 4,
    "start": 3,
    "drain": 3,
}
"""When a round ends, and how often."""
LONGEST_S = 1.5
"""Seconds after which a round ends whose moment does not come."""
DRAIN_S = 10.0
READERS = 6
SHOW_EVERY = 25
SETTLE_S = 180.0


class Plan(NamedTuple):
    """How one round ends."""

    moment: str
    times: int
    """How many moments of this kind to wait for."""
    seconds: float


def plan(seed: int, number: int) -> Plan:
    """Drawn from the seed and the round alone, so that it can be repeated (except for the machine's scheduling)."""
    rng = random.Random(f"{seed}/round/{number}")
    moment = rng.choices([*MOMENTS], [*MOMENTS.values()])[0]
    seconds = rng.uniform(0.1, 0.5) if moment == "start" else rng.uniform(0.05, 1.0)
    return Plan(moment, rng.choice([1, 10, 100, 300] if moment == "acknowledged" else [1, 2, 4]), seconds)


class Run:
    """One run of the program."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.history = History(lambda finding: print(f"FOUND in {finding} (--seed {options.seed})", flush=True))
        self.trigger = Trigger()
        *ports, self.hook = free_ports(3, random.Random())
        self.server = Server(folder / "crash.db", (ports[0], ports[1]), f"http://127.0.0.1:{self.hook}/hook", SECRET)
        self.kills: Counter[str] = Counter()
        self.drains = 0
        self.began = time.monotonic()

    async def run(self) -> None:
        rng = random.Random(f"{self.options.seed}/readers")
        receiver = Receiver(self.history, self.trigger, rng)
        await receiver.start(self.hook)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            world = World(self.server, self.history, self.trigger, http)
            sessions = Sessions(world, self.options.seed)
            slots = [asyncio.create_task(sessions.slot()) for _ in range(self.options.sessions)]
            readers = [asyncio.create_task(Reader(world, rng).run()) for _ in range(READERS)]
            try:
                for number in range(self.options.first, self.options.first + self.options.rounds):
                    await self.round(number)
                    for one in (*slots, *readers):
                        if one.done():
                            one.result()
                    if self.history.findings and not self.options.go_on:
                        break
                await self.settle(world, sessions, slots)
            finally:
                working: list[asyncio.Task[Any]] = [*slots, *readers, *sessions.finishing]
                for task in working:
                    task.cancel()
                await asyncio.gather(*working, return_exceptions=True)
                self.server.kill()
                await receiver.stop()

    async def round(self, number: int) -> None:
        """One life of the service."""
        self.history.round = number
        chosen = plan(self.options.seed, number)
        self.trigger.arm(self.server, chosen.moment, chosen.times)
        await self.server.spawn()
        if chosen.moment == "start":
            await asyncio.sleep(chosen.seconds)
        elif await self.server.ready():
            with suppress(TimeoutError):
                async with asyncio.timeout(chosen.seconds if chosen.moment in ("time", "drain") else LONGEST_S):
                    await self.trigger.fired.wait()
            if chosen.moment == "drain":
                await self.drain(killed=number % 2 == 0)
        self.server.kill()
        await self.server.ended()
        self.kills[chosen.moment] += 1
        if (number + 1) % SHOW_EVERY == 0:
            self.show_progress(number + 1)

    async def drain(self, killed: bool) -> None:
        """Send SIGTERM under load; half of the services are killed while they drain."""
        began = time.monotonic()
        stopping = asyncio.create_task(self.server.stop())
        if killed:
            await asyncio.sleep(random.uniform(0, 0.3))
            self.server.kill()
        code = await stopping
        if not killed:
            self.drains += 1
            if code != 0 or time.monotonic() - began > DRAIN_S:
                self.history.find("", f"a drain ended with {code} after {time.monotonic() - began:.1f} s")

    async def settle(self, world: World, sessions: Sessions, slots: Sequence[asyncio.Task[None]]) -> None:
        """Let everything finish, and check all journals once more."""
        sessions.stopping = True
        self.trigger.arm(self.server, "", 0)
        await self.server.spawn()
        await self.server.ready()
        try:
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*slots)
                await asyncio.gather(*sessions.finishing)
        except TimeoutError:
            self.history.find("", f"{len(self.history.calls)} sessions did not come to their end")
        listed = await list_sessions(world)
        begun = set(self.history.settled) | set(self.history.calls)
        if listed != begun:
            self.history.find(
                "", f"{len(listed - begun)} sessions are there too many, {len(begun - listed)} are missing"
            )
        for session in listed & set(self.history.settled):
            self.history.settled_again(session, await world.insist("GET", f"/v1/sessions/{session}/events"))
        code = await self.server.stop()
        if code != 0:
            self.history.find("", f"the service ended with {code}")
        for what in sound(self.server.store):
            self.history.find("", f"the database is damaged: {what}")
        if b"Traceback" in self.server.log.read_bytes():
            self.history.find("", f"there is a traceback in {self.server.log}")

    def show_progress(self, rounds: int) -> None:
        counts, seconds = self.history.counts, (time.monotonic() - self.began) / self.kills.total()
        print(
            f"round {rounds} ({seconds:.2f} s each): {counts['sessions']} sessions checked,"
            f" {counts['events_acknowledged']} events acknowledged, {counts['reads']} reads,"
            f" {counts['notices']} notices, {len(self.history.findings)} findings",
            flush=True,
        )

    def results(self) -> dict[str, Any]:
        counts = self.history.counts
        names = (
            *("sessions", "entries", "events_sent", "events_resent", "events_acknowledged", "gaps", "superseded"),
            *("reads", "closes", "notices", "duplicates"),
        )
        return {
            "rounds": self.kills.total(),
            "kills": self.kills.total() - self.drains,
            "drains": self.drains,
            **{name: counts[name] for name in names},
            "findings": len(self.history.findings),
        }


async def list_sessions(world: World) -> set[str]:
    """The ids of all sessions that the service has."""
    found: set[str] = set()
    cursor = ""
    while True:
        (page,) = await world.insist("GET", f"/v1/sessions?limit=1000{cursor}")
        found |= {session["session_id"] for session in page["sessions"]}
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def sound(store: Path) -> list[str]:
    """The errors that SQLite's own check finds in a database."""
    connection = apsw.Connection(str(store))
    try:
        return [text for (text,) in connection.execute("pragma integrity_check") if text != "ok"]
    finally:
        connection.close()


def show(run: Run, seconds: float, folder: Path, options: argparse.Namespace) -> None:
    """The table, the findings, and the line of JSON."""
    results = run.results()
    rows = [(name.replace("_", " "), f"{value:,}") for name, value in results.items()]
    rows += [(f"killed at: {moment}", f"{count:,}") for moment, count in sorted(run.kills.items())]
    print(table(("what", "count"), rows))
    for finding in run.history.findings[:50]:
        print(
            f"FOUND in round {finding.round} (--seed {options.seed}), session {finding.session or '-'}: {finding.what}"
        )
    if run.history.findings:
        print(f"The database and the log are in {folder}.")
    told = {"seed": options.seed, "rounds": options.rounds, "sessions": options.sessions, "first": options.first}
    findings = [finding._asdict() for finding in run.history.findings[:50]]
    print(
        msgspec.json.encode(
            {
                "bench": "crash",
                "machine": machine(folder),
                "options": told,
                "seconds": round(seconds, 1),
                "results": results,
                "killed_at": dict(run.kills),
                "found": findings,
            }
        ).decode(),
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="how often the service is killed")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    parser.add_argument("--sessions", type=int, default=40, help="sessions that stream at a time")
    parser.add_argument("--first", type=int, default=0, help="number of the first round, to repeat a later one")
    parser.add_argument("--store", type=Path, help="folder for the database and the log, which are kept")
    parser.add_argument("--prove", action="store_true", help="show that planted faults are found, instead of a run")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first finding")
    options = parser.parse_args(arguments)
    if options.prove:
        proved = prove()
        print(
            table(("planted", "verdict"), [(name, "as it should be" if right else "MISSED") for name, right in proved])
        )
        return 0 if all(right for _, right in proved) else 1
    folder = options.store or Path(tempfile.mkdtemp(prefix="voicemem-crash-"))
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "crash.db").exists():
        parser.error(f"{folder / 'crash.db'} is there already")
    logging.getLogger("voicemem").setLevel(logging.CRITICAL)  # the client logs refusals, which are intended here
    run, began = Run(options, folder), time.monotonic()
    asyncio.run(run.run())
    show(run, time.monotonic() - began, folder, options)
    if options.store is None and not run.history.findings:
        shutil.rmtree(folder)
    return 1 if run.history.findings else 0


if __name__ == "__main__":
    sys.exit(main())
