"""Calls over two nodes on a real PostgreSQL, of which one is killed in the middle: `make demo-nodes`.

    python -m bench.nodes.demo [--fast]

It exits with 1 if something was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bench.harness.node_processes import NodeProcess, PostgresqlServer, Proxy, start_node
from voicemem.cli.common import CommandFailed, Server, plain_errors, run
from voicemem.cli.demo.one_call import ANY_PORT, recorded_call, render_call
from voicemem.client import Client, Options
from voicemem.client.replay import Replay, pauses_before
from voicemem.client.session import ProducerSession
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.config.service import Address
from voicemem.protocol.types import JsonObject
from voicemem.webhooks.endpoints import new_webhook_secret
from voicemem.webhooks.requests import WebhookEvent, WebhookReceiver

CALLS = 12
FAST = 5.0
"""How many times faster `--fast` plays the calls."""
KILLED_AFTER = 26
"""Events of the first call: the agent is in the middle of its second answer."""
LOOK_S = 0.05
MOVED_S, ENDED_S, GONE_S = 20.0, 60.0, 30.0
"""How long producers may take to come back, calls to end, and the lease of a dead node to run out."""
UNDISTURBED = "undisturbed"
NEXT = (
    "The demo is over, and everything that it started has stopped. Next: docs/nodes.md says how to run nodes of"
    " your own."
)


async def demo_nodes(console: Console, fast: bool) -> None:
    """Play calls into two nodes, kill one, and show that nothing was lost. Raises `CommandFailed` if something was."""
    pace = FAST if fast else 1.0
    async with staged(console) as stage:
        calls = await begin_calls(console, stage)
        playing = [
            asyncio.create_task(call.play(pace, number * NEXT_CALL_S / pace)) for number, call in enumerate(calls)
        ]
        try:
            await watch_calls(console, stage, calls, playing)
        finally:
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)
        await Replay(recorded_call()).run(stage.url, UNDISTURBED)
        await wait_until_gone(console, stage)
        all_holds = await show_findings(console, stage, calls)
    if not all_holds:
        raise CommandFailed("Not everything came through, as marked above. Please report this.")
    console.print(NEXT, soft_wrap=True, highlight=False)


def say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)


async def begin_calls(console: Console, stage: Stage) -> list[Call]:
    """Open the calls; the proxy spreads their producers over the nodes."""
    say(console, f"[bold]Two nodes[/] of voicemem run for this demo, on one PostgreSQL {stage.postgresql_version}:")
    for node in stage.nodes:
        say(console, f"  node {node.name}   REST at http://{node.rest}, process {node.process.pid}")
    say(console, f"  a proxy  in front of both: events at {stage.url}, REST at {stage.http_url}\n")
    calls = [Call(f"call-{number}", recorded_call()) for number in range(1, CALLS + 1)]
    with console.status("The producers connect"):
        for call in calls:
            await call.open(stage.url, stage.ingest, stage.clients)
    names = {node.ingest: node.name for node in stage.nodes}
    placed = ", ".join(f"{producer} on node {names[node]}" for producer, node in calls[0].nodes.items())
    say(
        console,
        f"{CALLS} calls begin. Each part of a call's voice engine ({', '.join(PRODUCERS)}) has a connection of its own,"
        f" and the proxy spreads them: {connections(calls, stage.nodes[0])} come to node A,"
        f" {connections(calls, stage.nodes[1])} to node B. Of the first call: {placed}.\n",
    )
    return calls


def connections(calls: list[Call], node: NodeProcess) -> int:
    """How many producers came to a node at first."""
    return sum(len(call.reopened_since(node.ingest)) for call in calls)


async def watch_calls(console: Console, stage: Stage, calls: list[Call], playing: list[asyncio.Task[None]]) -> None:
    """Show the first call live, and kill a node in the middle of it. Raises `CommandFailed`."""
    deadline = time.monotonic() + ENDED_S
    with Live(console=console, auto_refresh=False) as live:

        async def show() -> None:
            with suppress(OSError, asyncio.TimeoutError):  # the proxy's node may be dying
                live.update(await render_first(stage, calls, console.is_terminal), refresh=console.is_terminal)

        await wait_until(lambda: sum(calls[0].sent.values()) >= KILLED_AFTER, deadline, show)
        await kill(live.console, stage.nodes[0], calls, show)
        await wait_until(lambda: all(task.done() for task in playing), deadline, show)
        await asyncio.gather(*playing)
        live.update(await render_first(stage, calls, console.is_terminal), refresh=True)


async def render_first(stage: Stage, calls: list[Call], styled: bool) -> Panel:
    contents: list[dict[str, Any]] = (await history(stage, calls[0].session_id, True))["contents"]
    panel = render_call(contents, sum(call.acked for call in calls), sum(call.total for call in calls), styled)
    panel.title = f"The first of the {len(calls)} calls, as it was really heard"
    panel.subtitle = f"all calls together: {panel.subtitle}"
    return panel


async def kill(console: Console, node: NodeProcess, calls: list[Call], show: Callable[[], Awaitable[None]]) -> None:
    """Kill a node, and report what becomes of its producers. Raises `CommandFailed` when they do not come back."""
    await node.kill()
    killed = time.monotonic()
    acked, under_way = sum(call.acked for call in calls), sum(call.unacknowledged_on(node.ingest) for call in calls)
    say(
        console,
        f"[bold red]Node {node.name} is killed[/] (kill -9), in the middle of a sentence. {acked} events are"
        f" acknowledged, {under_way} were on their way to it.",
    )
    await wait_until(lambda: all(all(call.reopened_since(node.ingest)) for call in calls), killed + MOVED_S, show)
    say(
        console,
        f"Its {connections(calls, node)} producers have connected again, to node B, within"
        f" {time.monotonic() - killed:.1f} s. They send again what was not acknowledged, and the calls continue.\n",
    )


async def wait_until(holds: Callable[[], bool], deadline: float, show: Callable[[], Awaitable[None]]) -> None:
    """Show the progress of the calls until a condition holds. Raises `CommandFailed` when it does not in time."""
    while not holds():
        if time.monotonic() > deadline:
            raise CommandFailed("The calls did not continue in time. Please report this.")
        await show()
        await asyncio.sleep(LOOK_S)


async def wait_until_gone(console: Console, stage: Stage) -> None:
    """Wait until the node that lives has freed what the dead one held. Raises `CommandFailed`."""
    dead, alive = stage.nodes
    deadline = time.monotonic() + GONE_S
    with console.status(f"Node {alive.name} waits until the lease of node {dead.name} is over, 10 s after its death"):
        while str(dead.rest) in (listed := await list_nodes(stage.store)):
            if time.monotonic() > deadline:
                raise CommandFailed(f"Node {dead.name} was not given up in time. Please report this.")
            await asyncio.sleep(LOOK_S)
    say(console, f"\nNode {dead.name} has been given up. [bold]voicemem nodes[/] lists:\n  {listed.strip()}\n")


PRODUCERS = ("asr", "llm", "tts")
OPTIONS = Options(open_timeout_s=15, close_timeout_s=15)
NEXT_CALL_S = 0.1
"""How much later than the call before it each call begins; divided by the pace."""


class Call:
    """A call of which each part of the voice engine sends its own events."""

    def __init__(self, session_id: str, events: Sequence[JsonObject]) -> None:
        self.session_id = session_id
        self.events = events
        self.producers: dict[str, ProducerSession] = {}
        self.nodes: dict[str, Address] = {}
        """The address to which each producer was connected first."""
        self.sent = dict.fromkeys(PRODUCERS, 0)

    @property
    def total(self) -> int:
        """How many events it has; each producer sends an end of its own."""
        return len(self.events) - 1 + len(PRODUCERS)

    @property
    def acked(self) -> int:
        """How many events are on disk and acknowledged."""
        return sum(self.sent.values()) - sum(producer.unacknowledged for producer in self.producers.values())

    async def open(self, url: str, proxy: Proxy, stack: AsyncExitStack) -> None:
        """Connect the producers, one after the other, and note to which node each one comes."""
        for name in PRODUCERS:
            client = await stack.enter_async_context(Client(url, options=OPTIONS))
            self.producers[name] = await client.open(self.session_id, producer=name)
            assert proxy.newest is not None
            self.nodes[name] = proxy.newest

    async def play(self, pace: float, delay_s: float) -> None:
        """Send everything at `pace` times the call's own speed, and wait until all of it is acknowledged."""
        await asyncio.sleep(delay_s)
        for event, pause_s in zip(self.events, pauses_before(self.events, pace), strict=True):
            await asyncio.sleep(pause_s)
            unnumbered = {name: value for name, value in event.items() if name not in ("seq", "last_seq")}
            for name in PRODUCERS if event["type"] == "session.end" else (producer_of(event),):
                self.producers[name].send(unnumbered)
                self.sent[name] += 1
        await asyncio.gather(*(producer.flush() for producer in self.producers.values()))

    def reopened_since(self, node: Address) -> list[bool]:
        """Of each producer that was connected to a node: whether it has been opened again since."""
        return [self.producers[name].epoch != 1 for name in PRODUCERS if self.nodes[name] == node]

    def unacknowledged_on(self, node: Address) -> int:
        """How many events the producers of a node have sent that are not acknowledged yet."""
        return sum(self.producers[name].unacknowledged for name in PRODUCERS if self.nodes[name] == node)


