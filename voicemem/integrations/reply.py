"""One reply on its way from the LLM through the TTS to the caller's ear."""

from __future__ import annotations

from voicemem.integrations.spoken_text import MAX_CHARS, SpokenText, SpokenWord, VoiceRate, place_of
from voicemem.protocol.types import MAX_INTEGER, JsonObject


class Reply:
    """What is known of one reply. Positions are ms of its audio."""

    def __init__(self, item: str, rate: VoiceRate) -> None:
        self.item = item
        self.text = ""
        """What the LLM generated, up to the bound of `SpokenText`."""
        self.spoken = SpokenText(rate)
        self.has_word_times = False
        self.position_ms: float | None = None
        """How far playback has come; None before it has begun."""
        self.reported_ms = float("-inf")
        """The last position that was sent."""
        self.complete = False
        """Whether the LLM has finished."""
        self.is_cut = False
        self.cut_ms: float | None = None
        """Where it was cut last, if that is known."""
        self.cut_at = -MAX_INTEGER
        self.resumed_at = -MAX_INTEGER
        self.over = False
        """Whether it was played to its end, or withdrawn."""

    @property
    def was_heard(self) -> bool:
        return bool(self.position_ms)

    @property
    def whole_ms(self) -> float | None:
        """The length of its audio, once that is known."""
        closed = self.spoken.closed_ms
        return closed if self.complete and closed and not self.spoken.is_open else None

    def said(self, text: str) -> None:
        self.text += text[: MAX_CHARS - len(self.text)]

    def close(self) -> None:
        """It is over, and its texts are not needed any more."""
        self.over = True
        self.text, self.spoken = "", SpokenText(self.spoken.rate)

    def close_span(self, text: str | None, audio_ms: float | None) -> list[SpokenWord]:
        if text is None:
            self.voice_what_was_said()
        return self.spoken.close_span(text, audio_ms)

    def voice_what_was_said(self) -> None:
        """Where nothing says what the TTS was given, it was given what was said."""
        if not self.spoken.text:
            self.spoken.voice(self.text)

    def evidence(self, position_ms: float | None, heard_text: str | None) -> JsonObject:
        """What an interruption at a position says; `heard_text` is what somebody else thinks that was heard."""
        if position_ms is None:
            return {"heard_text": heard_text, "estimated": True} if heard_text else {}
        if position_ms <= 0:
            return {"heard_text": "", "audio_end_ms": 0}
        stated: JsonObject = {"audio_end_ms": round(position_ms)}
        if self.has_word_times:
            return stated
        self.voice_what_was_said()
        heard = self.spoken.heard_at(position_ms)
        if heard_text and (not self.spoken.text or (heard is not None and not self.spoken.rate.is_known)):
            return {**stated, "heard_text": heard_text, "estimated": True}
        if heard is None:
            return stated
        return {**stated, "heard_text": self.text[: place_of(heard, self.text)], "estimated": True}
