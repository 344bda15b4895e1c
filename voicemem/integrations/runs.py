"""The way back: the messages of one request to the LLM, made of what was heard.

They are LangChain's, or look like those: of a `type` ("human", "ai", "tool", "system"), with `content`, `id` and, of an
"ai", `tool_calls`.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from voicemem.protocol.types import JsonObject


def rebuilt(own: Sequence[Any], known: Sequence[Any], opening: Set[str], *, user_is_recorded: bool) -> list[Any]:
    """Return what the program put there before the call, then the memory, then what the agent is now to answer.

    The latter stays as the agent has it, with whatever parts the LLM wants to see again in its own tool calls.
    """
    start = run_start(own)
    run = list(own[start:])
    head = [one for one in own[:start] if one.type == "system" or one.id in opening]
    answered = max((at + 1 for at, one in enumerate(own) if is_answer(one)), default=0)
    asked = sum(one.type == "human" for one in own[answered:])
    place = place_of_run(run, known, 1 if user_is_recorded else asked)
    if place < len(known) and run and is_longer(known[place], run[0]):
        run[0] = known[place]
    return [*head, *known[:place], *run]


def instructions_apart(known: Sequence[JsonObject]) -> tuple[list[str], list[JsonObject]]:
    """The texts of the memory's system messages, and its other messages."""
    texts = [str(one["content"]) for one in known if one["role"] == "system"]
    return texts, [one for one in known if one["role"] != "system"]


def followed_by(content: Any, texts: Sequence[str]) -> Any:
    """The content of a program's system message, followed by the memory's texts: many models take one such message."""
    if isinstance(content, str) or not content:
        return "\n\n".join(text for text in (content, *texts) if text)
    return [*content, *({"type": "text", "text": text} for text in texts)]


def place_of_run(run: Sequence[Any], known: Sequence[Any], asked: int) -> int:
    """Return how much of the memory was before this run: the rest of it is the run itself, as far as it is recorded.

    The user's words are found by their text, or, if the memory has another, as the newest of `asked` unanswered ones.
    """
    said = {words(one) for one in run if one.type == "ai"} | {""}
    answers = (at for at in range(len(known) - 1, -1, -1) if known[at].type == "ai" and words(known[at]) not in said)
    since = range(next(answers, -1) + 1, len(known))
    if run and run[0].type == "human":
        questions = [at for at in since if known[at].type == "human"]
        same = [at for at in questions if words(known[at]).endswith(words(run[0]))]
        if same or len(questions) >= asked:
            return (same or questions)[-1]
    calls = called(*run)
    place = next((at for at in since if calls & called(known[at])), len(known))
    while place > since.start and known[place - 1].type == "ai":  # what it said before it called the tool
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
    """The text of a message, without regard to case and white space."""
    return " ".join(text_of(message.content).casefold().split())


def is_longer(known: Any, own: Any) -> bool:
    """Return whether the memory has these words after others of the user, and they are nothing but text."""
    if not (known.type == own.type == "human" and isinstance(own.content, str)):
        return False
    return words(known) != words(own) and words(known).endswith(words(own))


def text_of(content: Any) -> str:
    """The text of a message's content; blocks without text, such as reasoning, are left out."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(
        block if isinstance(block, str) else block["text"]
        for block in blocks
        if isinstance(block, str) or (block.get("type") == "text" and isinstance(block.get("text"), str))
    )


def is_answer(message: Any) -> bool:
    """Return whether the agent had finished with this message: it calls no tool."""
    return message.type == "ai" and not message.tool_calls


def run_start(messages: Sequence[Any]) -> int:
    """Return where the agent's task begins: at the user's newest message, or behind the last answer."""
    said = (at for at, one in enumerate(messages) if one.type == "human")
    answered = (at + 1 for at, one in enumerate(messages) if is_answer(one))
    return max([0, *said, *answered])
