"""User speech: rule 1 of the fold, and the flow of utterances without turn numbers."""

from __future__ import annotations

import pytest

from tests.support.events import EventLike, delta, done, final, interrupt, partial, resume, tts, typed, word
from tests.support.transcripts import closed, messages_after, only_message, texts
from voicemem.protocol.types import JsonObject


def said(*given: EventLike, unfinished: bool = False) -> list[tuple[int, str | None, str]]:
    """Turn, user and text of each user message."""
    memory = messages_after(*given, unfinished=unfinished)
    users = [one for one in memory if one["role"] == "user"]
    return [(one["turn_id"], one["metadata"].get("user"), one["content"]) for one in users]


def test_finals_of_a_user_in_a_turn_are_one_message() -> None:
    """There is one message per turn and user."""
    assert said(final(1, "One.", user="ann"), final(1, "Two.", user="ann")) == [(1, "ann", "One. Two.")]


def test_users_of_a_turn_have_their_own_messages() -> None:
    """Two users who speak in one turn are two messages."""
    assert said(final(1, "Me!", user="ann"), final(1, "No, me!", user="bob")) == [
        (1, "ann", "Me!"),
        (1, "bob", "No, me!"),
    ]


def test_turns_of_a_user_have_their_own_messages() -> None:
    """What one user says in two turns is two messages."""
    assert said(final(1, "One.", user="ann"), final(2, "Two.", user="ann")) == [(1, "ann", "One."), (2, "ann", "Two.")]


def test_speech_is_a_user_message_of_source_asr() -> None:
    """A message of speech says its role, turn, begin and source, and nothing that was not said."""
    expected = {"role": "user", "content": "Hi.", "turn_id": 3, "timestamp": 70, "metadata": {"source": "asr"}}
    assert expected == only_message(final(3, "Hi.", 70))


def test_speech_enters_with_its_first_final() -> None:
    """Partials alone are not in the history."""
    assert texts(partial(1, "Hel"), partial(1, "Hello")) == []
    assert texts(partial(1, "Hel"), partial(1, "Hello"), final(1, "Hello.")) == ["Hello."]


def test_speech_shows_its_finals_while_another_segment_is_open() -> None:
    """A segment without final is not in the history, even beside one that has it."""
    call = [final(1, "One.", segment=0), partial(1, "Two", segment=1)]
    assert texts(*call) == ["One."]
    assert texts(*call, unfinished=True) == ["One. Two"]


def test_partial_replaces_the_partial_of_its_segment() -> None:
    """The newest partial of a segment is its text; those of other segments stay."""
    call = [partial(1, "Won", segment=0), partial(1, "Two", segment=1), partial(1, "One", segment=0)]
    assert texts(*call, unfinished=True) == ["One Two"]


def test_final_replaces_what_its_segment_said() -> None:
    """A later final of a segment corrects an earlier one."""
    assert texts(final(1, "Ice cream.", segment=0), final(1, "I scream.", segment=0)) == ["I scream."]


def test_late_partial_does_not_replace_a_final() -> None:
    """A partial replaces partials only."""
    call = [final(1, "Hello there.", segment=0), partial(1, "Hell", segment=0)]
    assert texts(*call) == ["Hello there."]
    assert texts(*call, unfinished=True) == ["Hello there."]


def test_empty_final_withdraws_a_segment() -> None:
    """A final without text takes back what the segment said."""
    assert texts(final(1, "One.", segment=0), final(1, "Hm.", segment=1), final(1, "", segment=1)) == ["One."]


def test_empty_final_withdraws_a_whole_utterance() -> None:
    """An utterance whose only segment is withdrawn is no message, even at the close."""
    assert texts(partial(1, "Hm", segment=0), final(1, "Hm.", segment=0), final(1, "", segment=0), closed(9000)) == []


def test_empty_final_withdraws_the_open_partial() -> None:
    """Without keys, an empty final takes back the partial that it closes."""
    assert texts(partial(1, "Hm"), final(1, ""), closed(9000)) == []


def test_segments_are_joined_by_one_space() -> None:
    """White space around segments does not add up."""
    assert texts(final(1, "One. "), final(1, " Two."), final(1, "Three.")) == ["One. Two. Three."]


