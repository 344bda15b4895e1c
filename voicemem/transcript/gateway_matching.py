"""The matching of the gateway's turns with other producers' later reports of them (docs/memory.md, rules 1 and 2).

A request for the agent's LLM brings the caller's words, and its answer is the reply. The recogniser's final, and the
transcript of the stack that hosts the agent, repeat both, and know better what was heard. So speech replaces the words
of a request, and a stack's reports about its reply are applied to the gateway's.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import structs

from voicemem.dialects.known import MadeEvent
from voicemem.protocol.events import Interrupt, LlmCancel, LlmDelta, LlmDone, MessageEvent, Resume, Tts
from voicemem.transcript.state import Reply, State, Turn, TypedMessage, id_digest
from voicemem.transcript.timeline import merge_metadata

GATEWAY_PRODUCER = "gateway"
"""The producer of the gateway's events. They have no seq, so no other producer may use the name
(`quotas.OWN_PRODUCERS`)."""
LATE_MS = 5_000
"""Speech that begins so much later than a request with the same words is new."""
FEW_MESSAGES = 16
"""The most messages of a turn that are matched; each is compared alone and joined to all before it."""
LOOKED_AT = 64
"""The most unreported replies of the gateway in other turns that are compared, the oldest first."""
UNSPOKEN = re.compile(r"[\W_]+")
WORD = re.compile(r"\w+")


def text_key(text: str) -> str:
    """Return the letters and digits of a text, by which two texts are compared."""
    return UNSPOKEN.sub("", text.casefold()) or text.strip()


# What the user said


def note_request(state: State, turn: Turn) -> None:
    """Note the newest message of a turn, which a request brought, alone and joined to those before it."""
    texts = [one.text for one in (turn.typed or ())[: FEW_MESSAGES + 1]]
    if len(texts) > FEW_MESSAGES:
        return
    for key in {text_key(texts[-1]), text_key("".join(texts))}:
        state.requested.setdefault(id_digest(key), []).append(turn.number)


def find_requested(state: State, text: str, begin: int, has_partial: bool = False) -> Turn | None:
    """Return the oldest turn in which a request brought the words of a final that began at `begin`.

    A stack that hosts the agent reports every utterance, however late. A recogniser's final must be near in time, and,
    if it had a partial with a time, have begun before the reply.
    """
    key = text_key(text)
    numbers = state.requested.get(id_digest(key)) or []
    oldest = None
    for number in reversed(numbers):
        turn = state.turns[number]
        messages = requested(turn, key)
        if messages and begin > messages[0].begin + LATE_MS:
            break
        if messages and has_partial and is_answered_before(state, turn, begin):
            break
        oldest = turn if messages else oldest
    if oldest is None and state.memo.translates:
        oldest = next((state.turns[one] for one in numbers if requested(state.turns[one], key)), None)
    return oldest


def is_answered_before(state: State, turn: Turn, ts: int) -> bool:
    """Return whether the reply to a turn, which may be in a later turn, began before `ts`."""
    numbers = state.turn_numbers
    for number in islice(numbers, bisect_left(numbers, turn.number), None):
        replies = [state.replies[id] for id in state.turns[number].replies or ()]
        begins = [reply.begin for reply in replies if not reply.cancelled]
        if begins:
            return min(begins) < ts
    return False


def requested(turn: Turn, key: str) -> Sequence[TypedMessage]:
    """Return the message of a turn with this text, or all its messages if they have it together."""
    typed = turn.typed or []
    one = [message for message in typed if text_key(message.text) == key][:1]
    return one or (typed if text_key("".join(message.text for message in typed)) == key else [])


def replace_requested(state: State, turn: Turn, text: str, order: int) -> None:
    """Show the segment at a journal position in place of a request's words."""
    replaced = requested(turn, text_key(text))
    if not replaced:
        return
    note_reported(state, turn, text)
    for message in replaced:
        turn.reported = state.append(turn.reported, structs.replace(message, reported=order))
    orders = {message.order for message in replaced}
    turn.typed = [message for message in turn.typed or () if message.order not in orders] or None


def note_reported(state: State, turn: Turn, text: str) -> None:
    """Note that the words of a request were reported, so that they are not matched again."""
    digest = id_digest(text_key(text))
    state.requested[digest].remove(turn.number)
    if not state.requested[digest]:
        del state.requested[digest]


def give_back(state: State, turn: Turn, order: int) -> None:
    """Show the words of a request again, since the segment shown in their place is withdrawn."""
    reported = turn.reported or []
    turn.reported = [message for message in reported if message.reported != order] or None
    for message in reported:
        if message.reported == order:
            turn.typed = state.append(turn.typed, structs.replace(message, reported=0))
            note_request(state, turn)


# What the agent said


def of_gateway(state: State, made: MadeEvent, ts: int) -> MadeEvent | None:
    """Return another stack's event, with the gateway's item if it is about that reply; None if it is no news."""
    item = made.item
    if isinstance(made, MessageEvent) and made.role == "user":
        turn = find_requested(state, made.text, ts) if state.requested else None
        if turn is None:
            return made
        note_reported(state, turn, made.text)
        if item is not None:
            state.items[item] = turn.number
        state.utterance_turn = turn.number
        return None
    if item is None or not (state.answers or state.counterparts):
        return made
    if item not in state.counterparts and not find_counterpart(state, made):
        return made
    reply = state.replies[state.counterparts[item]]
    match made:
        case Tts() | Interrupt() | Resume():
            return structs.replace(made, item=reply.item)
        case LlmCancel():
            del state.counterparts[item], state.other_items[reply.id]
            state.answers[reply.id] = None
            return None
        case LlmDone() | LlmDelta() | MessageEvent():
            if made.metadata:
                reply.metadata = merge_metadata(reply.metadata, state.position, made.metadata)
                state.touch(reply)
            return None
    return made


def find_counterpart(state: State, made: MadeEvent) -> bool:
    """Find the gateway's reply that the first event of a stack's reply is about. Return whether there is one."""
    if not isinstance(made, LlmDone | LlmDelta | MessageEvent) or made.item is None or made.item in state.item_replies:
        return False
    text = made.text or ""
    if not text.strip() or (isinstance(made, MessageEvent) and made.role != "assistant"):
        return False
    for reply, is_near in candidates(state, made.turn_id):
        if is_same_reply(reply, text, is_near):
            del state.answers[reply.id]
            state.counterparts[made.item], state.other_items[reply.id] = reply.id, made.item
            state.items[made.item] = reply.turn
            return True
    return False


def candidates(state: State, number: int | None) -> Iterator[tuple[Reply, bool]]:
    """Yield the gateway's unreported replies: those of a turn, then the oldest of all."""
    turn = None if number is None else state.turns.get(number)
    for id in () if turn is None else turn.replies or ():
        if id in state.answers:
            yield state.replies[id], True
    for id in islice(state.answers, LOOKED_AT):
        yield state.replies[id], False


def is_same_reply(reply: Reply, text: str, is_near: bool) -> bool:
    """Return whether one of a text and a reply begins with the other; in the same turn, similar texts match too."""
    own, said = text_key(reply.generation.text()), text_key(text)
    if reply.cancelled or not own or reply.item is None:
        return False
    return own.startswith(said) or said.startswith(own) or (is_near and is_like(reply.generation.text(), text))


def is_like(one: str, other: str) -> bool:
    """Return whether half of the words of the shorter text are in both."""
    fewer, more = sorted((WORD.findall(one.casefold()), WORD.findall(other.casefold())), key=len)
    known = set(more)
    return bool(fewer) and 2 * sum(word in known for word in fewer) >= len(fewer)
