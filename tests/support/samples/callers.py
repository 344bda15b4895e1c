"""Frames of every dialect that say who calls, and with which numbers."""

from __future__ import annotations

import json
from typing import NamedTuple

from voicemem.protocol.types import JsonObject

CALLER, AGENT = "+15551234567", "+498912345678"
SPELLINGS = (CALLER, CALLER[1:], "(555) 123-4567", "555 123 4567", AGENT, "089 12345678")
"""Ways to write the numbers, of which none may be kept."""
USER = "ann"
SPELLED = (
    *("001 555 123 4567", "+1 (0)555 1234567", "5 5 5 1 2 3 4 5 6 7", "555_123_4567", "555 – 1234567", "555·123·4567"),
    *(
        "(555) 123-4567 10:30",
        "call 555/123/4567x9",
        "%2B15551234567",
        "５５５１２３４５６７",
        "٥٥٥١٢٣٤٥٦٧",
        5551234567.0,
    ),
)
ARGUMENTS = {"to": "(555) 123-4567", "from": AGENT, "nested": [{"phone": 15551234567}], "spelled": SPELLED}


class Sample(NamedTuple):
    """What a vendor sends of one call: as webhooks (`hooks`), or on its connection."""

    dialect: str
    session_id: str
    frames: list[JsonObject]
    hooks: bool = False
    names_user: bool = True
    names_number: bool = True


