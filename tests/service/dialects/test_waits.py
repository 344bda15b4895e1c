"""How long callers waited in recorded calls of vendors: worked out by hand, and the same wherever it is read."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.rest import LOOPBACK, RestClient, wait_until_closed
from tests.support.callers.webhooks import add
from tests.support.dialects import RECORDINGS
from tests.support.servers.webhook_receiver import webhook_receiver
from tests.support.services import Serve
from tests.support.waiting import all_connections_handled, eventually

CALLS = {str(one): one for one in RECORDINGS}
WAITS: dict[str, dict[int, tuple[float, str]]] = {
    # From `speech_stopped` or `committed` to the first audio, or over WebRTC to `output_audio_buffer.started`.
    "openai-realtime/barge_in_and_hang_up": {1: (300, "estimate"), 2: (200, "estimate")},
    "openai-realtime/azure_voice_live": {1: (1030, "estimate"), 2: (1020, "estimate"), 3: (510, "estimate")},
    "openai-realtime/webrtc": {1: (0, "marks"), 2: (0, "marks")},
    # From the final, which comes before `user-stopped-speaking`, to `bot-started-speaking`.
    "pipecat-rtvi/barge_in_and_hang_up": {1: (1000, "marks"), 2: (900, "marks")},
    # From `user-stopped-speaking`, which comes before the final.
    "pipecat-rtvi/late_transcript_and_reconnect": {1: (350, "marks")},
    # From `endTime` to `time`.
    "vapi/barge_in_and_hang_up": {1: (900, "estimate"), 2: (800, "estimate")},
    "vapi/webhook_alone": {1: (900, "estimate"), 2: (800, "estimate")},
    # From `speech-update` of the user, or the final where that is earlier, to that of the assistant.
    "vapi/speech_updates": {1: (1200, "estimate"), 2: (800, "estimate"), 3: (1200, "estimate")},
    # From `clientSpeaking` off, or the prompt where there is none, to `agentSpeaking` on.
    "conversation-relay/hang_up_while_the_agent_speaks": {1: (800, "estimate"), 2: (1000, "estimate")},
    "conversation-relay/clauses_that_were_played": {1: (600, "estimate"), 2: (700, "estimate")},
    # From `state` thinking to `state` speaking.
    "ultravox/barge_in_and_hang_up": {1: (600, "estimate"), 2: (600, "estimate")},
    # From `voiceActivity` or `activityEnd` to the first audio, and its words.
    "gemini-live/voice_activity": {1: (700, "estimate"), 2: (700, "estimate"), 3: (500, "estimate")},
    # From `user_state_changed` to the reply, whose item has no times.
    "livekit-agents/realtime_model_with_late_words": {1: (350, "estimate"), 2: (200, "estimate"), 3: (750, "estimate")},
    # From the end of the caller's last word to the agent's first.
    "retell/webhook_alone": {1: (550, "estimate"), 2: (950, "estimate")},
    # What the vendors themselves report: `e2e_latency`, `total_latency`, the sum of the webhook's, `e2e_latency_ms`.
    "livekit-agents/latencies_and_agents": {1: (1500, "reported"), 2: (1150, "estimate")},
    "deepgram-agent/barge_in_and_hang_up": {n: (1200, "reported") for n in (0, 1, 2)},
    "elevenlabs-agents/live_and_webhook_with_latencies": {1: (1275, "reported")},
    "agora-ten/latencies": {1: (640, "reported")},
}


@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_is_one_number_everywhere(serve: Serve, name: str) -> None:
    """In turns, lists, CSV, vCon and the webhook with latencies."""
    recording, waits = CALLS[name], {turn: ms for turn, (ms, _) in WAITS[name].items()}
    async with webhook_receiver() as hook:
        app = await serve(allow_addresses=LOOPBACK)
        api = RestClient(app)
        await add(api, hook.url(), 111)
        async with connect(f"ws://{app.ingest_address}/v1/ingest/{recording.dialect}?session_id=s") as socket:
            for envelope in recording.envelopes():
                await socket.send(json.dumps(envelope))
        await all_connections_handled()
        if await api.state() == "running":
            end = {"type": "session.end", "ts": recording.hang_up()}
            await api.send(end, query="?producer=caller")
        await wait_until_closed(app, "s")
        sent = (await hook.one()).payload["metrics"]
    turns = (await api.get("/v1/sessions/s/turns")).json["turns"]
    known = {one["turn_id"]: (one["reply_after_ms"], one["reply_after_by"]) for one in turns}
    assert WAITS[name] == {turn: wait for turn, wait in known.items() if wait != (None, None)}
    assert waits == {one["turn_id"]: one["reply_after_ms"] for one in sent if "reply_after_ms" in one}
    exported = (await api.get("/v1/sessions/s/export")).json["analysis"]
    latencies = [one["body"] for one in exported if one["type"] == "latency"]
    found = [json.loads(one) if isinstance(one, str) else one for one in latencies]
    assert waits == {one["turn_id"]: one["reply_after_ms"] for one in found if one["reply_after_ms"] is not None}
    rows = csv.DictReader(io.StringIO((await api.get("/v1/sessions/s/export?format=csv")).body.decode()))
    written = {int(row["turn_id"]): float(row["reply_after_ms"]) for row in rows if row["reply_after_ms"]}
    assert waits == written

    async def figures() -> Any:
        (row,) = (await api.get("/v1/sessions?fields=overview")).json["sessions"]
        return row["figures"] and (row["figures"]["reply_after_ms"], row["figures"]["slowest_ms"])

    inner = sorted(waits.values())
    await eventually((inner[(len(inner) + 1) // 2 - 1], inner[-1]), figures)
