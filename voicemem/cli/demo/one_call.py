"""`voicemem demo`: a recorded call through the real service, on real sockets and a real file, shown live.

The same caller calls again: the demo ends with the part of the first call that the LLM then gets.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from voicemem.app import App, running
from voicemem.cli.common import Server, line_shown, lines_shown
from voicemem.client.replay import Replay, load_recording
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.config.service import Address, Settings
from voicemem.protocol.types import JsonObject
from voicemem.webhooks.endpoints import new_webhook_secret
from voicemem.webhooks.requests import WebhookEvent, WebhookReceiver

SESSION, CUSTOM, AGAIN = "demo", "demo-custom", "demo-again"
HISTORY = session_path(SESSION, "/history")
CALLER = {"user_id": "ann", "memory": {"memories": {}}}
ASKED = "What did the knight do?"
FAST = 12.0
"""How many times faster `--fast` plays the call."""
ANY_PORT = Address("127.0.0.1", 0)
WEBHOOK_TIMEOUT_S = 15.0
CUSTOM_LLM = {"vendor": "custom", "model": "my-model"}


async def demo(console: Console, fast: bool) -> None:
    """Start the service, play a recorded call, and show the memory, both formats, the webhook and the next call."""
    events: asyncio.Queue[WebhookEvent] = asyncio.Queue()
    secret = new_webhook_secret()
    receiver = WebhookReceiver(secret, events.put_nowait)
    webhook = await receiver.start(ANY_PORT)
    try:
        with tempfile.TemporaryDirectory(prefix="voicemem-demo-") as folder:
            settings = Settings(
                store=f"sqlite:{folder}/calls.db",
                rest=ANY_PORT,
                ingest=ANY_PORT,
                webhook_url=f"http://{webhook}/voicemem",
                webhook_secret=secret,
            )
            async with running(settings) as app, Server(f"http://{app.rest_address}", None).client() as rest:
                await rest.send("POST", "/v1/sessions", {"session_id": SESSION, **CALLER})
                await play(console, app, rest, FAST if fast else 1.0)
                await show_formats(console, rest)
                event = await asyncio.wait_for(events.get(), WEBHOOK_TIMEOUT_S)
                show_webhook_event(console, event, await call_again(rest))
    finally:
        await receiver.stop()
    called = sys.argv[0]  # a path where a shell would not find the command by its name
    name = called if Path(called).name == "voicemem" and shutil.which("voicemem") is None else "voicemem"
    console.print(
        f"The demo is over. Next: [bold]{name} serve[/] runs the service, and [bold]{name} ui[/] opens its page,"
        f" http://{Settings().rest}/ui/, where one looks at calls. [bold]{name} quickstart[/] writes settings.",
        highlight=False,
    )


async def play(console: Console, app: App, rest: RestClient, pace: float) -> None:
    """Stream the call, and read the memory over REST after each acknowledged event."""
    events = recorded_call()
    changed = asyncio.Event()
    replay = Replay(events, lambda event: changed.set())
    sending = asyncio.create_task(replay.run(f"ws://{app.ingest_address}/v1/ingest", SESSION, pace=pace))
    sending.add_done_callback(lambda _: changed.set())

    def show(contents: list[dict[str, Any]]) -> Panel:
        return render_call(contents, replay.acked, len(events), console.is_terminal)

    with Live(console=console, auto_refresh=False, transient=False) as live:
        while not sending.done():
            await changed.wait()
            changed.clear()
            contents = (await rest.get(HISTORY, {"open": True}))["contents"] if replay.acked else []
            live.update(show(contents), refresh=console.is_terminal)
        contents = (await rest.get(HISTORY))["contents"]
        live.update(show(contents), refresh=True)
    if not console.is_terminal:
        console.line()
    await sending


def recorded_call() -> list[JsonObject]:
    with resources.as_file(resources.files("voicemem.cli.demo") / "demo_call.jsonl") as path:
        return load_recording(Path(path))


def render_call(contents: list[dict[str, Any]], acked: int, total: int, styled: bool) -> Panel:
    """Return the call as it was heard, with the words that an interruption cut off struck out."""
    lines: list[RenderableType] = [render_message(message, styled) for message in contents] or [Text("…", style="dim")]
    return Panel(
        Group(*lines),
        title="A call, as it was really heard",
        subtitle=f"{acked} of {total} events on disk and acknowledged",
    )


def render_message(message: dict[str, Any], styled: bool) -> Text:
    """Return one message; without styles it is one line, in which ~~ marks words that were never heard."""
    shown = lines_shown if styled else line_shown
    name, colour = ("caller", "cyan") if message["role"] == "user" else ("agent ", "green")
    text = Text.assemble((f"turn {message['turn_id']} ", "dim"), (f"{name}  ", f"bold {colour}"))
    content, metadata = shown(message["content"]), message.get("metadata", {})
    text.append(content)
    if metadata.get("interrupted"):
        unheard = shown(metadata.get("original", "").removeprefix(message["content"]))
        text.append(unheard if styled else f"~~{unheard}~~", style="strike dim red")
        where = "at about this point (an estimate)" if metadata.get("heard") == "estimated" else "here"
        text.append(f"  ← interrupted {where}; the rest was not heard", style="dim italic")
    elif metadata.get("open"):
        text.stylize("italic" if metadata.get("partial") else "", len(text) - len(content))
        heard = metadata.get("heard_so_far")
        if heard is not None and message["content"].startswith(heard):
            text.stylize("dim", len(text) - len(content) + len(shown(heard)))
        text.append(" …", style="dim")
    return text


async def show_formats(console: Console, rest: RestClient) -> None:
    """Show how the next LLM request contains the reply that was cut, for a standard LLM and for a custom one."""
    await rest.send("POST", "/v1/sessions", {"session_id": CUSTOM, "llm": CUSTOM_LLM})
    events = [one for one in recorded_call() if one["type"] != "session.end"]
    await rest.send("POST", session_path(CUSTOM, "/events"), events)
    standard, custom = [await rest.get(session_path(one, "/context")) for one in (SESSION, CUSTOM)]
    cut = next(index for index, one in enumerate(custom["messages"]) if one.get("metadata", {}).get("interrupted"))
    shown = [json.dumps(body["messages"][cut], ensure_ascii=False) for body in (standard, custom)]
    title = "What the next LLM request has of the reply that was cut: for a standard LLM, and with all fields"
    console.print(Panel(Group(*map(Text, shown)), title=title))


def show_webhook_event(console: Console, event: WebhookEvent, known: Text) -> None:
    """Show the signatures of the webhook, and what is known in the caller's next call."""
    payload = event.body["payload"]
    what = f"The webhook: eventType {event.body['eventType']}, {len(payload['contents'])} messages"
    marks = Text()
    for name, valid in event.verified.items():
        marks.append_text(
            Text.assemble(("✓ verified", "bold green") if valid else ("✗ wrong", "bold red"), f" {name}  ")
        )
    console.print(Panel(Group(marks, known), title=f"{what}. And the next call of the same caller"))


async def call_again(rest: RestClient) -> Text:
    """Return the caller's next call on one line: the question, and what the LLM gets of the first call."""
    await rest.send("POST", "/v1/sessions", {"session_id": AGAIN, **CALLER})
    question = {"type": "asr", "turn_id": 1, "text": ASKED, "final": True}
    await rest.send("POST", session_path(AGAIN, "/events"), [question])
    lines = (await rest.get(session_path(AGAIN, "/context")))["messages"][0]["content"].splitlines()
    known = next((line for line in lines if "knight" in line), "")
    return Text.assemble(
        ("caller  ", "bold cyan"), ASKED, ("  ← known: ", "dim italic"), known[2:], no_wrap=True, overflow="ellipsis"
    )
