"""The check of an analysis: only values that lines of the call show are kept.

An operator's schema defines the values. An LLM may invent them, take the agent's word for the caller's, or believe a
caller who says "the outcome is: sold". So each value cites lines, and words in them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from voicemem.config.context import SAID_BY, SPEAKERS
from voicemem.errors import LlmFailed
from voicemem.memory.extraction import said
from voicemem.memory.extraction.checks import UNUSABLE, Refusal, decode_answer
from voicemem.memory.extraction.prompts import Line, Prompt, one_line
from voicemem.protocol.memories import MAX_EVIDENCE, MAX_MEMORY_BYTES, AnalysedValue, Analysis, ShownBy, time_ms
from voicemem.protocol.types import MAX_INTEGER, JsonObject
from voicemem.redaction.texts import Rules, redact_value
from voicemem.search.passages import DAY_MS
from voicemem.search.words import PAIRED
from voicemem.transcript.messages import Role

CONTRADICTED = object()
"""The value of a field that an answer has twice, with different values."""
ASKED = re.compile(r"[^.!。！]*?[?？]\s*(.+)", re.DOTALL)
"""The rest of a question; the group is the text after it."""
SHORT = 3
"""A text of so few words, such as a name, must be in one line; a longer one may be spread over several."""
CHOICES = ("enum", "const")
"""Keywords that list values; the LLM judges which of them fits."""


class Citation(Struct, frozen=True):
    line: int
    words: str | None = None


class DraftedValue(Struct, frozen=True):
    """A value as an LLM wrote it."""

    value: Any = None
    shown_by: list[Citation] = []


class AnalysisAnswer(Struct, frozen=True):
    """The analysis in an answer."""

    analysis: Raw


class CheckedAnalysis(NamedTuple):
    """The values kept from an answer, and the numbers of refused ones by reason."""

    values: Analysis
    refused: Counter[Refusal]


def read_analysis(text: str) -> dict[str, DraftedValue | Refusal]:
    """Return the values of an answer that are not null, or why one cannot be read. Raises `LlmFailed`."""
    answer = decode_answer(text, AnalysisAnswer)
    try:
        fields = None if answer is None else json.loads(bytes(answer.analysis), object_pairs_hook=mark_contradictions)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise LlmFailed(UNUSABLE)
    drafts: dict[str, DraftedValue | Refusal] = {}
    for name, field in fields.items():
        draft = draft_of(field)
        if isinstance(draft, str) or draft.value is not None:
            drafts[name] = draft
    return drafts


def mark_contradictions(pairs: Sequence[tuple[str, Any]]) -> JsonObject:
    """Return an object in which a name with two different values has `CONTRADICTED`."""
    values: JsonObject = {}
    for name, value in pairs:
        values[name] = value if values.get(name, value) == value else CONTRADICTED
    return values


def draft_of(field: Any) -> DraftedValue | Refusal:
    if field is CONTRADICTED or (isinstance(field, dict) and field.get("value") is CONTRADICTED):
        return "contradicted"
    if field is None:
        return DraftedValue()
    try:
        return msgspec.convert(field, DraftedValue)
    except msgspec.ValidationError:
        return "malformed"


def check_analysis(
    prompt: Prompt, drafts: Mapping[str, DraftedValue | Refusal], rules: Rules | None = None
) -> CheckedAnalysis:
    """Keep the values that lines of this prompt show, redacted by these rules. They must fit the schema already."""
    assert prompt.schema is not None
    kept: Analysis = {}
    refused: Counter[Refusal] = Counter()
    for name, draft in drafts.items():
        schema = prompt.schema["properties"].get(name)
        if schema is None:
            refused["wrong_kind"] += 1
            continue
        checked = draft if isinstance(draft, str) else check_value(prompt, Field(name, schema), draft, rules)
        if isinstance(checked, str):
            refused[checked] += 1
        else:
            kept[name] = checked
    return CheckedAnalysis(kept, refused)


class Field(NamedTuple):
    """A property of the schema."""

    name: str
    schema: Any

    @property
    def said_by(self) -> str:
        """The speaker whose words must show the value."""
        return self.schema.get(SAID_BY, SPEAKERS[0]) if isinstance(self.schema, dict) else SPEAKERS[0]

    @property
    def choices(self) -> list[Any]:
        """All values that the schema lists."""
        choices: list[Any] = []
        waiting = [self.schema]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                choices += part["enum"] if isinstance(part.get("enum"), list) else []
                choices += [part["const"]] if "const" in part else []
                waiting += [value for keyword, value in part.items() if keyword not in CHOICES]
            elif isinstance(part, list):
                waiting += part
        return choices


def check_value(prompt: Prompt, field: Field, draft: DraftedValue, rules: Rules | None) -> AnalysedValue | Refusal:
    if any(leaf is CONTRADICTED for leaf in leaves_of(draft.value)):
        return "contradicted"
    value = cleaned(draft.value if rules is None else redact_value(draft.value, rules))
    leaves = list(leaves_of(value))
    if any(isinstance(leaf, int) and abs(leaf) > MAX_INTEGER for leaf in leaves) or value in ("", [], {}):
        return "malformed"
    if len(msgspec.json.encode(value)) > MAX_MEMORY_BYTES:
        return "too_long"
    if not draft.shown_by:
        return "no_lines"
    lines = {line.number: line for line in prompt.section.lines}
    if not lines.keys() >= {one.line for one in draft.shown_by}:
        return "unknown_lines"
    cited = [lines[number] for number in sorted({one.line for one in draft.shown_by})]
    if any(line.number in prompt.orders for line in cited):
        return "instruction"
    shown = [one for cite in draft.shown_by if (one := words_in(lines[cite.line], cite.words)) is not None]
    if len(shown) < len(draft.shown_by):
        return "not_said"
    refusal = refuse_value(prompt, field, leaves, cited, " ".join(one.words for one in shown))
    quotes = zip(draft.shown_by, shown, strict=True)
    if refusal is None and any(is_denied(lines[cite.line].text, one.words) for cite, one in quotes):
        refusal = None if all(map(denies, leaves)) else "contradicted"
    return AnalysedValue(value, tuple(dict.fromkeys(shown))[:MAX_EVIDENCE]) if refusal is None else refusal


def is_denied(text: str, words: str) -> bool:
    """Return whether words are quoted without their denial: "take it" from "I won't take it", or "Take it? No."."""
    stems, rest = said.stems_of(words), text.partition(words)[2]
    match = ASKED.match(rest)
    return (
        said.takes_back(rest)
        or (match is not None and said.refuses(match[1]))
        or (said.negates(text, stems) and not said.negates(words, stems))
    )


def denies(leaf: Any) -> bool:
    text = readable(leaf)
    return leaf is False or said.negates(text, said.stems_of(text))


def cleaned(value: Any) -> Any:
    """Return a value with each text on one line, without control characters."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {one_line(name): cleaned(item) for name, item in value.items()}
    return value


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the texts, numbers, booleans and nulls of a value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(item)
    else:
        yield value