def test_segments_are_joined_in_their_order() -> None:
    """The segment's number decides, not its arrival."""
    assert texts(final(1, "Three.", segment=7), final(1, "One.", segment=0), final(1, "Two.", segment=3)) == [
        "One. Two. Three."
    ]


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [
        ("你好，", "我想订一张票。", "你好，我想订一张票。"),
        ("これは", "ペンです", "これはペンです"),
        ("你好", "OK", "你好 OK"),
        ("OK", "你好", "OK 你好"),
        ("안녕", "하세요", "안녕 하세요"),
    ],
)
def test_segments_of_cjk_are_joined_without_space(left: str, right: str, joined: str) -> None:
    """Between two CJK characters of scripts without spaces there is none; beside any other script there is one."""
    assert [joined] == texts(final(1, left), final(1, right))


def test_segments_are_keyed_by_item_and_number() -> None:
    """The same number in another item is another segment."""
    call = [final(1, "One.", item="a", segment=0), final(1, "Two.", item="b", segment=0)]
    assert texts(*call) == ["One. Two."]
    assert texts(*call, final(1, "One!", item="a", segment=0)) == ["One! Two."]


def test_segment_without_item_is_another_than_one_with_it() -> None:
    """A number alone is a key of its own."""
    assert texts(final(1, "One.", segment=0), final(1, "Two.", item="x", segment=0)) == ["One. Two."]


def test_item_alone_means_its_segment_zero() -> None:
    """With an item and no number, the segment is 0."""
    assert texts(final(1, "Hi.", item="a"), final(1, "Hi!", item="a", segment=0)) == ["Hi!"]


def test_number_alone_is_a_key() -> None:
    """With a number and no item, later events of that number are about the same segment."""
    assert texts(partial(1, "H", segment=2), final(1, "Hi.", segment=2), final(1, "Hi!", segment=2)) == ["Hi!"]


def test_final_without_key_closes_its_segment() -> None:
    """Without item and number, what comes after a final is another segment."""
    assert texts(final(1, "Yes."), final(1, "Yes.")) == ["Yes. Yes."]


def test_text_after_a_final_without_key_opens_a_segment() -> None:
    """The next partial after a final does not replace it."""
    assert texts(partial(1, "One"), final(1, "One."), partial(1, "Two"), unfinished=True) == ["One. Two"]


def test_partial_that_the_final_contains_is_dropped() -> None:
    """A partial that was overtaken by its final opens no segment."""
    call = [partial(1, "I want", 10), final(1, "I want some tea.", 20), partial(1, "I want some", 519)]
    assert texts(*call, unfinished=True) == ["I want some tea."]
    assert "partial" not in only_message(*call, closed(9000))["metadata"]


def test_words_that_are_said_again_later_are_kept() -> None:
    """Half a second after a final, a partial that begins it is new speech."""
    call = [final(1, "Yes please.", 20), partial(1, "Yes", 520)]
    assert texts(*call, closed(9000)) == ["Yes please. Yes"]


def test_partial_that_a_keyed_final_contains_is_kept() -> None:
    """Only segments without key drop a partial for what it says."""
    call = [final(1, "Yes, yes.", segment=0), partial(1, "yes", segment=1)]
    assert texts(*call, unfinished=True) == ["Yes, yes. yes"]


def test_event_without_user_updates_whoever_spoke() -> None:
    """A final that names no one settles the partial of the user who was named."""
    assert said(partial(1, "Hell", user="ann"), final(1, "Hello.")) == [(1, "ann", "Hello.")]


def test_event_without_user_updates_a_segment_by_its_key() -> None:
    """Its key says whose segment it is about, when several users speak."""
    assert said(
        partial(1, "One", item="a", user="ann"), final(1, "Two.", item="b", user="bob"), final(1, "One!", item="a")
    ) == [(1, "ann", "One!"), (1, "bob", "Two.")]


def test_first_event_to_name_a_user_gives_the_segment() -> None:
    """A segment that no one owned belongs to the first user who is named for it."""
    assert said(partial(1, "Hell"), final(1, "Hello.", user="ann")) == [(1, "ann", "Hello.")]


def test_first_event_to_name_a_user_gives_a_finished_segment() -> None:
    """An owner may be named after the final, by the segment's key."""
    assert said(final(1, "Hello.", item="a"), final(1, "Hello.", item="a", user="ann")) == [(1, "ann", "Hello.")]