def producer_of(event: JsonObject) -> str:
    if event["type"] in ("asr", "interrupt"):
        return "asr"
    return "tts" if event["type"] == "tts" else "llm"


class Stage(NamedTuple):
    """Everything that runs for the demo."""

    store: str
    postgresql_version: str
    nodes: list[NodeProcess]
    ingest: Proxy
    url: str
    """Address that producers connect to."""
    http_url: str
    http: RestClient
    """Asks the REST API, through the proxy."""
    webhook_events: list[WebhookEvent]
    """The webhooks that have come."""
    clients: AsyncExitStack
    """The clients of producers, which are closed first."""


@asynccontextmanager
async def staged(console: Console) -> AsyncIterator[Stage]:
    """Start it all on free ports, and stop it at the end of the block. Raises `CommandFailed`."""
    async with AsyncExitStack() as stack:
        with console.status("PostgreSQL starts"):
            server = await asyncio.to_thread(PostgresqlServer)
            stack.push_async_callback(asyncio.to_thread, server.remove)
            await asyncio.to_thread(server.start)
        webhook_events: list[WebhookEvent] = []
        secret = new_webhook_secret()
        receiver = WebhookReceiver(secret, webhook_events.append)
        stack.push_async_callback(receiver.stop)
        settings = {
            "VOICEMEM_STORE": server.url(),
            "VOICEMEM_WEBHOOK_URL": f"http://{await receiver.start(ANY_PORT)}/voicemem",
            "VOICEMEM_WEBHOOK_SECRET": secret,
        }
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="voicemem-demo-")))
        nodes: list[NodeProcess] = []
        with console.status("Two nodes start"):
            for name in "AB":
                nodes.append(await start_node(name, settings, logs))
                stack.push_async_callback(nodes[-1].stop)
        ingest, rest = Proxy([node.ingest for node in nodes]), Proxy([node.rest for node in nodes])
        for proxy in (ingest, rest):
            await proxy.start()
            stack.push_async_callback(proxy.stop)
        url, http_url = f"ws://{ingest.address}/v1/ingest", f"http://{rest.address}"
        http = await stack.enter_async_context(Server(http_url, None).client())
        clients = await stack.enter_async_context(AsyncExitStack())
        yield Stage(server.url(), server.version, nodes, ingest, url, http_url, http, webhook_events, clients)


