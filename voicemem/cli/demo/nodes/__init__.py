"""`voicemem demo --nodes`: calls over two nodes on a real PostgreSQL, of which one is killed in the middle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel

from voicemem.cli.common import CommandFailed
from voicemem.cli.demo.nodes.calls import NEXT_CALL_S, PRODUCERS, Call
from voicemem.cli.demo.nodes.servers import NodeProcess
from voicemem.cli.demo.nodes.stage import Stage, staged
from voicemem.cli.demo.nodes.verdict import find, list_nodes, render_findings
from voicemem.cli.demo.one_call import get, recorded_call, render_call
from voicemem.client.replay import Replay

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
        introduce(console, stage)
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
        findings = await find(stage.http, calls, UNDISTURBED, stage.notices)
        console.print(render_findings(findings))
        say(console, "")
    if not all(finding.holds for finding in findings):
        raise CommandFailed("Not everything came through, as marked above. Please report this.")
    console.print(NEXT, soft_wrap=True, highlight=False)


def say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def introduce(console: Console, stage: Stage) -> None:
    say(console, f"[bold]Two nodes[/] of voicemem run for this demo, on one PostgreSQL {stage.postgresql_version}:")
    for node in stage.nodes:
        say(console, f"  node {node.name}   REST at http://{node.rest}, process {node.process.pid}")
    say(console, f"  a proxy  in front of both: events at {stage.url}, REST at http://{stage.rest.address}\n")


async def begin_calls(console: Console, stage: Stage) -> list[Call]:
    """Open the calls; the proxy spreads their producers over the nodes."""
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
    """The first call as it stands now."""
    contents: list[dict[str, Any]] = (await get(stage.http, "history?open=true", calls[0].session_id))["contents"]
    panel = render_call(contents, sum(call.acked for call in calls), sum(call.total for call in calls), styled)
    panel.title = f"The first of the {len(calls)} calls, as it was really heard"
    panel.subtitle = f"all calls together: {panel.subtitle}"
    return panel


async def kill(console: Console, node: NodeProcess, calls: list[Call], show: Callable[[], Awaitable[None]]) -> None:
    """Kill a node, and say how its producers fare. Raises `CommandFailed` when they do not come back."""
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
        f" {time.monotonic() - killed:.1f} s. They send again what was not acknowledged, and the calls go on.\n",
    )


async def wait_until(holds: Callable[[], bool], deadline: float, show: Callable[[], Awaitable[None]]) -> None:
    """Show how it goes on until something holds. Raises `CommandFailed` when it does not in time."""
    while not holds():
        if time.monotonic() > deadline:
            raise CommandFailed("The calls did not go on in time. Please report this.")
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
