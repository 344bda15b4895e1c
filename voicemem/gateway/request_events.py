"""The events that a request adds to the memory: words, tool calls and their results, and withdrawals of replies."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from voicemem.context.formats import INSTRUCTION_ROLES
from voicemem.errors import Refused
from voicemem.gateway.alignment import Hints, LastMatch, Spoken, find_last_match
from voicemem.gateway.chat_request import RequestMessage
from voicemem.llm.completions import MAX_ID_CHARACTERS, content_text, further_call_fields
from voicemem.protocol.events import Interrupt, LlmCancel, MessageEvent, ProducedEvent, ToolCall, ToolResult
from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.gateway_matching import GATEWAY_PRODUCER, UNSPOKEN, text_key
from voicemem.transcript.messages import WANTED_BACK, Forgotten
from voicemem.transcript.replies.heard import rate_before
from voicemem.transcript.replies.playing import settle, standing_replies
from voicemem.transcript.state import Reply, Turn
from voicemem.transcript.whole_words import units_of

MARKS = " \n\t.,;:!?…。、，！？"
"""Characters that may separate two utterances that were sent as one."""
PAUSE_MS = 2_000
"""Words that come so long after the end of a reply are new."""
RUNNING = ("IN_PROGRESS", "The tool call is still in progress.")
"""The beginnings of the results that Pipecat and LiveKit send for tools that are still running."""
UNKNOWN_TOOL_CALL = "The session has no tool call with this id"
TOO_LONG_CALL = f"The session takes tool calls whose id and name have 1 to {MAX_ID_CHARACTERS} characters"


class NewInput(Struct, frozen=True):
    """The events that a request adds to the memory, and the turn of the reply to it."""

    turn_id: int
    events: list[ProducedEvent] = []
    pending_text: str | None = None
    """The user's words, if the memory does not show them yet because their transcript is still to come."""
    ignored: tuple[int, ...] = ()
    """Indexes of the request's messages that the memory lacks and cannot take."""


def disconnect_id(item: str) -> str:
    """Return the id of the `llm.done` of a reply whose client left before its end."""
    return f"disconnected:{item}"


def shared_id(kind: Literal["call", "running", "result"], call_id: str) -> str | None:
    """Return the event id of a tool call, or of its result, that other stacks' reports of it have too."""
    id = f"{kind}:{call_id}"
    return id if len(id) <= MAX_ID_CHARACTERS else None