def words_in(line: Line, words: str | None) -> ShownBy | None:
    """Return the words as the line has them, or the whole line if none are named; None if they are not in it."""
    role: Role = "user" if line.is_callers else "assistant"
    shown = line.text
    if words is not None and (parts := re.findall(r"\w+", words)):
        first, last = (r"\b" if PAIRED.search(edge) is None else "" for edge in (parts[0], parts[-1]))
        match = re.search(first + r"[\W_]+".join(map(re.escape, parts)) + last, line.text, re.IGNORECASE)
        if match is None:
            return None
        shown = match[0]
    return ShownBy(line.turn_id, line.position, role, shown)


def refuse_value(
    prompt: Prompt, field: Field, leaves: Sequence[Any], cited: Sequence[Line], words: str
) -> Refusal | None:
    """Return why these lines, and the words cited from them, do not show a value; None if they do."""
    texts = [leaf for leaf in leaves if isinstance(leaf, str)]
    if any(map(said.gives_orders, texts)):
        return "instruction"
    if any(map(said.tells_secret, texts)):
        return "secret"
    own = [line for line in cited if field.said_by == "anyone" or line.is_callers == (field.said_by == "caller")]
    if not own:
        return "said_by_agent" if field.said_by == "caller" else "said_by_caller"
    if field.said_by != "agent" and all(said.is_greeting(line.text) for line in own):
        return "greeting"
    ordered = said.stems_of(" ".join(prompt.orders.values()))
    heard = said.stems_of(" ".join(line.text for line in cited))
    chosen = " ".join(map(readable, texts))
    if said.stems_of(chosen) & ordered - heard and not said.negates(chosen, ordered):
        return "instruction"
    choices = field.choices
    for leaf in leaves:
        if isinstance(leaf, bool) or leaf in choices:
            refusal = refuse_choice(leaf, field, own, words)
        else:
            refusal = None if leaf is None else refuse_free(leaf, own, cited)
        if refusal is not None:
            return refusal
    return None


def refuse_choice(leaf: Any, field: Field, own: Sequence[Line], words: str) -> Refusal | None:
    """Return why lines do not show a value that the LLM chose: they deny it, say another one, or only ask."""
    text = readable(leaf)
    if leaf is True and all(said.only_refuses(line.text) for line in own):
        return "contradicted"
    stems = set() if isinstance(leaf, bool) else said.stems_of(text)
    naming = [line.text for line in own if stems & said.stems_of(line.text)]
    if naming:
        return "contradicted" if said.negates(text, stems) != all(said.negates(one, stems) for one in naming) else None
    others = {stem for one in field.choices if one != leaf for stem in said.stems_of(readable(one))}
    if stems and others & said.stems_of(words):
        return "contradicted"
    only_asks = field.said_by != "agent" and all(
        said.is_question(line.text) or said.is_greeting(line.text) for line in own
    )
    return "question" if only_asks else None


def refuse_free(leaf: Any, own: Sequence[Line], cited: Sequence[Line]) -> Refusal | None:
    """Return why lines do not show a text or a number: no one says it, or only the wrong speaker, and it is denied."""
    if is_said(leaf, own):
        return None
    if not is_said(leaf, cited):
        return "unsupported"
    return "contradicted" if any(said.refuses(line.text) for line in own) else None


def readable(value: Any) -> str:
    """Return a value as words: `not_sold` and `callBack` are two each."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", text)


def is_said(leaf: Any, cited: Sequence[Line]) -> bool:
    """Return whether lines say a free text or a number: its numbers and more than half of its words, or its day."""
    heard = " ".join(line.text for line in cited)
    if not isinstance(leaf, str):
        return said.says_number(heard, f"{leaf:.15g}")
    with suppress(ValueError):
        day = time_ms(leaf) // DAY_MS
        return any(said.says_day(line.text, line.said_ms // DAY_MS, day) for line in cited)
    stems = said.stems_of(leaf)
    if len(stems) <= SHORT and len(cited) > 1:
        return any(is_said(leaf, [line]) for line in cited)
    return 2 * len(stems & (said.stems_of(heard) | set(re.findall(r"\d+", heard)))) > len(stems) and all(
        said.says_number(heard, number) for number in re.findall(r"\d+", leaf)
    )
