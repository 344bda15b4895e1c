"""The programs of docs/gateway.md do what the page says, as printed."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp

from tests.support.callers.gateway import role_and_text
from tests.support.callers.rest import RestClient
from tests.support.paths import ROOT
from tests.support.processes.doc_programs import END_S, printed_programs, running_program
from tests.support.processes.ports import free_ports
from tests.support.servers.llm_server import Script, llm_server
from tests.support.services import Serve

GATEWAY_PAGE = "gateway.md"
ASK = printed_programs(GATEWAY_PAGE, "python")[0]
SEEN = printed_programs(GATEWAY_PAGE, "text")[1]


async def test_the_custom_llm_shows_what_arrives(serve: Serve, tmp_path: Path) -> None:
    """Times, speakers, and what was not heard, as the page prints them; the engine hears the rest of the joke."""
    (port,) = free_ports(1)
    app = await serve(llm_url=f"http://127.0.0.1:{port}/v1")
    changes = {
        "port=9001": f"port={port}",
        "ws://127.0.0.1:8765": f"ws://{app.ingest_address}",
        "http://127.0.0.1:8080": f"http://{app.rest_address}",
    }
    for program in ("custom_llm.py", "gateway_engine.py"):
        text = (ROOT / "examples" / program).read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        (tmp_path / program).write_text(text)
    async with running_program(tmp_path, "custom_llm.py") as llm:
        await listening(port)
        async with running_program(tmp_path, "gateway_engine.py") as engine:
            assert 0 == await engine.end(), engine.errors
        await llm.says("Sorry, go on.\n")
        seen = llm.out
        async with running_program(tmp_path, "gateway_engine.py") as again:
            assert 1 == await again.end()
        assert again.errors.startswith("The session gateway-call has ended")
        await RestClient(app).create("plain")
        said = {"model": "-", "stream": True, "messages": [{"role": "user", "content": "Hello."}]}
        assert 200 == (await RestClient(app).post("/v1/sessions/plain/chat/completions", said)).status
        whole = {"messages": [{"role": "user", "content": "And whole?"}]}
        answer = (await RestClient(app).post("/v1/sessions/plain/chat/completions", whole)).json
        assert "Why did the scarecrow win an award?" == answer["choices"][0]["message"]["content"]
    assert SEEN == re.sub(r"\d+ s ago", "0 s ago", seen)  # a busy machine takes a second or two
    assert (
        "I was saying: \nscarecrow win an award?\n" == engine.out[-len("I was saying: \nscarecrow win an award?\n") :]
    )
    contents = await RestClient(app).contents("gateway-call")
    assert ("assistant", "I was saying: scarecrow win an award?") == role_and_text(contents)[-1]


async def listening(port: int) -> None:
    """Wait for a server that was just started."""
    async with aiohttp.ClientSession() as http:
        for _ in range(int(END_S / 0.05)):
            try:
                async with http.get(f"http://127.0.0.1:{port}/"):
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


async def test_the_first_use(serve: Serve, tmp_path: Path) -> None:
    """Two questions of one message each; the second one's LLM gets three."""
    async with llm_server(Script(["Nice to meet you."]), Script(["Ann."])) as llm:
        app = await serve(llm_url=llm.url)
        await RestClient(app).create("chat-call")
        (tmp_path / "ask.py").write_text(ASK.replace("http://127.0.0.1:8080", f"http://{app.rest_address}"))
        async with running_program(tmp_path, "ask.py") as program:
            assert 0 == await program.end(), program.errors
        assert "Nice to meet you.\nAnn.\n" == program.out
        assert [1, 3] == [len(request.body["messages"]) for request in llm.requests]
