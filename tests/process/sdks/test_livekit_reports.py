"""A real LiveKit agent whose only change is `LIVEKIT_OBSERVABILITY_URL`: its call is remembered from its upload."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.support.callers.rest import RestClient, make_key, wait_until_closed
from tests.support.needs import needs_module
from tests.support.paths import ROOT
from tests.support.services import Serve
from voicemem.app import App

needs_module("livekit.agents", "livekit")
SECRET = "livekit-secret-of-the-tests-0123456789"
AGENT = """
import asyncio

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, JobExecutorType, function_tool

from bench.harness.livekit.plugins import ScriptedLlm

server = AgentServer(job_executor_type=JobExecutorType.THREAD, num_idle_processes=0)
over = asyncio.Event()
loop = asyncio.new_event_loop()


@server.rtc_session()
async def entrypoint(job: JobContext) -> None:
    session = AgentSession(llm=ScriptedLlm(lambda context: ["It is twelve o'clock."]))
    await session.start(Agent(instructions="The word is xylophone."), record=True)
    await session.run(user_input="What time is it?")
    await session.aclose()
    job.shutdown()
    loop.call_soon_threadsafe(over.set)


@server.once("worker_started")
def begin() -> None:
    asyncio.run_coroutine_threadsafe(server.simulate_job("call-_+15551234567_x", fake_job=True), loop)


async def main() -> None:
    running = asyncio.ensure_future(server.run(devmode=True, unregistered=True))
    await over.wait()
    await server.drain()
    await server.aclose()
    await running


loop.run_until_complete(main())
"""


async def run_agent(folder: Path, url: str, secret: str = SECRET) -> str:
    """Run the agent until its call is over; returns what it has logged."""
    program = folder / "agent.py"
    program.write_text(AGENT, "utf-8")
    environment = os.environ | {
        "LIVEKIT_OBSERVABILITY_URL": url,
        "LIVEKIT_URL": "ws://127.0.0.1:9",
        "LIVEKIT_API_KEY": "APIkey",
        "LIVEKIT_API_SECRET": secret,
        "PYTHONPATH": str(ROOT),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", str(program)),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 90)
    return output.decode()


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service that knows LiveKit's API secret."""
    return await serve(hook_secrets=(f"livekit-agents={SECRET}",))


async def test_one_variable_is_enough(app: App, tmp_path: Path) -> None:
    """The history is in the memory once the call is over, without instructions and the number in the room's name."""
    admin = RestClient(app, await make_key(app, "admin"))
    log = await run_agent(tmp_path, f"http://{app.rest_address}/v1/hooks/livekit-agents/default")
    (session,) = (await admin.get("/v1/sessions")).json["sessions"]
    id = session["session_id"]
    assert id.startswith("mock-job-"), log
    await wait_until_closed(app, id)
    contents = await admin.contents(id)
    assert [(one["role"], one["content"]) for one in contents] == [
        ("user", "What time is it?"),
        ("assistant", "It is twelve o'clock."),
    ]
    journal = str(await admin.journal(id))
    assert "xylophone" not in journal
    assert "15551234567" not in journal


async def test_another_secret_is_refused(app: App, tmp_path: Path) -> None:
    """An agent of another LiveKit project leaves nothing, and its call goes on."""
    admin = RestClient(app, await make_key(app, "admin"))
    await run_agent(tmp_path, f"http://{app.rest_address}/v1/hooks/livekit-agents/default", SECRET[::-1])
    assert (await admin.get("/v1/sessions")).json["sessions"] == []