class InputReader:
    """Reads the events of one request, given the memory as it is."""

    def __init__(
        self,
        read_model: ReadModel,
        messages: Sequence[RequestMessage],
        clock: Callable[[], int],
        new_id: Callable[[], str],
        extra: Mapping[int, JsonObject] | None = None,
    ) -> None:
        """`extra` are further fields of messages with tool calls, by index."""
        self.extra = extra or {}
        self.state = read_model.state
        self.known = read_model.current_messages()
        self.messages = messages
        self.new_id = new_id
        self.now = clock()
        self.conversation = [place for place, one in enumerate(messages) if one.role not in INSTRUCTION_ROLES]
        self.calls = {index: calls_of(messages[index]) for index in self.conversation}
        """The tool calls of each message."""
        self.known_calls = {index: list(self.places_of_calls(index)) for index in self.conversation}
        """The memory's places (turn, index in it) of the tool calls that each message makes or answers."""
        self.spoken = list(self.spoken_messages())
        self.events: list[ProducedEvent] = []
        self.ignored: list[int] = []
        self.pending_text: str | None = None
        self.grown: str | None = None
        """The rest of the newest words, if the memory has only their beginning."""
        # A client may send only the user's words: then a reply that its conversation lacks may still have been heard.
        self.has_replies = any(messages[index].role == "assistant" for index in self.conversation)

    def read(self) -> NewInput:
        """Read the new input. Raises `Refused` (`invalid_field`) for the result of an unknown tool call."""
        settle(self.state)
        last_match = find_last_match(self.known, self.spoken, self.hints())
        begin = self.spoken[last_match.spoken].index + 1 if last_match.spoken >= 0 else 0
        turn = self.known[last_match.known].turn_id if last_match.known >= 0 else self.state.utterance_turn
        self.ignored += last_match.ignored
        new = self.spoken[last_match.spoken + 1 :]
        self.withdraw_replies(last_match)
        self.note_cuts(last_match)
        self.grown = self.grown_words(last_match, new)
        turn = self.take(begin, turn, self.waiting_words(last_match, new))
        # Of equal times the order of arrival would decide, but not between tool calls and messages.
        count = len(self.events)
        events = [
            structs.replace(event, ts=self.now - count + place) if event.ts is None else event
            for place, event in enumerate(self.events, 1)
        ]
        return NewInput(self.turn_of_reply(turn), events, self.pending_text, tuple(self.ignored))

    def turn_of_reply(self, number: int) -> int:
        """Return the turn of a reply to a turn: a later one, if the agent has already spoken there."""
        later = self.state.turn_numbers[bisect_right(self.state.turn_numbers, number) :]
        answered = (one for one in reversed(later) if standing_replies(self.state, self.state.turns[one]))
        return next(answered, number)

    def spoken_messages(self) -> Iterator[Spoken]:
        """Yield the messages with text, each with the tool calls around it that the memory knows."""
        after_turn, after_ms = -1, -1
        before, following = dict[int, int | None](), None
        for index in reversed(self.conversation):
            before[index] = following
            following = min((turn for turn, _ in self.known_calls[index]), default=following)
        for index in self.conversation:
            message, places = self.messages[index], self.known_calls[index]
            called = [self.state.tool_record(place).ts for place in places]
            after_turn = max((after_turn, *(turn for turn, _ in places)))
            text = content_text(message.content)
            if message.role in ("user", "assistant") and text.strip():
                first = min(called, default=None)
                yield Spoken(index, message.role, text, after_turn, after_ms, first, before[index])
            after_ms = max((after_ms, *called))

    def hints(self) -> Hints:
        newest = next((message.turn_id for message in reversed(self.known) if message.role == "user"), -1)
        turn = self.state.turns.get(newest)
        is_unanswered = turn is not None and self.is_unanswered(turn)
        waits = turn is not None and not (turn.tool_calls or standing_replies(self.state, turn))
        return Hints(
            may_repeat=len(self.conversation) > 1 or is_unanswered or waits,
            is_unanswered=is_unanswered,
            ends_with_words=bool(self.spoken) and self.spoken[-1].index == self.conversation[-1],
            has_replies=self.has_replies,
        )

    def is_unanswered(self, turn: Turn) -> bool:
        """Return whether the client of the reply to a turn left, or the reply failed without a word."""
        replies = standing_replies(self.state, turn)
        if any(reply.is_failure for reply in replies):
            return False  # the failure was spoken: what the user says after it is new
        newest = max(replies, key=lambda reply: reply.key, default=None)
        if newest is not None and self.was_left(newest):
            return True
        failed = turn.failure.ts if turn.failure else None
        begun = [*([newest.begin] if newest is not None else ()), *(call.ts for call in turn.tool_calls or ())]
        return failed is not None and max(begun, default=failed) <= failed

    def withdraw_replies(self, last_match: LastMatch) -> None:
        """Cancel the replies, to the words or tool results that the client's conversation ends with, that it lacks."""
        met = self.known[last_match.known].turn_id if last_match.known >= 0 else -1
        places = list(chain.from_iterable(self.known_calls.values()))
        number = max((met, *(self.turn_of_reply(turn) for turn in {turn for turn, _ in places})))
        turn = self.state.turns.get(number)
        rest = [message for message in self.known[last_match.known + 1 :] if message.role == "user"]
        if turn is None or any(message.turn_id >= number + (number != met) for message in rest):
            return
        kept = Counter(
            text_key(str(message.metadata.get("original", message.content)))
            for message in self.known[: last_match.known + 1]
            if message.turn_id == number and message.role == "assistant"
        )
        records = [self.state.tool_record(place) for place in places]
        called = max((record.order for record in records), default=-1)
        answered_ms = max((record.answered_ts or 0 for record in records), default=0)
        repeats = last_match.spoken == len(self.spoken) - 1 and all(record.answered for record in records)
        for reply in standing_replies(self.state, turn):
            key = text_key(reply.generation.text())
            if kept[key]:
                kept[key] -= 1
                continue
            is_lacked = self.is_thrown_away(reply) or (repeats and is_withdrawable(reply))
            if is_lacked and reply.order > called and reply.begin >= answered_ms:
                self.withdraw([reply])

    def withdraw(self, replies: Iterable[Reply]) -> None:
        withdrawn = {event.item for event in self.events}
        self.events += (LlmCancel(turn_id=one.turn, item=one.item) for one in replies if one.item not in withdrawn)

    def note_cuts(self, last_match: LastMatch) -> None:
        """Interrupt the replies that the client has only the beginning of, if no one else reports what was heard."""
        for place, at in last_match.begun:
            message = self.known[at]
            if self.spoken[place].index == self.conversation[-1]:
                continue
            for reply in standing_replies(self.state, self.state.turns[message.turn_id]):
                if reply.begin == message.timestamp and is_withdrawable(reply):
                    heard = beginning(reply.generation.text(), self.spoken[place].text)
                    if heard is not None:
                        self.events.append(Interrupt(turn_id=reply.turn, item=reply.item, heard_text=heard))
                    break

    def is_thrown_away(self, reply: Reply) -> bool:
        """Return whether a reply that the client's conversation lacks was never played."""
        return is_withdrawable(reply) and (self.has_replies or self.was_left(reply))

    def grown_words(self, last_match: LastMatch, new: Sequence[Spoken]) -> str | None:
        """Return the words after the memory's newest ones, where the client sends both as one message; None otherwise.

        The reply that it requested after the first of them is withdrawn.
        """
        place = next((at for at in reversed(range(len(self.known))) if self.known[at].role == "user"), -1)
        turn = self.state.turns.get(self.state.utterance_turn)
        if not new or new[-1].role != "user" or turn is None or place <= last_match.known:
            return None
        if new[-1].after_turn >= turn.number or not (turn.typed or turn.reported):
            return None
        begin, text = self.known[place].content.rstrip(MARKS), new[-1].text
        rest = text[len(begin) :].lstrip(MARKS)
        continues = text[: len(begin)].casefold() == begin.casefold() and not text[len(begin) :][:1].isalnum()
        replies = standing_replies(self.state, turn)
        if not (begin and rest and continues):
            return None
        if not all(self.is_thrown_away(reply) or self.is_first_made_ahead(reply) for reply in replies):
            return None
        self.withdraw(replies)
        return rest

    def is_first_made_ahead(self, reply: Reply) -> bool:
        """Return whether this is the first reply of a session, which a client that sends the whole conversation lacks.

        Such a client sends its instructions too; one that sends a message at a time waits until the reply was heard.
        """
        is_first = not any(one.role == "assistant" and one.turn_id < reply.turn for one in self.known)
        sends_all = len(self.conversation) == 1 < len(self.messages)
        heard_ms = units_of(reply.generation.text()) / rate_before(self.state, reply)
        return is_first and sends_all and is_withdrawable(reply) and self.now - reply.begin < heard_ms + PAUSE_MS

    def was_left(self, reply: Reply) -> bool:
        """Return whether the client left before the end of a reply."""
        return bool(reply.item) and self.state.has_event(disconnect_id(reply.item or ""))

    def places_of_calls(self, index: int) -> Iterator[tuple[int, int]]:
        for call_id in (self.messages[index].tool_call_id, *(call["id"] for call in self.calls[index])):
            place = self.state.tool_calls.get(call_id or "")
            if place is not None:
                yield place

    def waiting_words(self, last_match: LastMatch, new: Sequence[Spoken]) -> set[int]:
        """Return the indexes of words that the newest turn has as a transcript, and that have no reply yet."""
        turn = self.state.turns.get(self.state.newest_turn)
        if turn is None or not (turn.segments and new and new[-1].role == "user"):
            return set()
        known = self.known[: last_match.known + 1]
        replies, is_shown = standing_replies(self.state, turn), bool(turn.finals or turn.typed)
        if known and known[-1].turn_id == turn.number:
            return set()  # the request has that speech, and these words after it
        if is_shown:
            if replies or turn.failure or turn.tool_calls:
                return set()
        elif turn.tool_calls or not all(map(self.is_thrown_away, replies)):
            return set()
        heard = "".join(message.content for message in self.known if message.turn_id == turn.number)
        if not is_shown:
            self.pending_text = new[-1].text
            self.withdraw(replies)
        run: list[Spoken] = []
        for one in reversed(new):
            if one.role != "user":
                break
            run.append(one)
        whole = text_key(heard) == text_key("".join(one.text for one in reversed(run)))
        return {one.index for one in (run if whole else run[:1])}

    def take(self, begin: int, turn: int, waiting: set[int]) -> int:
        """Make the events of the new messages, from an index on. Return the turn of the reply."""
        newest, made = self.state.newest_turn, dict[str, int]()
        said = {one.index: one.text for one in self.spoken if one.index >= begin}
        for index in self.conversation:
            message = self.messages[index]
            if message.role == "tool":
                turn = self.take_result(index, begin, made, turn)
            elif index in waiting:
                turn = newest
            elif message.role == "user" and index in said:
                event = MessageEvent(role="user", text=said[index], source="message", item=self.new_id())
                if self.grown is not None and index == self.spoken[-1].index:
                    turn = self.state.utterance_turn
                    event = structs.replace(event, text=self.grown, turn_id=turn)
                else:
                    newest = turn = newest + 1
                self.events.append(event)
            elif message.role == "assistant" and index >= begin:
                if index in said:
                    event = MessageEvent(role="assistant", text=said[index], source="command", item=self.new_id())
                    self.events.append(structs.replace(event, turn_id=self.turn_of_reply(turn)))
                self.take_calls(index, turn, made)
            elif message.role == "function" and index >= begin:
                self.ignored.append(index)
        return turn

    def take_calls(self, index: int, turn: int, made: dict[str, int]) -> None:
        """Take tool calls that the memory lacks: they were made before it began, or without the gateway."""
        calls, extra = self.calls[index], self.extra.get(index)
        of_message = ({"group": calls[0]["id"]} if len(calls) > 1 else {}) | ({"message": extra} if extra else {})
        for call in calls:
            if call["id"] in self.state.tool_calls or call["id"] in made:
                continue
            if not all(0 < len(call[name]) <= MAX_ID_CHARACTERS for name in ("id", "name")):
                self.ignored.append(index)
                continue
            made[call["id"]] = turn
            returned = call["wanted_back"] | of_message
            metadata = {WANTED_BACK: returned} if returned else None
            event = ToolCall(turn_id=turn, call_id=call["id"], name=call["name"], arguments=call["arguments"])
            self.events.append(structs.replace(event, metadata=metadata, id=shared_id("call", call["id"])))

    def take_result(self, index: int, begin: int, made: dict[str, int], turn: int) -> int:
        """Take the result of a tool call that has none yet, anywhere in the request. Return the turn of the call."""
        call_id, text = self.messages[index].tool_call_id or "", content_text(self.messages[index].content)
        place = self.state.tool_calls.get(call_id)
        if place is None and call_id not in made:
            if index >= begin:
                is_ignored = any(call["id"] == call_id for place in self.ignored for call in self.calls.get(place, ()))
                why = TOO_LONG_CALL if is_ignored else UNKNOWN_TOOL_CALL
                raise Refused("invalid_field", f"{why}: `messages[{index}].tool_call_id`")
            self.ignored.append(index)
            return turn
        if place is None:
            if made[call_id] >= 0:
                self.add_result(made[call_id], call_id, text)
                turn, made[call_id] = made[call_id], -1
            return turn
        record = self.state.tool_record(place)
        # A result of a forgotten call is ignored, and so is a second result, unless the tool was still running.
        forgotten = (self.state.forgotten or Forgotten()).covers(place[0], record.order)
        is_answered = record.answered and (is_running(text) or not is_running(msgspec.json.decode(record.result)))
        if not (is_answered or forgotten or made.get(call_id) == -1):
            made[call_id] = -1
            self.add_result(place[0], call_id, text)
        return turn if forgotten or index < begin else place[0]

    def add_result(self, turn: int, call_id: str, text: str) -> None:
        id = shared_id("running" if is_running(text) else "result", call_id)
        self.events.append(ToolResult(turn_id=turn, call_id=call_id, result=text, id=id))


