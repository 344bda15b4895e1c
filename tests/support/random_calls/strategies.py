"""Strategies for whole calls: what users and an agent say, and what playback, interrupts and the close report of it."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.events import event
from tests.support.plain_fold.calls import call_closed, call_reopened
from tests.support.random_calls.plans import Plan, playback_of
from voicemem.protocol.types import JsonObject

REPLIES = [
    "One two three four.",
    "No. No - and no & sandwiches, no phone: one more.",
    'He said "Hello there, friend" and left. Then (so it seems) he came back.',
    "I don't know, but 3.14 is near; e-mail me.",
    "你好，世界。今天天气很好，我们去公园吧！",
    "Bonjour ! Ça va bien — très bien, merci.",
    "ราคา 20 บาทครับ",
    "Sure, 明天 at nine… “Fine?” Yes.",
    "cafe\u0301 noir 👩\u200d🚀 now",
    "Wait.",
]
UTTERANCES = ["Hi", "Hi there, Ann.", "no", "Yes.", "Yes. And my", "你好", "明天呢？", "What's that", "Um"]
USERS = ["ann", "ben"]
NAMINGS = ["named by turn", "unnamed", "with items", "mixed"]


@st.composite
def calls(draw: st.DrawFn) -> list[JsonObject]:
    """A call as its events arrive, with what each has from its producer."""
    naming = draw(st.sampled_from(NAMINGS))
    times = draw(st.sampled_from(["in order", "in order", "out of order", "some missing", "one without", "missing"]))
    producers = draw(st.sampled_from([["main"], ["main", "media"]]))
    users = draw(st.sampled_from([[], USERS[:1], USERS]))
    plan = Plan(draw, naming, times, producers, users)
    events: list[JsonObject] = []
    for turn in range(1, draw(st.integers(1, 3)) + 1):
        events += turn_of(plan, turn)
    events = draw(in_another_order(events[:24]))
    return [*events, *end_of(plan)]


def turn_of(plan: Plan, turn: int) -> list[JsonObject]:
    """What a turn's users say, and one or two replies."""
    events = speech_of(plan, turn) if plan.chance(2) or turn == 1 else []
    for reply in range(plan.draw(st.integers(1, 2))):
        item = f"r{turn}{reply}"
        text = plan.draw(st.sampled_from(REPLIES))
        events += generation_of(plan, turn, item, text) + playback_of(plan, turn, item, text)
        if plan.chance(8):
            events.append(cancel_of(plan, turn, item))
        if plan.chance(6):
            events.append(trace_of(plan, plan.named(turn, item)))
    return events


def speech_of(plan: Plan, turn: int) -> list[JsonObject]:
    """Partials and finals of a turn, keyed or not, some empty; now and then a typed message."""
    events = []
    keyed = plan.draw(st.sampled_from(["no", "segment", "item"]))
    for _ in range(plan.draw(st.integers(1, 4))):
        name = plan.named(turn, f"u{turn}")
        if keyed != "item":
            name.pop("item", None)
        elif plan.naming in ("named by turn", "unnamed"):
            name["item"] = f"u{turn}"
        more: JsonObject = {"segment": plan.draw(st.integers(0, 1))} if keyed == "segment" else {}
        if plan.users and plan.chance(2):
            more["user"] = plan.draw(st.sampled_from(plan.users))
        text = "" if plan.chance(6) else plan.draw(st.sampled_from(UTTERANCES))
        events.append(plan.report("asr", name, text=text, final=plan.draw(st.booleans()) or None, **more))
    if plan.chance(8):
        name = {} if plan.naming == "unnamed" else {"turn": turn}
        events.append(plan.report("message", name, role="user", source="message", text="Typed."))
    return events


def generation_of(plan: Plan, turn: int, item: str, text: str) -> list[JsonObject]:
    """A reply in deltas or as a whole message, its done or error, perhaps none."""
    name = plan.named(turn, item)
    if plan.chance(8):
        return [plan.report("message", name, role="assistant", source="greeting", text=text)]
    if plan.chance(30):
        return [restored(plan, name, text)]
    size = plan.draw(st.sampled_from([4, 9, 30]))
    pieces = [text[start : start + size] for start in range(0, len(text), size)][: plan.draw(st.integers(1, 4))]
    events = [plan.report("llm.delta", name, text=piece) for piece in pieces]
    if plan.chance(5):
        part = text[: plan.draw(st.integers(1, len(text)))]
        events.append(plan.report("llm.delta", name, text=part, whole=True))
    ending = plan.draw(st.sampled_from(["done", "done", "done with text", "error", "failure", "none"]))
    if ending.startswith("done"):
        events.append(plan.report("llm.done", name, text=text if ending == "done with text" else None))
    if ending in ("error", "failure"):
        events.append(plan.report("llm.error", name, text="Sorry, again please." if ending == "failure" else None))
    return events


def restored(plan: Plan, name: JsonObject, text: str) -> JsonObject:
    """A message of an earlier call, which carries what was known of its interruption."""
    own = {"interrupted": True, "interrupt_timestamp": 5, "original": text + " And more.", "heard": "aligned"}
    fields: JsonObject = {"role": "assistant", "source": "llm", "text": text, "metadata": own}
    return event("message", name.get("turn"), plan.happened("main"), item=name.get("item"), producer="main", **fields)


def cancel_of(plan: Plan, turn: int, item: str) -> JsonObject:
    """A cancel by item, or by turn."""
    return plan.report("llm.cancel", {"turn": turn} if plan.chance(2) else {"item": item})


def trace_of(plan: Plan, name: JsonObject) -> JsonObject:
    """A tool call or a metric."""
    if plan.chance(2):
        return plan.report("metric", name, name="llm_ttft", latency_ms=300)
    return plan.report("tool.call", name, call_id="c", name="look_up", arguments={})


@st.composite
def in_another_order(draw: st.DrawFn, events: list[JsonObject]) -> list[JsonObject]:
    """The events as they happened, or a few of them earlier or later."""
    arrived = list(events)
    for _ in range(draw(st.sampled_from([0, 0, 1, 3, 8]))):
        moved = arrived.pop(draw(st.integers(0, len(arrived) - 1)))
        arrived.insert(draw(st.integers(0, len(arrived))), moved)
    return arrived


def end_of(plan: Plan) -> list[JsonObject]:
    """How a call ends: not yet, by a hang-up, or by an idle close that may be undone."""
    ending = plan.draw(st.sampled_from(["none", "hang-up", "idle", "reopened", "closed again"]))
    closed = call_closed(plan.now + 300)
    if ending == "hang-up":
        return [plan.report("session.end", {}), closed]
    more = {"idle": [closed], "reopened": [closed, call_reopened()]}
    again = [closed, call_reopened(), plan.report("asr", {"turn": 9}, text="Back", final=True), closed]
    return more.get(ending, again if ending == "closed again" else [])
