"""`replay`, `history` and `receive`, run as commands against a running service."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.support.callers.rest import RestClient
from tests.support.paths import FIXTURES, TRUTH
from tests.support.services import Serve
from voicemem.app import App

SEED = FIXTURES / "seed_call.jsonl"


async def voicemem(*arguments: str) -> tuple[int, str, str]:
    """Run a command to its end: exit code, output, error output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "voicemem", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def ingest(app: App) -> str:
    return f"ws://{app.ingest_address}/v1/ingest"


async def test_a_replayed_call_can_be_read(serve: Serve) -> None:
    """`replay` sends a recorded call, `history --json` prints what it folds to."""
    app = await serve()
    code, output, _ = await voicemem("replay", str(SEED), "--session", "seed", "--url", ingest(app))
    assert (code, "0 refused" in output) == (0, True)
    code, output, _ = await voicemem("history", "seed", "--json", "--url", f"http://{app.rest_address}")
    expected = json.loads((FIXTURES / "seed_call.contents.json").read_text())["contents"]
    assert (0, expected) == (code, json.loads(output)["contents"])


async def test_the_call_of_the_demo_is_replayed_without_a_file(serve: Serve) -> None:
    """So that there is a call to look at wherever the package is installed; a true call needs its file."""
    app = await serve()
    code, output, _ = await voicemem("replay", "--session", "first", "--url", ingest(app))
    assert (code, "36 events sent, 0 refused" in output) == (0, True)
    code, _, errors = await voicemem("replay", "--truth", "--url", ingest(app))
    assert (code, "needs the FILE" in errors) == (2, True)


async def test_a_second_replay_sends_only_what_is_missing(serve: Serve) -> None:
    """Replaying a file into the same session again is harmless, and says so."""
    app = await serve()
    await voicemem("replay", str(SEED), "--session", "seed", "--url", ingest(app))
    code, output, _ = await voicemem("replay", str(SEED), "--session", "seed", "--url", ingest(app))
    assert (code, "0 events sent" in output and "were there already" in output) == (0, True)


async def test_a_true_call_can_be_replayed(serve: Serve) -> None:
    """`replay --truth` sends what an engine would have sent, and prints what was heard: the memory has that."""
    app = await serve()
    file = str(TRUTH / "calls" / "taxi.json")
    arguments = ("--evidence", "words", "--pace", "50", "--session", "taxi", "--url", ingest(app))
    code, output, _ = await voicemem("replay", "--truth", file, *arguments)
    assert (code, "0 refused" in output) == (0, True)
    _, history, _ = await voicemem("history", "taxi", "--json", "--url", f"http://{app.rest_address}")
    cut = [one["content"] for one in json.loads(history)["contents"] if one["metadata"].get("interrupted")]
    assert [line.split(": ", 1)[1].split(" was heard of ")[0] for line in output.splitlines()[1:]] == [*map(repr, cut)]
    assert len(cut) == 3


async def test_a_true_call_is_replayed_in_real_time(serve: Serve) -> None:
    """Unless another pace is given: its first seconds take their seconds."""
    app = await serve()
    file = str(TRUTH / "calls" / "taxi.json")
    command = (sys.executable, "-m", "voicemem", "replay", "--truth", file, "--session", "slow", "--url", ingest(app))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await asyncio.sleep(3)
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()


async def test_what_was_played_is_kept_beside_the_call(serve: Serve) -> None:
    """The session's data has it word by word, in the times of the call's events, which are those of now."""
    app = await serve()
    rest = f"http://{app.rest_address}"
    file = str(TRUTH / "calls" / "taxi.json")
    arguments = ("replay", "--truth", file, "--pace", "50", "--url", ingest(app), "--rest-url", rest)
    code, output, errors = await voicemem(*arguments)
    session = output.split("session ")[1].split(":")[0]
    assert (code, f"watch it: {rest}/ui/calls/{session}/played" in errors) == (0, True)
    api = RestClient(app)
    played = (await api.get(f"/v1/sessions/{session}/data")).json["played"]
    assert (played["call"], played["evidence"]) == ("taxi", "words")
    history = (await api.get(f"/v1/sessions/{session}/history")).json
    spoken = [message for message in history["contents"] if message["role"] == "assistant"]
    assert [message["content"] for message in spoken] == [reply["heard"] for reply in played["replies"]]
    cuts = [message["metadata"].get("interrupt_timestamp") for message in spoken]
    assert cuts == [reply["cut_ms"] for reply in played["replies"]]
    assert history["started_at"] - 3_600_000 < played["began_ms"] < played["ended_ms"] < history["ended_at"] + 3_600_000
    code, output, _ = await voicemem(*arguments, "--session", session)
    assert (code, "0 events sent" in output) == (0, True)
    assert played == (await api.get(f"/v1/sessions/{session}/data")).json["played"]


async def test_what_is_not_a_true_call_is_one_sentence() -> None:
    """Nor is evidence, where nothing is derived."""
    code, _, errors = await voicemem("replay", "--truth", str(SEED))
    assert (code, "is not a true call" in errors, "Traceback" in errors) == (1, True, False)
    code, _, errors = await voicemem("replay", str(SEED), "--evidence", "words")
    assert (code, "add --truth" in errors) == (2, True)


async def test_history_without_json_is_for_reading(serve: Serve) -> None:
    """`history` prints a line for each message."""
    app = await serve()
    await voicemem("replay", str(SEED), "--session", "seed", "--url", ingest(app))
    code, output, _ = await voicemem("history", "seed", "--url", f"http://{app.rest_address}")
    assert (code, "~~win an award?" in output) == (0, True)


