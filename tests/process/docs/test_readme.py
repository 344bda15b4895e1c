"""The gateway of the README answers as shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.documentation import TEXTS, code_blocks, start_program
from tests.support.processes.doc_programs import run_shell
from tests.support.servers.llm_server import Script, llm_server
from tests.support.services import Serve


@pytest.mark.needs("curl")
async def test_the_gateway_of_the_readme_answers(serve: Serve, tmp_path: Path) -> None:
    """OpenAI's client, made as the README shows, gets the LLM's answer."""
    _, shown = code_blocks(TEXTS["README.md"], "python")
    created = next(text for text in code_blocks(TEXTS["README.md"], "sh") if '"call-4"' in text)
    assert "sessions/call-4" in shown
    async with llm_server(Script(["Hello."])) as llm:
        app = await serve(llm_url=llm.url)
        await run_shell(created.replace("127.0.0.1:8080", str(app.rest_address)), tmp_path)
        asking = await start_program(shown.replace("127.0.0.1:8080", str(app.rest_address)))
        printed, _ = await asyncio.wait_for(asking.communicate(), 60)
        assert printed == b"Hello.\n"