class Finding(NamedTuple):
    """Something that must hold, what was found of it, and whether it does hold."""

    what: str
    found: str
    holds: bool


async def history(stage: Stage, session_id: str, unfinished: bool | None = None) -> JsonObject:
    return await stage.http.get(session_path(session_id, "/history"), {"open": unfinished})


async def show_findings(console: Console, stage: Stage, calls: Sequence[Call]) -> bool:
    """Look at everything that the calls have left behind; whether all is as it should be."""
    expected = (await history(stage, UNDISTURBED))["contents"]
    histories = [await history(stage, call.session_id) for call in calls]
    paths = [session_path(call.session_id, "/events") for call in calls]
    journals = [[line async for line in stage.http.lines(path, {})] for path in paths]
    findings = (
        check_events(calls, journals),
        check_histories(histories, expected),
        check_sessions(histories),
        check_webhook_events(calls, stage.webhook_events, expected),
    )
    table = Table(title="What became of the calls", show_header=False)
    for finding in findings:
        mark = Text("✓", style="bold green") if finding.holds else Text("✗", style="bold red")
        table.add_row(mark, finding.what, finding.found)
    console.print(table)
    say(console, "")
    return all(finding.holds for finding in findings)


def check_events(calls: Sequence[Call], journals: Sequence[Sequence[dict[str, Any]]]) -> Finding:
    """Every event of every producer is in the journal once, and nothing else of theirs."""
    lost = doubled = 0
    for call, journal in zip(calls, journals, strict=True):
        stored = Counter((one["producer"], one["seq"]) for one in journal if one["producer"] in call.sent)
        sent = {(producer, seq) for producer, count in call.sent.items() for seq in range(1, count + 1)}
        lost += len(sent - stored.keys())
        doubled += stored.total() - len(stored)
    total = sum(call.total for call in calls)
    found = f"{total} sent, {lost} lost, {doubled} stored twice"
    return Finding("events in the journals", found, not lost and not doubled)