async def test_history_asks_for_the_session_that_it_was_given(serve: Serve) -> None:
    """An id with a slash or a question mark is not taken for another path."""
    app = await serve()
    await voicemem("replay", str(SEED), "--session", "seed", "--url", ingest(app))
    for session in ("seed/history?x=", "../sessions/seed"):
        code, output, errors = await voicemem("history", session, "--url", f"http://{app.rest_address}")
        assert (code, output, errors.count("\n")) == (1, "", 1), errors


@pytest.mark.parametrize("action", [signal.SIG_DFL, signal.SIG_IGN])
async def test_receive_ends_at_ctrl_c(action: signal.Handlers) -> None:
    """Quietly, also where it was started in the background."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "receive", "--listen", "127.0.0.1:0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, action),
    )
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), 20)).startswith(b"listening on http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, errors.decode()) == (0, "")


async def test_an_unknown_session_is_one_sentence(serve: Serve) -> None:
    """An error ends the command with exit code 1 and one sentence."""
    app = await serve()
    code, output, errors = await voicemem("history", "nobody", "--url", f"http://{app.rest_address}")
    assert (code, output, errors) == (1, "", "voicemem: There is no such session. (unknown_session)\n")


async def test_a_server_that_is_not_there_is_one_sentence() -> None:
    """A refused connection is no traceback."""
    code, _, errors = await voicemem("replay", str(SEED), "--url", "ws://127.0.0.1:1/v1/ingest")
    assert code == 1
    assert errors.count("ws://127.0.0.1:1/v1/ingest: connection refused.") == 1
    assert [word for word in ("Traceback", "acknowledged") if word in errors] == []


async def test_history_of_a_server_that_is_not_there_is_one_sentence() -> None:
    """It says where there was no connection, and nothing of TLS."""
    code, _, errors = await voicemem("history", "nobody", "--url", "http://127.0.0.1:1")
    assert (code, errors.count("\n"), "ssl" in errors) == (1, 1, False)
    assert "http://127.0.0.1:1/v1/sessions/nobody/history: connection refused." in errors


async def test_ports_that_are_mixed_up_are_said(serve: Serve) -> None:
    """`replay` to the REST port, `history` from the ingest's."""
    app = await serve()
    code, _, errors = await voicemem("replay", str(SEED), "--url", f"ws://{app.rest_address}/v1/ingest")
    assert (code, "is not the ingest" in errors, "Traceback" in errors) == (1, True, False)
    code, _, errors = await voicemem("history", "seed", "--url", f"http://{app.ingest_address}")
    assert (code, "ingest" in errors or "REST" in errors, "Traceback" in errors) == (1, True, False)


async def test_a_wrong_key_is_one_sentence(serve: Serve) -> None:
    """Whoever is not let in is told so."""
    app = await serve(admin_key="0123456789abcdef")
    code, _, errors = await voicemem("replay", str(SEED), "--url", ingest(app), "--key", "wrong")
    assert (code, "refused the connection" in errors, "Traceback" in errors) == (1, True, False)


@pytest.mark.parametrize("command", [("history", "s"), ("tail", "s")], ids=lambda command: command[0])
@pytest.mark.parametrize(("url", "said"), [("127.0.0.1:8080", "write http://HOST:PORT"), ("ws://x:1", "an ingest")])
async def test_an_address_of_another_kind_is_told(command: tuple[str, ...], url: str, said: str) -> None:
    """Without a scheme, or with the ingest's, nothing is called, and the right form is shown."""
    code, _, errors = await voicemem(*command, "--url", url)
    assert (code, said in errors, "Traceback" in errors) == (2, True, False)


async def test_a_file_that_is_no_recording_is_named_with_its_line(tmp_path: Path) -> None:
    """`replay` says which file it is, and where it is wrong."""
    file = tmp_path / "notes.md"
    file.write_text('{"type":"asr","turn_id":1,"text":"Hello?"}\n\n# Notes\n')
    code, _, errors = await voicemem("replay", str(file))
    assert (code, f"{file} is not a recorded call: error in line 3." in errors) == (1, True)
    for text in ('{\n  "contents": []\n}', "[5]", "no JSON"):
        file.write_text(text)
        code, _, errors = await voicemem("replay", str(file), "--session", "s")
        assert (code, f"{file} is not a recorded call" in errors, "Traceback" in errors) == (1, True, False), text


async def test_open_needs_messages() -> None:
    """`tail --open` alone would show nothing else than `tail`."""
    code, _, errors = await voicemem("tail", "s", "--open")
    assert (code, "--messages" in errors) == (2, True)


async def test_receive_takes_no_secret_that_cannot_verify() -> None:
    """A `whsec_` secret that is no base64 is told at once, and not shown."""
    code, _, errors = await voicemem("receive", "--listen", "127.0.0.1:0", "--secret", "whsec_notbase64")
    assert (code, "must be base64" in errors, "notbase64" in errors) == (1, True, False)


async def test_receive_prints_verified_webhooks(serve: Serve) -> None:
    """`receive` verifies the three signatures of a real webhook and prints its body."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "receive", "--listen", "127.0.0.1:0", "--secret", secret),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().split()[-1]
        app = await serve(webhook_url=url, webhook_secret=secret)
        await voicemem("replay", str(SEED), "--url", ingest(app))
        lines = [(await asyncio.wait_for(process.stdout.readline(), 20)).decode() for _ in range(4)]
        assert [line.split()[0] for line in lines[:3]] == ["verified"] * 3
    finally:
        process.terminate()
        await process.communicate()