def is_running(result: Any) -> bool:
    """Return whether this is the placeholder that frameworks send while a tool is still running."""
    return isinstance(result, str) and result.startswith(RUNNING)


def beginning(text: str, held: str) -> str | None:
    """Return the beginning of a reply's text that a client holds; None if it holds all of it, or other words."""
    whole, key = text_key(text), text_key(held)
    if whole == key or not whole.startswith(key):
        return None
    if text.startswith(held):
        return held
    sizes = accumulate(len(UNSPOKEN.sub("", character.casefold())) for character in text)
    return text[: next((end for end, size in enumerate(sizes, 1) if size >= len(key)), len(text))]


def calls_of(message: RequestMessage) -> list[dict[str, Any]]:
    """Return the tool calls of a message, each with `id`, `name`, `arguments`, and fields that its LLM wants back."""
    calls = []
    for call in message.tool_calls if isinstance(message.tool_calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(call.get("id"), str) and isinstance(function.get("name"), str):
            extra = further_call_fields(call)
            returned = {"call": extra} if extra else {}
            arguments = function.get("arguments")
            calls.append({"id": call["id"], "name": function["name"], "arguments": arguments, "wanted_back": returned})
    return calls


def is_withdrawable(reply: Reply) -> bool:
    """Return whether a reply of the gateway may never have been played: nothing was reported about it."""
    ours = reply.producer == GATEWAY_PRODUCER and reply.source == "llm" and reply.item is not None
    return ours and not (reply.is_failure or reply.progress or reply.cut_ts is not None)
