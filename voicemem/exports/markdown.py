"""Markdown (CommonMark, with GitHub's strikethrough): a call to read, with unheard text struck out."""

import re
from collections.abc import Iterator

from voicemem.exports.call import Call, Utterance, date_and_clock, length, one_line
from voicemem.protocol.memories import outcome_of
from voicemem.transcript.messages import ToolUse

MARKUP = re.compile(r"([\\`*_{}\[\]<>&~|#$^:.@])(?:(?<![:.@])|(?<=:)(?=/)|(?<=[wW]{3}\.)|(?<=\w@)(?=\w))")
"""Characters that could be markup, HTML, or a link; the character set comes first, so that other text is fast."""
LINE_START = re.compile(r"([-+=]|\d{1,9}(?=[.)]))")
"""Text at the start of a line that begins a list, a rule or a heading."""
LEGEND = "*Struck out: the agent had it, and nobody heard it.*"
SHORT_S = 0.95
"""Estimates up to this show tenths of a second, as on the page."""
ESTIMATES = "*Where it says “about”, it is an estimate where the caller stopped hearing the agent.*"


def markdown(call: Call) -> Iterator[str]:
    """Yield a heading, the facts, and a paragraph for each utterance."""
    yield f"# {escaped(call.facts.name or call.facts.session_id)}"
    for block in blocks(call):
        if block:
            yield f"\n\n{block}"
    yield "\n"


def blocks(call: Call) -> Iterator[str]:
    zero, is_struck_out, is_estimated = call.start_ms, False, False
    yield from ("\n".join(facts(call)), "---")
    if call.summary is not None:
        yield from (f"**Summary of the first {call.summary.messages} messages**", escaped(call.summary.text))
    for one in call.in_order():
        if isinstance(one, ToolUse):
            yield tool_block(one)
        else:
            yield from utterance_blocks(one, zero)
            is_struck_out = is_struck_out or bool(one.unheard.strip())
            is_estimated = is_estimated or one.is_estimated
    if not call.utterances:
        yield "*Nothing was said.*"
    if is_struck_out or is_estimated:
        yield from ("---", " ".join([LEGEND] * is_struck_out + [ESTIMATES] * is_estimated))


def facts(call: Call) -> Iterator[str]:
    known = call.facts
    day, clock = date_and_clock(call.start_ms)
    yield f"- **Session** {code(known.session_id)}"
    if known.user_id is not None:
        yield f"- **User** {code(known.user_id)}"
    yield f"- **Began** {day} {clock} UTC"
    yield f"- **Lasted** {length(call.end_ms - call.start_ms)}"
    reason = f" ({escaped(known.reason)})" if known.reason else ""
    yield f"- **State** {escaped(known.state)}{reason}"
    if known.recording is not None:
        yield f"- **Recording** {code(known.recording)}"
    if (outcome := outcome_of(call.analysis)) is not None:
        yield f"- **Outcome** {escaped(outcome)}"
    if known.labels:
        labels = ", ".join(code(f"{name}: {value}") for name, value in sorted(known.labels.items()))
        yield f"- **Labels** {labels}"


def utterance_blocks(one: Utterance, zero: int) -> list[str]:
    """Return the blocks of an utterance: the speaker and the time since `zero`, then the heard and the unheard text."""
    head = f"**{escaped(one.speaker)}** · {length(one.start_ms - zero)}"
    if one.reply_after.ms is not None:
        about = "about " if one.reply_after.by == "estimate" else ""
        head += f" · *after {about}{one.reply_after.ms / 1000:.1f} s*"
    if one.is_cut:
        head += f" · *interrupted{cut_after(one)}*"
    heard, unheard = escaped(one.heard), escaped(one.unheard)
    if not unheard:
        return [head, heard or "*(nothing)*"]
    return [head, f"{heard}{gap(one)}~~{unheard}~~" if heard else f"~~{unheard}~~"]


def cut_after(one: Utterance) -> str:
    """Return the words for how long it was heard, if that is known."""
    if one.end_ms is None:
        return " at about this point" if one.is_estimated else ""
    seconds = (one.end_ms - one.start_ms) / 1000
    if not one.is_estimated:
        return f" after {seconds:.1f} s"
    return f" after about {round(max(seconds, 0.1), 1 if seconds < SHORT_S else None)} s"


def gap(one: Utterance) -> str:
    """Return an empty text if a word was cut in two, else a space, which strikethrough next to a mark needs."""
    left, right = one_line(one.heard)[-1:], one_line(one.unheard)[:1]
    is_split = not one.heard[-1:].isspace() and not one.unheard[:1].isspace() and left.isalnum() and right.isalnum()
    return "" if is_split else " "


def tool_block(tool: ToolUse) -> str:
    called = code(f"{tool.name}({tool.arguments_json.decode()})")
    result = f" → {code(tool.result_json.decode())}" if tool.answered else " · *no result*"
    return f"*Tool* {called}{result}"


def escaped(text: str) -> str:
    """Return a text on one line that Markdown shows unchanged."""
    marked = MARKUP.sub(r"\\\1", one_line(text))
    start = LINE_START.match(marked)
    if start is None:
        return marked
    end = start.end()
    return f"{marked[:end]}\\{marked[end:]}" if start[1].isdigit() else f"\\{marked}"


def code(text: str) -> str:
    """Return a code span, which shows a text unchanged between more backticks than any run in it has."""
    line = one_line(text) or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"