VAPI_CALL = {
    "id": "call-vapi",
    "customer": {"number": CALLER, "externalId": USER, "name": "Ann"},
    "phoneNumber": {"number": AGENT},
    "assistantOverrides": {"variableValues": {"customer_number": CALLER, "deep": [{"mobile": "555 123 4567"}]}},
}
ELEVENLABS = {
    "agent_id": "a",
    "conversation_id": "conv_9",
    "status": "done",
    "user_id": USER,
    "transcript": [
        {"role": "agent", "message": "Hello.", "time_in_call_secs": 0},
        {
            "role": "agent",
            "message": None,
            "time_in_call_secs": 2,
            "tool_calls": [
                {
                    "request_id": "r1",
                    "tool_name": "call_back",
                    "params_as_json": json.dumps({"phone": "+1 555 123-4567", "from": "089 12345678", "all": SPELLED}),
                }
            ],
            "tool_results": [{"request_id": "r1", "tool_name": "call_back", "result_value": f"calling {CALLER}"}],
        },
        {"role": "user", "message": "I am allergic to walnuts.", "time_in_call_secs": 3},
    ],
    "metadata": {
        "start_time_unix_secs": 1790000000,
        "call_duration_secs": 9,
        "phone_call": {"direction": "inbound", "external_number": CALLER, "agent_number": AGENT, "call_sid": "CA1"},
    },
    "conversation_initiation_client_data": {
        "user_id": USER,
        "dynamic_variables": {"system__caller_id": CALLER, "system__called_number": AGENT},
    },
}
RETELL_CALL = {
    "call_id": "call-retell",
    "direction": "inbound",
    "from_number": CALLER,
    "to_number": AGENT,
    "metadata": {"user_id": USER, "callback": CALLER},
    "retell_llm_dynamic_variables": {"phone": "555-123-4567"},
    "start_timestamp": 1790000000000,
    "end_timestamp": 1790000009000,
    "disconnection_reason": "user_hangup",
    "transcript_with_tool_calls": [
        {"role": "agent", "content": "Hello.", "words": [{"word": "Hello.", "start": 0.1, "end": 0.6}]},
        {"role": "user", "content": "Call me back.", "words": [{"word": "Call", "start": 1.1, "end": 1.6}]},
        {
            "role": "tool_call_invocation",
            "tool_call_id": "t1",
            "name": "call_back",
            "arguments": f'{{"to":"{CALLER}"}}',
        },
        {"role": "tool_call_result", "tool_call_id": "t1", "content": f"calling {CALLER} from {AGENT}"},
    ],
}
SAMPLES = [
    Sample(
        "vapi",
        "call-vapi",
        [
            {"message": {"type": "assistant-request", "call": VAPI_CALL, "customer": VAPI_CALL["customer"]}},
            {
                "message": {
                    "type": "tool-calls",
                    "timestamp": 1790000002000,
                    "call": VAPI_CALL,
                    "customer": VAPI_CALL["customer"],
                    "toolCallList": [{"id": "t1", "function": {"name": "call_back", "arguments": ARGUMENTS}}],
                }
            },
            {
                "message": {
                    "type": "end-of-call-report",
                    "timestamp": 1790000009000,
                    "call": VAPI_CALL,
                    "customer": VAPI_CALL["customer"],
                    "endedReason": "customer-ended-call",
                    "artifact": {
                        "messages": [
                            {"role": "bot", "message": "Hello.", "time": 1790000000000},
                            {"role": "user", "message": "Call me back.", "time": 1790000001000},
                            {
                                "role": "tool_call_result",
                                "toolCallId": "t1",
                                "name": "call_back",
                                "result": f"calling {CALLER} and 089 12345678",
                                "time": 1790000003000,
                            },
                        ],
                        "variables": {"customer": {"number": CALLER}},
                    },
                }
            },
        ],
        hooks=True,
    ),
    Sample("elevenlabs-agents", "conv_9", [{"type": "post_call_transcription", "data": ELEVENLABS}], hooks=True),
    Sample(
        "retell",
        "call-retell",
        [{"event": "call_started", "call": RETELL_CALL}, {"event": "call_ended", "call": RETELL_CALL}],
        hooks=True,
    ),
    Sample(
        "ultravox",
        "call-ultravox",
        [
            {
                "event": "call.ended",
                "call": {
                    "callId": "call-ultravox",
                    "ended": "2026-11-27T05:00:09Z",
                    "endReason": "hangup",
                    "metadata": {"user_id": USER, "ultravox.sip.caller_id": CALLER},
                    "medium": {"sip": {"incoming": {"to": f"sip:{AGENT}@x"}}},
                },
            }
        ],
        hooks=True,
    ),
    Sample(
        "conversation-relay",
        "CA9",
        [
            {
                "type": "setup",
                "callSid": "CA9",
                "sessionId": "VX1",
                "from": CALLER,
                "to": AGENT,
                "direction": "inbound",
                "customParameters": {"user_id": USER, "callback": CALLER},
            },
            {"type": "prompt", "voicePrompt": "Call me back.", "last": True},
        ],
    ),
    Sample(
        "elevenlabs-agents",
        "conv_live",
        [
            {
                "type": "conversation_initiation_client_data",
                "user_id": USER,
                "dynamic_variables": {"system__caller_id": CALLER, "system__called_number": AGENT},
            },
            {
                "type": "conversation_initiation_metadata",
                "conversation_initiation_metadata_event": {"conversation_id": "conv_live"},
            },
            {
                "type": "user_transcript",
                "user_transcription_event": {"user_transcript": "Call me back.", "event_id": 2},
            },
            {
                "type": "client_tool_call",
                "client_tool_call": {"tool_name": "call_back", "tool_call_id": "t1", "parameters": ARGUMENTS},
            },
        ],
    ),
    Sample(
        "retell",
        "call-live",
        [
            {"interaction_type": "call_details", "call": RETELL_CALL | {"call_id": "call-live"}},
            {
                "response_type": "tool_call_invocation",
                "tool_call_id": "t1",
                "name": "call_back",
                "arguments": json.dumps({"to": "+1 (555) 123-4567", "all": SPELLED}),
            },
            {
                "response_type": "tool_call_invocation",
                "tool_call_id": "t2",
                "name": "call_back",
                "arguments": "[" * 700 + json.dumps(CALLER) + "]" * 700,
            },
            {"response_type": "tool_call_result", "tool_call_id": "t1", "content": {"dialled": CALLER, "line": AGENT}},
        ],
    ),
    Sample(
        "livekit-agents",
        "room-1",
        [
            {
                "topic": "lk.transcription",
                "identity": USER,
                "attributes": {
                    "lk.segment_id": "s1",
                    "lk.transcription_final": "true",
                    "sip.phoneNumber": CALLER,
                    "sip.trunkPhoneNumber": AGENT,
                },
                "text": "Call me back.",
            },
            {
                "type": "function_tools_executed",
                "function_calls": [{"call_id": "t1", "name": "call_back", "arguments": f'{{"to": "{CALLER}"}}'}],
                "function_call_outputs": [{"call_id": "t1", "output": f"calling from {AGENT}"}],
            },
        ],
    ),
    Sample(
        "livekit-agents",
        "room-2",
        [
            {
                "type": "user_input_transcribed",
                "transcript": "Call me back.",
                "is_final": True,
                "speaker_id": f"sip_{CALLER}",
            },
            {
                "type": "function_tools_executed",
                "function_calls": [{"call_id": "t1", "name": "call_back", "arguments": f'{{"to": "{CALLER}"}}'}],
                "function_call_outputs": [],
            },
        ],
        names_user=False,
    ),
    Sample(
        "deepgram-agent",
        "dg-1",
        [
            {"type": "Settings", "metadata": {"user_id": USER, "from": CALLER, "line": AGENT}, "audio": {}},
            {"type": "Welcome", "request_id": "dg-1"},
            {
                "type": "FunctionCallRequest",
                "functions": [{"id": "t1", "name": "call_back", "arguments": f'{{"to":"{CALLER}"}}'}],
            },
        ],
    ),
    Sample(
        "twilio-media-streams",
        "CA7",
        [
            {
                "event": "start",
                "streamSid": "MZ1",
                "start": {"callSid": "CA7", "customParameters": {"user_id": USER, "from": CALLER, "to": AGENT}},
            },
            {"event": "dtmf", "streamSid": "MZ1", "dtmf": {"digit": "1"}},
        ],
    ),
    Sample(
        "pipecat-rtvi",
        "rtvi-1",
        [
            {
                "label": "rtvi-ai",
                "type": "user-transcription",
                "data": {"text": "Call me back.", "user_id": USER, "timestamp": "2026-11-27T05:00:00Z", "final": True},
            }
        ],
        names_number=False,
    ),
    Sample(
        "agora-ten",
        "ten-1",
        [
            {
                "object": "assistant.transcription",
                "text": "Hello.",
                "turn_id": 0,
                "turn_seq_id": 0,
                "turn_status": 1,
                "user_id": "agent-7",
            },
            {"object": "user.transcription", "text": "Call me back.", "final": True, "turn_id": 1, "user_id": USER},
        ],
        names_number=False,
    ),
    Sample(
        "openai-realtime",
        "sess_1",
        [
            {
                "type": "session.update",
                "session": {"type": "realtime", "safety_identifier": USER, "metadata": {"caller": CALLER}},
            },
            {"type": "session.created", "session": {"id": "sess_1"}},
            {
                "type": "conversation.item.input_audio_transcription.completed",
                "event_id": "e1",
                "item_id": "i1",
                "transcript": "Call me back.",
            },
        ],
        names_number=False,
    ),
]
