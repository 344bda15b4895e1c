"""The gateway of the README answers as shown."""

from __future__ import annotations

import asyncio

from tests.support.callers.rest import RestClient
from tests.support.documentation import TEXTS, code_blocks, start_program
from tests.support.servers.llm_server import Script, llm_server
from tests.support.services import Serve


async def test_the_gateway_of_the_readme_answers(serve: Serve) -> None:
    """OpenAI's client, made as the README shows, gets the LLM's answer."""
    _, shown = code_blocks(TEXTS["README.md"], "python")
    async with llm_server(Script(["Hello."])) as llm:
        app = await serve(llm_url=llm.url)
        await RestClient(app).create("call-2")
        ask = 'print(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi."}]).choices)'
        asking = await start_program(shown.replace("127.0.0.1:8080", str(app.rest_address)) + ask)
        printed, _ = await asyncio.wait_for(asking.communicate(), 60)
        assert b"content='Hello.'" in printed