def test_given_segment_joins_what_its_user_said_before() -> None:
    """A segment that is given to a user becomes part of that user's one message of the turn."""
    assert said(
        final(1, "One.", segment=0, user="ann"), partial(1, "Tw", segment=1), final(1, "Two.", segment=1, user="ann")
    ) == [(1, "ann", "One. Two.")]


def test_segments_of_one_user_are_not_those_of_another() -> None:
    """The same number is a segment of each user."""
    assert said(final(1, "One.", segment=0, user="ann"), final(1, "Two.", segment=0, user="bob")) == [
        (1, "ann", "One."),
        (1, "bob", "Two."),
    ]


def test_empty_text_opens_a_slot() -> None:
    """A slot is no message, but fixes turn and begin of the transcript that comes late."""
    slot = partial(1, "", 10, item="u")
    assert texts(slot, closed(9000)) == []
    assert tuple(
        only_message(slot, final(2, "Late.", 99, item="u"))[key] for key in ("turn_id", "timestamp", "content")
    ) == (
        1,
        10,
        "Late.",
    )


def test_item_stays_in_the_turn_where_it_began() -> None:
    """A later event of an utterance's item is about that utterance, whatever turn it names."""
    assert said(final(1, "One.", item="u"), final(5, "One!", item="u")) == [(1, None, "One!")]


def test_speech_begins_at_its_earliest_time() -> None:
    """The message's time is that of its first word, not of its final or of its arrival."""
    assert only_message(partial(1, "He", 20), partial(1, "H", 10), final(1, "Hello.", 30))["timestamp"] == 10


def test_withdrawn_segment_does_not_date_the_message() -> None:
    """What was taken back is not when the message began."""
    assert (
        only_message(final(1, "Hm.", 10, segment=0), final(1, "", 20, segment=0), final(1, "Hi.", 30))["timestamp"]
        == 30
    )


def test_metadata_of_speech_goes_into_its_message() -> None:
    """Metadata of partials and finals is all kept; the newest value of a key stays."""
    call = [partial(1, "H", metadata={"room": "a", "mic": 1}), final(1, "Hi.", metadata={"mic": 2})]
    assert only_message(*call)["metadata"] == {"source": "asr", "room": "a", "mic": 2}


def test_recogniser_fields_are_not_metadata() -> None:
    """Language, confidence, times and words stay in the journal."""
    more: JsonObject = {"language": "en", "confidence": 0.5, "start_ms": 0, "end_ms": 9, "words": [word("Hi.", 0, 9)]}
    assert only_message(final(1, "Hi.", **more))["metadata"] == {"source": "asr"}


# Without turn numbers


def test_first_utterance_is_turn_one() -> None:
    """Without turn numbers the first utterance takes turn 1."""
    assert said(partial(None, "He"), partial(None, "Hello"), final(None, "Hello.")) == [(1, None, "Hello.")]


def test_finals_before_the_agent_answers_are_one_utterance() -> None:
    """An utterance is new once the one before it has a final and its turn a reply, whichever came first."""
    call = [final(None, "One."), partial(None, "Tw"), final(None, "Two.")]
    assert said(*call) == [(1, None, "One. Two.")]
    assert said(*call, delta(None, "Hm."), final(None, "Three.")) == [(1, None, "One. Two."), (2, None, "Three.")]


def test_utterance_after_numbered_turns_takes_the_next() -> None:
    """The next turn is the one after the newest that there is."""
    call = [final(7, "One.", user="ann"), delta(7, "Hm."), final(None, "Two.")]
    assert said(*call) == [(7, "ann", "One."), (8, None, "Two.")]


def test_typed_message_takes_the_next_turn() -> None:
    """A whole user message is an utterance, too."""
    assert said(final(None, "One."), typed(None, "Typed."), delta(None, "Hm."), final(None, "Three.")) == [
        (1, None, "One."),
        (2, None, "Typed."),
        (3, None, "Three."),
    ]


def test_item_takes_the_turn_where_it_began() -> None:
    """A late transcript finds its turn by its item; another item before a reply is of the same utterance."""
    call = [final(None, "O.", item="a"), delta(None, "Hm."), final(None, "Two.", item="b")]
    call += [final(None, "One.", item="a"), partial(None, "", item="c"), final(None, "Three.", item="c")]
    assert said(*call) == [(1, None, "One."), (2, None, "Two. Three.")]


