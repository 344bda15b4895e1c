"""The webhook receivers of docs/first-webhook-receiver.md do what the page says, as printed."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import orjson
import pytest

from tests.support.processes.doc_programs import (
    END_S,
    Program,
    printed_programs,
    run_shell,
    running_program,
    save_programs,
)
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import running_process
from voicemem.webhooks.requests import Signing

PAGE = "first-webhook-receiver.md"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
node = pytest.mark.needs("node")
receivers = pytest.mark.parametrize("file", ["receiver.py", pytest.param("receiver.mjs", marks=node)])
SHOWN = printed_programs(PAGE, "text")[0]
BODY = orjson.dumps(
    {
        "noticeId": "8737d9a2",
        "eventType": 103,
        "payload": {"agent_id": "hook-call", "contents": [{"role": "user", "content": "Hello?"}]},
    }
)


def signed(body: bytes = BODY, secret: str = SECRET, age_s: int = 0) -> dict[str, str]:
    """The headers of a webhook event."""
    return headers_of(body, secret, "8737d9a2", int(time.time()) - age_s)


def headers_of(body: bytes, secret: str, notice_id: str, timestamp_s: int) -> dict[str, str]:
    signing = Signing(secret, notice_id, str(timestamp_s))
    signing.add(body)
    return signing.signed()


class Receiver:
    """A receiver of the page, running; `posts` gives what it answers."""

    def __init__(self, program: Program, url: str) -> None:
        self.program = program
        self.url = url

    async def posts(self, headers: dict[str, str], body: bytes = BODY) -> int:
        async with aiohttp.ClientSession() as http, http.post(self.url, data=body, headers=headers) as answer:
            return answer.status


@asynccontextmanager
async def receiving(folder: Path, file: str, **changes: str) -> AsyncIterator[Receiver]:
    """One of the page's receivers, on a free port."""
    (port,) = free_ports(1)
    ports = {'("127.0.0.1", 9000)': f'("127.0.0.1", {port})', "(9000,": f"({port},"}
    save_programs(PAGE, folder, {**ports, **changes})
    async with running_program(folder, file) as program:
        receiver = Receiver(program, f"http://127.0.0.1:{port}/")
        for _ in range(int(END_S / 0.05)):
            try:
                await receiver.posts({})
                break
            except aiohttp.ClientConnectionError:
                assert not program.ended, program.errors
                await asyncio.sleep(0.05)
        yield receiver


@receivers
async def test_a_receiver_prints_the_call_that_the_page_makes(tmp_path: Path, file: str) -> None:
    """The service as the page starts it, the call as the page makes it: the receiver prints what the page shows."""
    serving, calling = printed_programs(PAGE, "sh")
    async with receiving(tmp_path / "receiver", file) as receiver:
        options = shlex.split(serving.replace("http://127.0.0.1:9000/", receiver.url))[2:]
        async with running_process(tmp_path / "calls.db", *options) as process:
            await run_shell(calling.replace("http://127.0.0.1:8080", process.rest), tmp_path)
            await receiver.program.says(SHOWN)
    assert receiver.program.out == SHOWN
    assert receiver.program.errors == ""


@receivers
async def test_a_receiver_refuses_what_is_not_signed_rightly(tmp_path: Path, file: str) -> None:
    """Without signatures, with one wrong, of another body, another secret, or too old: 401, and nothing is kept."""
    async with receiving(tmp_path, file) as receiver:
        assert await receiver.posts({}) == 401
        for name in ("Agora-Signature", "Agora-Signature-V2", "webhook-signature"):
            assert await receiver.posts({**signed(), name: "0" * len(signed()[name])}) == 401, name
        assert await receiver.posts(signed(), BODY + b" ") == 401
        assert await receiver.posts(signed(secret="whsec_" + "A" * 32)) == 401
        assert await receiver.posts(signed(age_s=400)) == 401
        assert await receiver.posts(signed()) == 200
        await receiver.program.says(SHOWN)
    assert receiver.program.out == SHOWN


@receivers
async def test_a_receiver_takes_a_secret_without_padding(tmp_path: Path, file: str) -> None:
    """The base64 of a `whsec_` secret may lack its padding."""
    secret = "whsec_" + "QUJD" * 8 + "QQ"
    async with receiving(tmp_path, file, **{SECRET: secret}) as receiver:
        assert await receiver.posts(signed(secret=secret)) == 200
        assert await receiver.posts(signed()) == 401


@receivers
async def test_a_receiver_takes_one_of_several_signatures(tmp_path: Path, file: str) -> None:
    """While a secret is changed, a header has a signature of the old and one of the new."""
    new, old = signed(), signed(secret="whsec_" + "A" * 32)
    both = {name: f"{old[name]} {new[name]}" for name in new if "ignature" in name}
    async with receiving(tmp_path, file) as receiver:
        assert await receiver.posts({**new, **both}) == 200


@receivers
async def test_a_receiver_works_once_on_a_repeat(tmp_path: Path, file: str) -> None:
    """A webhook event that comes again, also after a restart, gets 200 and is not worked on again."""
    async with receiving(tmp_path, file) as receiver:
        for _ in range(3):
            assert await receiver.posts(signed()) == 200
        await receiver.program.says(SHOWN)
    async with receiving(tmp_path, file) as again:
        assert await again.posts(signed()) == 200
        second = BODY.replace(b"8737d9a2", b"next").replace(b"hook-call", b"next-call")
        assert await again.posts(signed(second), second) == 200
        await again.program.says("Hello?")
    assert receiver.program.out == SHOWN
    assert again.program.out == SHOWN.replace("hook-call", "next-call")


@receivers
async def test_a_receiver_takes_a_test(tmp_path: Path, file: str) -> None:
    """A test says nothing of a call; what comes after it is worked on."""
    async with receiving(tmp_path, file) as receiver:
        test = orjson.dumps(
            {"noticeId": "t", "eventType": 103, "payload": {"channelName": "test_webhook", "uid": 12121212}}
        )
        assert await receiver.posts(signed(test), test) == 200
        after = BODY.replace(b"8737d9a2", b"next")
        assert await receiver.posts(headers_of(after, SECRET, "next", int(time.time())), after) == 200
        await receiver.program.says(SHOWN)
    assert receiver.program.errors == ""


DIES = {
    "receiver.py": {'call = event["payload"]': "os._exit(1)"},
    "receiver.mjs": {"const { agent_id: session, contents } = event.payload;": "process.exit(1);"},
}


@receivers
async def test_a_receiver_that_died_at_its_work_does_it_at_the_next_start(tmp_path: Path, file: str) -> None:
    """What was kept and not worked on is not forgotten."""
    async with receiving(tmp_path, file, **DIES[file]) as dying:
        with suppress(aiohttp.ClientConnectionError):  # it may be gone before its answer is
            await dying.posts(signed())
        assert await dying.program.end() == 1
    async with receiving(tmp_path, file) as receiver:
        await receiver.program.says(SHOWN)
    assert receiver.program.out == SHOWN
