"""The examples of a tee run offline, and show what the next request to the model got; the page's programs compile."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.documentation import TEXTS, code_blocks
from tests.support.examples import output_of
from tests.support.needs import missing, needs
from tests.support.paths import ROOT
from tests.support.processes.doc_programs import running_program, save_programs
from tests.support.processes.ports import free_ports
from tests.support.services import Serve
from tests.support.waiting import eventually

ASKED = "What is the weather in Oslo?"


async def test_the_next_response_has_what_was_heard(tmp_path: Path) -> None:
    """OpenAI Realtime: after the barge-in, the instructions have the forecast as far as it was played."""
    out = await output_of("openai_realtime", tmp_path)
    assert [line for line in out.splitlines() if line][1:] == [
        "You are on the phone.",
        f"user: {ASKED}",
        "assistant: In Oslo it rains ",
        "user: Until when?",
    ]


async def test_the_next_prompt_has_what_was_heard(tmp_path: Path) -> None:
    """ConversationRelay: after the barge-in, the LLM gets the words that Twilio has spoken."""
    out = await output_of("conversation_relay", tmp_path)
    requests = [block.split("\n") for block in out.split("The LLM got:\n")[1:]]
    assert [[line.strip() for line in request if line] for request in requests] == [
        [f"user: {ASKED!r}"],
        [f"user: {ASKED!r}", "assistant: 'In Oslo it rains'", "user: 'Until when?'"],
    ]


async def test_the_next_response_has_what_the_phone_has_played(tmp_path: Path) -> None:
    """A phone: after the barge-in, the instructions have the forecast as far as the phone had played it."""
    out = await output_of("phone", tmp_path)
    lines = [line for line in out.splitlines() if line][1:]
    assert lines[::2] == [f"user: {ASKED}", "user: Until when?"]
    assert lines[1].startswith("assistant: In Oslo it")
    assert "evening" not in lines[1]


@pytest.mark.parametrize("name", ["openai_realtime", "conversation_relay", "phone"])
def test_they_are_short(name: str) -> None:
    """An example is read in one go."""
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 60


def test_the_programs_of_the_page_are_programs() -> None:
    """They can be compiled; what they need of a vendor is not here."""
    programs = code_blocks(TEXTS["tee.md"], "python")
    assert programs
    for program in programs:
        ast.parse(program)


JAVASCRIPT = ROOT / "clients" / "javascript"


def node_folder(folder: Path) -> Path:
    """A folder in which Node finds this package and `ws`."""
    modules = folder / "node_modules"
    modules.mkdir()
    if not (JAVASCRIPT / "node_modules" / "ws").exists():
        missing("ws is not installed (make javascript-packages)")
    (modules / "voicemem").symlink_to(JAVASCRIPT)
    (modules / "ws").symlink_to(JAVASCRIPT / "node_modules" / "ws")
    return folder


@pytest.mark.needs("node")
async def test_the_relay_in_javascript_remembers(serve: Serve, tmp_path: Path) -> None:
    """The server of the page answers a caller, with the context of the call, and the memory has both."""
    app = await serve()
    (port,) = free_ports(1)
    addresses = {"127.0.0.1:8765": str(app.ingest_address), "127.0.0.1:8080": str(app.rest_address)}
    save_programs("tee.md", node_folder(tmp_path), {**addresses, "3000": str(port)})

    async def answers() -> list[str]:
        async with connect(f"ws://127.0.0.1:{port}") as twilio:
            await twilio.send(json.dumps({"type": "setup", "callSid": "CA1"}))
            await twilio.send(json.dumps({"type": "prompt", "voicePrompt": "Hello?", "last": True}))
            return [json.loads(await twilio.recv())["token"]]

    async def listens() -> bool:
        try:
            async with connect(f"ws://127.0.0.1:{port}"):
                return True
        except OSError:
            return False

    async with running_program(tmp_path, "relay.mjs"):
        await eventually(True, listens)
        (said,) = await answers()
        assert said in ("1 messages.", "0 messages.")  # none where the machine is too busy to answer in a second
        await wait_until_closed(app, "CA1")
    assert ["Hello?", said] == [one["content"] for one in await RestClient(app).contents("CA1")]


@pytest.mark.parametrize("page", ["tee.md", "livekit.md"])
def test_the_programs_in_javascript_are_programs(page: str, tmp_path: Path) -> None:
    """Node can read them; what they need of a vendor is not here."""
    programs = code_blocks(TEXTS[page], "js")
    assert programs
    for number, program in enumerate(programs):
        (tmp_path / f"{number}.mjs").write_text(program)
        subprocess.run([needs("node"), "--check", tmp_path / f"{number}.mjs"], check=True, timeout=60)
