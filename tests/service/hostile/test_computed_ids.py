"""What redaction hid cannot be computed from ids that are made of what was said."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.callers.rest import RestClient
from tests.support.dialects import RECORDINGS, Recording, reduced
from tests.support.rows import every_row
from tests.support.services import running_service
from voicemem.dialects.registry import DIALECTS
from voicemem.store.sqlite.backup import back_up, restore_backup

CODE = "482913"
VAPI = {
    "message": {
        "type": "conversation-update",
        "timestamp": 1_764_000_000_000,
        "call": {"id": "call-1"},
        "messages": [{"role": "user", "message": f"The code is {CODE}", "time": 1_764_000_000_000}],
    }
}
RETELL = {
    "event": "transcript_updated",
    "call": {
        "call_id": "call-1",
        "start_timestamp": 1_764_000_000_000,
        "transcript_object": [{"role": "user", "content": f"The code is {CODE}"}],
    },
}
ELEVENLABS = {
    "type": "post_call_transcription",
    "data": {
        "conversation_id": "call-1",
        "transcript": [{"role": "user", "message": f"The code is {CODE}", "time_in_call_secs": 1}],
    },
}
BODIES = {"vapi": VAPI, "retell": RETELL, "elevenlabs-agents": ELEVENLABS}


def texts_replaced(recording: Recording) -> list[tuple[Any, Any]]:
    """The ids of the frames of a call, each with that of the same frame in which something else is said."""
    dialect, ids = DIALECTS[recording.dialect], []
    for _, frame in reduced(recording):
        other = msgspec.json.decode(msgspec.json.encode(frame.content))
        for text in dialect.texts(other):
            if text.holder is not None and isinstance(text.holder[text.key], str):
                text.holder[text.key] = "".join("7" if char.isalnum() else char for char in text.holder[text.key])
        again = dialect.reduce(other, frame.side)
        ids.append((frame.id, None if again is None else again.id))
    return ids


@every_row("recording", [one for one in RECORDINGS if not DIALECTS[one.dialect].ids_say_texts], ids=str)
def test_ids_of_frames_do_not_depend_on_what_is_said(recording: Recording) -> None:
    """A dialect whose ids do says so, and the service keys them."""
    assert [] == [(id, other) for id, other in texts_replaced(recording) if other is not None and id != other]


async def ids_after(client: RestClient, dialect: str) -> list[str]:
    answered = await client.post(f"/v1/hooks/{dialect}", BODIES[dialect])
    assert answered.status == 200, answered.json
    journal = await client.journal("call-1")
    assert CODE not in msgspec.json.encode(journal).decode()
    return [entry["event"]["id"] for entry in journal if "id" in entry["event"]]


@pytest.mark.parametrize("dialect", BODIES)
async def test_ids_are_those_of_one_store_alone(tmp_path: Path, dialect: str) -> None:
    """Another store gives the same webhook other ids; the store itself, and its backup, find what comes again."""
    found = []
    for name in ("one.db", "other.db"):
        async with running_service(store=f"sqlite:{tmp_path / name}", redact=("otp",)) as app:
            client = RestClient(app)
            found.append(await ids_after(client, dialect))
            assert found[-1]
            assert 0 == (await client.post(f"/v1/hooks/{dialect}", BODIES[dialect])).json["stored"]
    made = [set(ids) for ids in found]
    if dialect != "elevenlabs-agents":
        assert made[0].isdisjoint(made[1])
    back_up(str(tmp_path / "one.db"), str(tmp_path / "backup.db"), False, lambda done, total: None)
    restore_backup(str(tmp_path / "backup.db"), str(tmp_path / "restored.db"), False, lambda done, total: None)
    async with running_service(store=f"sqlite:{tmp_path / 'restored.db'}", redact=("otp",)) as app:
        assert 0 == (await RestClient(app).post(f"/v1/hooks/{dialect}", BODIES[dialect])).json["stored"]