def check_histories(histories: Sequence[dict[str, Any]], expected: object) -> Finding:
    equal = sum(history["contents"] == expected for history in histories)
    found = f"{equal} of {len(histories)} equal to that of the same call on one node, without a kill"
    return Finding("memories", found, equal == len(histories))


def check_sessions(histories: Sequence[dict[str, Any]]) -> Finding:
    ended = sum(history["state"] == "ended" for history in histories)
    found = f"{ended} of {len(histories)} ended, when their callers hung up"
    return Finding("sessions", found, ended == len(histories))


def check_webhook_events(calls: Sequence[Call], webhook_events: Sequence[WebhookEvent], expected: object) -> Finding:
    """One webhook for each call, with the memory that the others have too."""
    of_calls = {call.session_id for call in calls}
    came = Counter(webhook_event.body["payload"]["agent_id"] for webhook_event in webhook_events)
    once = sum(came[session_id] == 1 for session_id in of_calls)
    right = all(
        all(webhook_event.verified.values()) and webhook_event.body["payload"]["contents"] == expected
        for webhook_event in webhook_events
        if webhook_event.body["payload"]["agent_id"] in of_calls
    )
    which = "" if right else "not "
    found = f"{once} of {len(of_calls)} came exactly once, {which}all with that memory and with right signatures"
    return Finding("webhooks", found, once == len(of_calls) and right)


async def list_nodes(store: str) -> str:
    """Return what `voicemem nodes` prints. Raises `CommandFailed`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "nodes"),
        env={**os.environ, "VOICEMEM_STORE": store},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise CommandFailed("voicemem nodes failed.")
    return printed.decode()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.nodes.demo", description="Kill a node in the middle of calls."
    )
    parser.add_argument("--fast", action="store_true", help="play the calls five times faster")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        with plain_errors():
            run(demo_nodes(console, options.fast))
    except CommandFailed as failure:
        sys.exit(f"Error: {failure.message}")


if __name__ == "__main__":
    main()