def test_late_partial_of_the_final_opens_no_turn() -> None:
    """A partial that the final already contains is dropped, and takes no turn number."""
    call = [final(None, "I want tea.", 10), delta(None, "Hm.", 11), partial(None, "I want", 20)]
    assert said(*call, closed(9000)) == [(1, None, "I want tea.")]


def test_users_speak_at_once_in_messages_of_their_own() -> None:
    """Two users who speak at once share a turn, and each is updated by its own events."""
    call = [partial(None, "On", user="ann"), partial(None, "Tw", user="bob")]
    assert said(*call, final(None, "One.", user="ann"), final(None, "Two.", user="bob")) == [
        (1, "ann", "One."),
        (1, "bob", "Two."),
    ]


def test_partial_that_another_users_final_contains_is_kept() -> None:
    """What one user says is not dropped because another has said it: the last words of a call are never lost."""
    call = [final(None, "Yes please.", user="ann"), partial(None, "Yes", user="bob")]
    assert said(*call, closed(9000)) == [(1, "ann", "Yes please."), (1, "bob", "Yes")]


def test_utterance_does_not_end_with_a_reply() -> None:
    """An utterance is new after a final only."""
    assert said(partial(None, "One"), delta(None, "Hm."), final(None, "One two.")) == [(1, None, "One two.")]


PLAYING = (final(None, "Go on.", 100), delta(None, "Line four.", 200), done(None, 250), tts(None, 300, audio_ms=0))
ALARM = (partial(None, "mhm", 1000), interrupt(None, 1100, audio_end_ms=700), resume(None, 1500))


def begins(*given: EventLike) -> list[int]:
    """When each user message begins."""
    return [one["timestamp"] for one in messages_after(*given) if one["role"] == "user"]


def test_words_after_a_false_alarm_begin_with_themselves() -> None:
    """The partial that caused it is no begin of what is said next, also where an item or a number is given."""
    assert begins(*PLAYING, *ALARM, partial(None, "Book", 1900), final(None, "Book me.", 2400)) == [100, 1900]
    assert begins(*PLAYING, *ALARM, final(None, "Book me.", 2400)) == [100, 2400]
    named = partial(None, "mhm", 1000, item="u"), *ALARM[1:], final(None, "Book me.", 2400, item="u")
    assert begins(*PLAYING, *named) == [100, 2400]
    slot = partial(None, "", 1000), *ALARM[1:], partial(None, "", 1800), final(None, "Book me.", 2400)
    assert begins(*PLAYING, *slot) == [100, 1800]
    numbered = partial(2, "mhm", 1000, segment=4), *ALARM[1:], final(2, "Book me.", 2400, segment=4)
    assert begins(*PLAYING, *numbered) == [100, 2400]


def test_words_that_go_on_over_a_false_alarm_keep_their_begin() -> None:
    """What continues the partial was said after all; so was what was still heard after it, or had its place kept."""
    assert begins(*PLAYING, *ALARM, final(None, "Mhm, book me.", 2400)) == [100, 1000]
    late = partial(None, "Book", 1450), *ALARM[1:], partial(None, "Book", 1600), final(None, "Look at me.", 2400)
    assert begins(*PLAYING, *late) == [100, 1450]
    kept = partial(None, "", 1000, item="u"), *ALARM[1:], final(None, "Book me.", 2400, item="u")
    assert begins(*PLAYING, *kept) == [100, 1000]


def test_each_false_alarm_is_left_out() -> None:
    """After several, the message begins after the last."""
    again = partial(None, "uh", 2000), interrupt(None, 2100, audio_end_ms=1500), resume(None, 2500)
    assert begins(*PLAYING, *ALARM, *again, final(None, "Book me.", 3400)) == [100, 3400]


def test_an_abandoned_partial_is_no_begin_of_other_words() -> None:
    """It is abandoned if quite another text comes more than five seconds later; a correction comes earlier."""
    assert begins(partial(1, "uh", 1000), partial(1, "Book", 6001), final(1, "Book me.", 6500)) == [6001]
    assert begins(partial(1, "two late", 1000), final(1, "To let.", 6000)) == [1000]
    assert begins(partial(1, "", 1000), final(1, "Book me.", 9000)) == [1000]
