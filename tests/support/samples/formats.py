"""What the tests of the formats share: the first recorded call, short ways to make a memory, and free input."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from voicemem.context.formats import ENRICHERS, RequestFormat
from voicemem.transcript.messages import Message, ToolUse

JOKE = "Why did the scarecrow win an award? Because he was outstanding in his field!"
STORY = "Once upon a time in a land far away, there lived a brave knight who fought dragons and saved princesses."
CUT = {"interrupted": True, "interrupt_timestamp": 1678905225, "original": JOKE, "source": "llm"}
SPOKEN = {"source": "asr", "user": "user123"}

SEED_CALL = (
    Message("assistant", "How can I help you today?", 1, 1678901234, {"source": "greeting"}),
    Message("user", "Can you tell me a joke?", 2, 1678901235, SPOKEN),
    Message("assistant", "Why did the scarecrow ", 2, 1678901236, CUT),
    Message("user", "You know what? Tell me a story instead.", 3, 1678905235, SPOKEN),
    Message("assistant", STORY, 3, 1678905236, {"source": "llm"}),
    Message("assistant", "Are you still there?", 4, 1678905236, {"source": "command"}),
)


def message_of(role: Any, content: str, turn_id: int = 1, timestamp: int = 0, **metadata: Any) -> Message:
    """A message of the memory."""
    return Message(role, content, turn_id, timestamp, metadata)


def tool_use_of(
    arguments: Any = None, result: Any = "sunny", turn_id: int = 1, timestamp: int = 0, **more: Any
) -> ToolUse:
    """An answered tool call."""
    fields: dict[str, Any] = {"call_id": "call_1", "name": "weather", "answered": True} | more
    fields |= {"arguments_json": msgspec.json.encode(arguments), "result_json": msgspec.json.encode(result)}
    return ToolUse(turn_id=turn_id, timestamp=timestamp, **fields)


def exhausted(value: Any) -> Any:
    """The same value with all of its lazily validated iterables run through: pydantic checks those only then."""
    if isinstance(value, dict):
        return {key: exhausted(child) for key, child in value.items()}
    if hasattr(value, "__iter__") and not isinstance(value, str):
        return [exhausted(child) for child in value]
    return value


texts = st.one_of(st.text(max_size=12), st.sampled_from(["", " ", "\n", "Hello.", "{}", "[1]", '{"a":1}']))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=6,
)
known = {"interrupted": st.booleans(), "original": values, "user": values, "source": texts}
metadata = st.fixed_dictionaries({}, optional=known)
turns = st.integers(0, 4)
numbers = st.integers(-(2**80), 2**80) | st.integers(0, 9)
message = st.builds(Message, st.sampled_from(["user", "assistant"]), texts, turns, numbers, metadata)
memories = st.lists(message, max_size=8).map(lambda found: sorted(found, key=lambda each: each.turn_id))
encoded = values.map(msgspec.json.encode)
tool_uses = st.lists(st.builds(ToolUse, turns, numbers, texts, texts, encoded, encoded, st.booleans()), max_size=4)
formats = st.builds(
    RequestFormat,
    vendor=st.sampled_from([None, "openai", "custom"]),
    model=st.none() | texts,
    style=st.sampled_from(["openai", "anthropic", "gemini"]),
    params=st.dictionaries(st.sampled_from(["messages", "model", "turn_id", "max_tokens", "system", "top_p"]), values),
    system_messages=st.lists(st.fixed_dictionaries({"role": st.just("system"), "content": values})).map(tuple),
    interruptable=st.booleans(),
    enrich=st.lists(st.sampled_from(sorted(ENRICHERS))).map(tuple),
    alternate=st.booleans(),
    tools=st.booleans(),
)
