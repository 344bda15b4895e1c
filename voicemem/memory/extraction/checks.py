"""The check of an LLM's answer: which memories are kept, and why the others are refused.

An LLM may invent things, be misled by a caller, or mistake a question for a fact. So its answer is not trusted: a
memory must cite lines of the prompt that say it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import Struct, structs

from voicemem.errors import LlmFailed
from voicemem.memory.extraction.prompts import MAX_MEMORIES, Line, Prompt, one_line
from voicemem.memory.extraction.said import gives_orders, is_greeting, is_question, stems_of, tells_secret
from voicemem.protocol.arguments import fit
from voicemem.protocol.codec import has_too_many_values
from voicemem.protocol.memories import MAX_MEMORY_BYTES, MAX_TOPICS, TIME_PATTERN, TOPIC_PATTERN, GivenKind, time_ms
from voicemem.redaction.texts import Rules, redact_value

UNUSABLE = "unusable_answer"
BEGINS = re.compile(r'\{\s*"(?:memories|analysis)"')
"""The beginning of an answer within prose or a code fence."""
FENCED = re.compile(r"```(?:json\w*)?[ \t]*\n(.*?)(?:```|\Z)", re.IGNORECASE | re.DOTALL)
TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+")|,(?=\s*[}\]])', re.DOTALL)
MAX_TRIES = 8
MAX_ANSWER = 256 * 1024
Refusal = Literal[
    "malformed",
    "wrong_kind",
    "no_lines",
    "unknown_lines",
    "unknown_memories",
    "too_long",
    "said_by_agent",
    "question",
    "greeting",
    "instruction",
    "secret",
    "unsupported",
    "repeated",
    "too_many",
    "breaks_schema",
    "not_said",
    "said_by_caller",
    "contradicted",
]
"""Why a memory, or a value of an analysis, is refused; docs/extraction.md explains each."""
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)
HIGHEST, DEFAULT_CONFIDENCE, UNCERTAIN = 0.9, 0.8, 0.7
"""The highest confidence, the one of a memory without any, and the factor if it is not certain that the lines were
heard so."""


class DraftedMemory(Struct, frozen=True, rename={"lines": "from"}):
    """A memory as an LLM wrote it."""

    text: str
    kind: str
    lines: list[int]
    topics: list[str] = []
    entities: list[str] = []
    event_at: str | None = None
    confidence: float | None = None
    supersedes: list[str] = []


class Answer(Struct, frozen=True):
    """The memories in an answer, each of which is read by itself."""

    memories: list[Any]


A = TypeVar("A", bound=Struct)


def read_answer(text: str) -> list[DraftedMemory | None]:
    """Return the memories of an answer; None for a malformed one. Raises `LlmFailed`.

    LLMs without schemas put prose or a code fence around the JSON, or leave out the object around the list.
    """
    answer = decode_answer(text, Answer)
    if answer is None or len(answer.memories) > 60:  # so many are no answer
        raise LlmFailed(UNUSABLE)
    drafts: list[DraftedMemory | None] = []
    for one in answer.memories:
        try:
            drafts.append(msgspec.convert(fit(one, DraftedMemory), DraftedMemory))
        except msgspec.ValidationError:
            drafts.append(None)
    return drafts


def decode_answer(text: str, kind: type[A]) -> A | None:
    """Return the last complete answer in a text, which may follow drafts; None if there is none or it is too large."""
    if len(text) > MAX_ANSWER or has_too_many_values(text.encode(errors="replace")):
        return None
    decoder, answer = json.JSONDecoder(), None
    for begin in [match.start() for match in BEGINS.finditer(text)][-MAX_TRIES:]:
        with suppress(ValueError, RecursionError):
            rest = without_trailing_commas(text[begin:])
            answer = msgspec.json.decode(rest[: decoder.raw_decode(rest)[1]], type=kind)
    if answer is not None:
        return answer
    for block in (text, text[text.find("[") : text.rfind("]") + 1], *FENCED.findall(text)[-MAX_TRIES:]):
        with suppress(ValueError, RecursionError):
            value = msgspec.json.decode(without_trailing_commas(block), type=kind | list[dict[str, Any]])
            if isinstance(value, kind):
                answer = value
            elif isinstance(value, list) and value and kind is Answer:  # memories without the object around them
                answer = kind([*value])
    return answer


def without_trailing_commas(text: str) -> str:
    """Return JSON without commas before closing brackets; its strings stay."""
    return TRAILING_COMMA.sub(lambda match: match[1] or "", text)


class ExtractedMemory(NamedTuple):
    """A memory that may be kept, with the lines that say it."""

    text: str
    kind: GivenKind
    lines: tuple[Line, ...]
    topics: tuple[str, ...]
    entities: tuple[str, ...]
    event_at: str | None
    confidence: float
    supersedes: tuple[str, ...]

    @property
    def said_ms(self) -> int:
        """The time at which its last line began, Unix ms."""
        return max(line.said_ms for line in self.lines)


class Checked(NamedTuple):
    """The memories kept from an answer, and the numbers of refused ones by reason."""

    memories: tuple[ExtractedMemory, ...]
    refused: Counter[Refusal]


def check_answer(prompt: Prompt, drafts: Iterable[DraftedMemory | None], rules: Rules | None = None) -> Checked:
    """Keep the valid memories of an answer to this prompt, redacted by these rules."""
    kept: list[ExtractedMemory] = []
    refused: Counter[Refusal] = Counter()
    known: set[str] = set()
    for draft in drafts:
        memory = check_memory(prompt, draft if rules is None or draft is None else redacted(draft, rules))
        if isinstance(memory, str):
            refused[memory] += 1
        elif memory.text.casefold() in known:
            refused["repeated"] += 1
        elif len(kept) == (1 if prompt.kinds == ("summary",) else MAX_MEMORIES):
            refused["too_many"] += 1
        else:
            known.add(memory.text.casefold())
            kept.append(memory)
    return Checked(tuple(kept), refused)


def check_memory(prompt: Prompt, draft: DraftedMemory | None) -> ExtractedMemory | Refusal:
    if draft is None or not (draft.confidence is None or 0 <= draft.confidence <= 1):
        return "malformed"
    text = one_line(draft.text)
    if draft.kind not in prompt.kinds:
        return "wrong_kind"
    if not text or len(text.encode(errors="replace")) > MAX_MEMORY_BYTES:
        return "too_long" if text else "malformed"
    if not draft.lines:
        return "no_lines"
    shown = {line.number: line for line in prompt.section.lines}
    if not shown.keys() >= set(draft.lines):
        return "unknown_lines"
    if not prompt.known.keys() >= set(draft.supersedes):
        return "unknown_memories"
    lines = tuple(shown[number] for number in sorted(set(draft.lines)))
    refusal = refuse_lines(text, draft.kind, lines, prompt.orders)
    if refusal is not None:
        return refusal
    return ExtractedMemory(
        text,
        draft.kind,
        lines,
        labels(draft.topics),
        labels(draft.entities),
        day_or_none(draft.event_at),
        confidence_of(draft.confidence, lines),
        tuple(dict.fromkeys(prompt.known[name] for name in draft.supersedes)),
    )


def redacted(draft: DraftedMemory, rules: Rules) -> DraftedMemory:
    """Return the draft, redacted once more, since an LLM may join words that were said in pieces."""
    text, topics, entities = redact_value([draft.text, draft.topics, draft.entities], rules)
    return structs.replace(draft, text=text, topics=topics, entities=entities)


def refuse_lines(text: str, kind: str, cited: Sequence[Line], orders: Mapping[int, str]) -> Refusal | None:
    """Return why a text cannot be a memory, or why the lines that it cites do not say it; None if they do.

    Words that only a line with instructions says (`orders`, by number) cannot be in a memory, whichever lines it cites.
    """
    if gives_orders(text):
        return "instruction"
    if tells_secret(text):
        return "secret"
    if kind != "summary" and is_greeting(text):
        return "greeting"
    if kind != "summary" and is_question(text):
        return "question"
    heard = " ".join(line.text for line in cited)
    if any(line.number in orders for line in cited):
        return "instruction"
    if orders and (stems_of(text) & stems_of(" ".join(orders.values()))) - stems_of(heard):
        return "instruction"
    if kind == "summary":
        return None
    # For a memory about the caller, the caller must have said something besides questions and greetings.
    of_caller = kind in ("fact", "preference")
    own = [line.text for line in cited if line.is_callers or not of_caller]
    if not own:
        return "said_by_agent"
    if all(map(is_greeting, own)):
        return "greeting"
    if of_caller and all(is_question(text) or is_greeting(text) for text in own):
        return "question"
    return None if stems_of(text) & stems_of(heard) else "unsupported"


def confidence_of(stated: float | None, lines: Sequence[Line]) -> float:
    confidence = min(DEFAULT_CONFIDENCE if stated is None else stated, HIGHEST)
    return round(confidence if any(line.is_certain for line in lines) else confidence * UNCERTAIN, 3)


def labels(texts: Iterable[str]) -> tuple[str, ...]:
    """Return topics or entities, each once, without invalid ones: with commas, empty or too long."""
    topics = dict.fromkeys(one_line(text) for text in texts)
    return tuple(text for text in topics if re.match(TOPIC_PATTERN, text))[:MAX_TOPICS]


def day_or_none(text: str | None) -> str | None:
    """Return a day or an instant (ISO 8601); None for any other text, and for a day that does not exist."""
    with suppress(ValueError):
        if text is not None and re.match(TIME_PATTERN, text):
            time_ms(text)
            return text
    return None
