"""What a list of events says about a call: its replies, and which of them each event is about (rule 5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from .replies import FAILURE, ONLY_HEARD, Reply, only_heard, replies_of
from .rows import Event, Key


class Call:
    """The events of a call, and what follows from all of them together."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = list(events)

    @cached_property
    def with_cancelled(self) -> list[Reply]:
        """All replies, judged as if none were cancelled, with those that only an interrupt knows."""
        real = replies_of(self.events)
        more = [one for one in self.events if makes_a_message(one)]
        known = real + self.heard_by_item(real, more) + self.heard_unnamed(more)
        known += self.heard_by_turn(known, more)
        return sorted(known, key=lambda one: one.order)

    def heard_by_item(self, real: list[Reply], more: list[Event]) -> list[Reply]:
        """Events: replies that an interrupt with `more` names by an item of which no `llm.*` came."""
        mine = [one for one in more if one.item is not None and meant(one, real) is None]
        items = dict.fromkeys(one.item for one in mine)
        return [self.heard([one for one in mine if one.item == item], ("item", item), item) for item in items]

    def heard_unnamed(self, more: list[Event]) -> list[Reply]:
        """Events: replies that an unnamed interrupt with `more` found nothing playing for."""
        return [self.heard([one], one.reply, None) for one in more if one.reply == ("heard", one.position)]

    def heard_by_turn(self, known: list[Reply], more: list[Event]) -> list[Reply]:
        """Events: replies that an interrupt with `more` names by a turn that has none."""
        mine = [one for one in more if one.item is None and not one.unnamed and meant(one, known) is None]
        turns = dict.fromkeys(one.turn for one in mine)
        return [self.heard([one for one in mine if one.turn == turn], ("turn", turn), None) for turn in turns]

    def heard(self, interrupts: list[Event], key: Key | None, item: str | None) -> Reply:
        """Events: a message in the turn that its first interrupt names, or had at its arrival."""
        turn = interrupts[0].turn
        assert key is not None
        assert turn is not None
        return only_heard(interrupts, key, turn, item)

    @cached_property
    def cancelled(self) -> set[Key]:
        """`llm.cancel`: the replies that never existed; void for those that are known to have been played."""
        keys: set[Key] = set()
        for one in self.events:
            target = self.cancel_target(one) if one.type == "llm.cancel" else None
            if target is not None and not self.was_played(target):
                keys.add(target)
        return keys

    def cancel_target(self, event: Event) -> Key | None:
        """`llm.cancel`: by item, or with a turn alone its newest reply begun by `ts`, and none where none had begun."""
        generated = [one for one in self.with_cancelled if one.kind not in (FAILURE, ONLY_HEARD)]
        if event.item is not None:
            target = newest_by([one for one in generated if one.item == event.item], event.ts)
            return target.key if target else ("item", event.item)
        begun = [one for one in generated if one.turn == event.turn and one.begin <= event.ts]
        return begun[-1].key if begun else None

    def was_played(self, key: Key) -> bool:
        """`llm.cancel`: void when playback above 0, a done, or an interrupt with heard text is known of that reply."""
        for one in self.events:
            if one.type in ("tts", "interrupt") and (target := meant(one, self.with_cancelled)):
                played = one.fields.get("heard_text") or one.fields.get("audio_ms", 0) > 0 or one.fields.get("done")
                if target.key == key and played:
                    return True
        return False

    @cached_property
    def replies(self) -> list[Reply]:
        """The replies that exist, in the order of rule 7."""
        return [one for one in self.with_cancelled if one.key not in self.cancelled]

    def about(self, reply: Reply, kind: str) -> list[Event]:
        """Rule 5: the interrupts or the playback of a reply, as they arrived."""
        mine = (one for one in self.events if one.type == kind)
        return [one for one in mine if (target := meant(one, self.replies)) and target.key == reply.key]

    @cached_property
    def close(self) -> Event | None:
        """Rule 8: the server's close; a reopening undoes it."""
        last = [one for one in self.events if one.type in ("session.closed", "session.reopened")][-1:]
        return last[0] if last and last[0].type == "session.closed" else None


def makes_a_message(event: Event) -> bool:
    """Events: whether an interrupt can make a message by itself."""
    return event.type == "interrupt" and bool(event.fields.get("more") and event.fields.get("heard_text"))


def meant(event: Event, replies: Sequence[Reply]) -> Reply | None:
    """Rule 5: the reply that an interrupt, a playback or a resume is about."""
    if event.unnamed:
        return next((one for one in replies if one.key == event.reply), None)
    if event.item is None:
        return newest_by([one for one in replies if one.turn == event.turn], event.ts)
    same = [one for one in replies if one.item == event.item]
    failures = [one for one in same if one.kind == FAILURE and one.begin <= event.ts]
    return newest_by(failures or [one for one in same if one.kind != FAILURE], event.ts)


def newest_by(replies: list[Reply], ts: int) -> Reply | None:
    """Rule 5: the newest reply begun by `ts`, else the first to come."""
    ordered = sorted(replies, key=lambda one: one.order)
    begun = [one for one in ordered if one.begin <= ts]
    return begun[-1] if begun else next(iter(ordered), None)
