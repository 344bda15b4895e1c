"""The messages of one request to the LLM, rebuilt from what was heard.

`rebuilt` takes LangChain's messages or similar ones: with a `type` ("human", "ai", "tool", "system"), `content`, `id`
and, for "ai", `tool_calls`.

In the turn in progress the user's messages stay as the program passed them on (`as_passed_on`). Frameworks join
transcripts in their own way, and programs mask or edit them, so texts do not show which messages of the memory and of
the framework correspond. Times do: a framework's message has what was reported since the one before it.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from voicemem.protocol.types import JsonObject

MOST = 64
"""The number of the framework's newest messages that are matched."""


def rebuilt(own: Sequence[Any], known: Sequence[Any], opening: Set[str], *, user_is_recorded: bool) -> list[Any]:
    """Return the program's messages from before the call, then the memory, then the current run.

    The run stays as the agent has it, with all parts that the LLM wants back in its own tool calls.
    """
    start = run_start(own)
    run = list(own[start:])
    head = [one for one in own[:start] if one.type == "system" or one.id in opening]
    answered = max((at + 1 for at, one in enumerate(own) if is_answer(one)), default=0)
    unanswered = sum(one.type == "human" for one in own[answered:])
    place = place_of_run(run, known, 1 if user_is_recorded else unanswered)
    if place < len(known) and run and is_longer(known[place], run[0]):
        run[0] = known[place]
    return [*head, *known[:place], *run]


def instructions_apart(known: Sequence[JsonObject]) -> tuple[list[str], list[JsonObject]]:
    """Return the texts of the memory's system messages, and its other messages."""
    texts = [str(one["content"]) for one in known if one["role"] == "system"]
    return texts, [one for one in known if one["role"] != "system"]


def followed_by(content: Any, texts: Sequence[str]) -> Any:
    """Return a program's system message followed by the memory's texts, since many models take only one."""
    if isinstance(content, str) or not content:
        return "\n\n".join(text for text in (content, *texts) if text)
    return [*content, *({"type": "text", "text": text} for text in texts)]


def place_of_run(run: Sequence[Any], known: Sequence[Any], unanswered: int) -> int:
    """Return how many of the memory's messages came before this run: the rest is the recorded part of the run.

    The user's message is found by its text, or, if the memory has another text, as the newest of the `unanswered`.
    """
    said = {words(one) for one in run if one.type == "ai"} | {""}
    answers = (at for at in range(len(known) - 1, -1, -1) if known[at].type == "ai" and words(known[at]) not in said)
    since = range(next(answers, -1) + 1, len(known))
    if run and run[0].type == "human":
        questions = [at for at in since if known[at].type == "human"]
        same = [at for at in questions if words(known[at]).endswith(words(run[0]))]
        if same or len(questions) >= unanswered:
            return (same or questions)[-1]
    calls = called(*run)
    place = next((at for at in since if calls & called(known[at])), len(known))
    while place > since.start and known[place - 1].type == "ai":  # its words before the tool call
        place -= 1
    return place


def as_heard(own: Sequence[Any], heard: Mapping[str, str]) -> list[Any]:
    return [
        one.model_copy(update={"content": heard[one.id]}) if one.type == "ai" and one.id in heard else one
        for one in own
    ]


def called(*messages: Any) -> set[str]:
    return {call["id"] for one in messages if one.type == "ai" for call in one.tool_calls}


def words(message: Any) -> str:
    """Return the text of a message, normalised in case and white space."""
    return " ".join(text_of(message.content).casefold().split())


def is_longer(known: Any, own: Any) -> bool:
    """Return whether the memory's message has more words of the user before these, which are only text."""
    if not (known.type == own.type == "human" and isinstance(own.content, str)):
        return False
    return words(known) != words(own) and words(known).endswith(words(own))


def text_of(content: Any) -> str:
    """Return the text of a message's content; blocks without text, such as reasoning, are left out."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(
        block if isinstance(block, str) else block["text"]
        for block in blocks
        if isinstance(block, str) or (block.get("type") == "text" and isinstance(block.get("text"), str))
    )


def is_answer(message: Any) -> bool:
    """Return whether a message is the agent's final answer, which calls no tool."""
    return message.type == "ai" and not message.tool_calls


def run_start(messages: Sequence[Any]) -> int:
    """Return where the agent's task begins: at the user's newest message, or after the last answer."""
    said = (at for at, one in enumerate(messages) if one.type == "human")
    answered = (at + 1 for at, one in enumerate(messages) if is_answer(one))
    return max([0, *said, *answered])


class UserMessage(NamedTuple):
    """A user message of the framework, whose words were reported after `since` and by `until`."""

    message: Any
    since: float
    until: float


def typed(message: Any, at: float) -> UserMessage:
    """Return a message that came whole, at one time."""
    return UserMessage(message, round(at) - 1, round(at))


def as_passed_on(
    known: Sequence[JsonObject], user_messages: Sequence[UserMessage], first: int
) -> tuple[list[JsonObject | Any], list[Any]]:
    """Return the memory with the framework's messages from `first` on in their places, and those without a place.

    `known` are messages in OpenAI's form with their fields; `user_messages` are in the framework's order.
    """
    first, user_messages = max(0, first - max(0, len(user_messages) - MOST)), user_messages[-MOST:]
    places: dict[int, list[int]] = {}
    heard = -1
    for at, message in enumerate(known):
        if message["role"] == "assistant" and message.get("content"):
            heard = at
        elif (owner := owner_of(message, user_messages)) is not None:
            places.setdefault(owner, []).append(at)
    before = next((owner for owner in range(first - 1, -1, -1) if owner in places), None)
    if first < len(user_messages) and first not in places and before is not None and places[before][-1] > heard:
        if places[before][0] > heard:  # one message of the memory has the words of both
            first = before
        else:  # it began before the one before it was complete
            places[first] = [places[before].pop()]
    put: dict[int, list[Any]] = {}
    place = len(known)
    for owner in range(first, len(user_messages)):
        if owner in places:
            place = places[owner][-1]
        elif place < heard:
            place = len(known)
        put.setdefault(place, []).append(user_messages[owner].message)
    replaced = {at for owner in places if owner >= first for at in places[owner]}
    made: list[Any] = []
    for at, message in enumerate(known):
        if at not in replaced:
            made.append(message)
        made += put.get(at, ())
    return made, put.get(len(known), [])


def owner_of(message: JsonObject, user_messages: Sequence[UserMessage]) -> int | None:
    """Return the index of the framework's message for one of the memory's: of those that fit, the shortest in time."""
    at = message.get("timestamp")
    if message["role"] != "user" or at is None:
        return None
    fitting = [number for number, one in enumerate(user_messages) if one.since < at <= one.until]
    return max(fitting, key=lambda number: user_messages[number].since, default=None)
