"""Messages are found by their words, in the scope that was asked for and nowhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.stores.contract import NOW, example_numbers
from tests.support.stores.heard import found_texts, index_call, passages, reindex, search
from voicemem.search.words import query_words, words_of
from voicemem.store.port import Store
from voicemem.store.scopes import Scope

CALL = (
    "I am allergic to walnuts and hazelnuts.",
    "Noted. Do you have a dog?",
    "Yes, he is called Rex.",
    "Then we meet at the lake on Tuesday.",
)


async def test_a_message_is_found_by_its_words_in_any_form(store: Store) -> None:
    """Also by a plural, another tense, other cases of letters, with or without accents; not by stop words."""
    await index_call(store, "s", *CALL)
    for query in ("walnut", "WALNUTS", "allergic", "which hazelnut is he allergic to?", "hazélnut"):
        assert CALL[0] == (await found_texts(store, query))[0]
    assert await found_texts(store, "cat") == []
    assert await found_texts(store, "???") == []
    assert CALL[0] == (await found_texts(store, "what about a walnut"))[0]


async def test_the_best_message_is_first(store: Store) -> None:
    """More of the words count, and rare words more; the scores fall."""
    await index_call(store, "s", *CALL)
    found = await search(store, "Is Rex the dog at the lake on Tuesday?")
    assert CALL[3] == found[0].text
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert found[0].score > 0


async def test_a_message_is_found_by_the_words_before_it_and_by_the_day(store: Store) -> None:
    """The answer is found by the question; the call by its date."""
    await index_call(store, "s", *CALL)
    assert CALL[2] in (await found_texts(store, "dog"))[:2]
    assert len(CALL) == len(await found_texts(store, "what did I say in May 2026?"))
    assert await found_texts(store, "what did I say in June 1999?") == []


async def test_an_answer_counts_for_what_it_answers(store: Store) -> None:
    """Of equal messages the one that was answered with the same words comes first, before its answer."""
    said = "My sister keeps bees in the garden."
    answered = await index_call(store, "answered", said, "How nice, bees and a garden.")
    await index_call(store, "alone", said, "Hello there.")
    found = await search(store, "sister bees garden", now_ms=NOW)
    assert (answered, 0) == (found[0].key, found[0].number)
    assert said == found[1].text
    assert all(one.score > 0 for one in found)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


DAY_MS = 86_400_000


async def test_a_speaker_s_name_prefers_what_that_speaker_said(store: Store) -> None:
    """Known from how the two address each other: the one who says a name is not the one who has it."""
    for number in range(3):
        talk = ("Hey Melanie! How was it?", "I went swimming, Caroline.", "Great, Melanie. Swimming is good.")
        await index_call(store, f"s{number}", *talk)
        await index_call(
            store, f"z{number}", "佳怡，你好！今天怎么样？", "我去游泳了，小雨。", "好啊，佳怡！游泳不错。"
        )
    for name, role in (("Caroline", "user"), ("Melanie", "assistant")):
        found = await search(store, f"Does {name} like swimming?", now_ms=NOW)
        assert role == found[0].role, name
    for name, role in (("小雨", "user"), ("佳怡", "assistant")):
        found = await search(store, f"{name}去游泳了吗？", now_ms=NOW)
        assert role == found[0].role, name
    assert (await search(store, "Does she like swimming?", now_ms=NOW))[0].role == "user"


async def test_what_tells_more_is_first(store: Store) -> None:
    """For a question a statement comes before a question, and a long message before a short one; not for a word."""
    told = "Ann went sailing around the island with her brother and three of his friends."
    for place, text in enumerate(
        ("Sailing?", told, "Did you ever go sailing around the island in a storm like that one?")
    ):
        await index_call(store, f"call-{place}", text)
    asked = "Who went sailing around islands?"
    found = await found_texts(store, asked, now_ms=NOW)
    assert told == found[0]
    assert found[-1] == "Sailing?"
    assert (await found_texts(store, "sailing", now_ms=NOW))[0] == "Sailing?"
    assert (await found_texts(store, "sailing"))[0] == "Sailing?", "by words alone"


async def test_a_time_in_the_question_prefers_what_was_said_then(store: Store) -> None:
    """Seen from the day it is asked; what was said at other times is found too."""
    for number, days in enumerate((400, 290, 120, 20)):
        key = await index_call(store, f"s{number}", "nothing")
        said_ms = NOW - days * DAY_MS
        await reindex(store, key, {1: passages(1, f"A trip to city{number}.", said_ms=said_ms)}, position=2)
    for question, place in (
        ("Which trip last summer?", 1),
        ("trip last month", 3),
        ("Welche Reise, trip, letztes Jahr im Juli?", 1),
    ):
        found = await found_texts(store, question, now_ms=NOW)
        assert (found[0], len(found)) == (f"A trip to city{place}.", 4), question


async def test_pages_have_each_message_once(store: Store) -> None:
    """In one order, also beyond the messages that are looked at closely."""
    texts = [f"The walnut tree number {number} in May." for number in range(250)]
    await index_call(store, "s", *texts)
    pages = [
        await search(store, "Which walnut tree, Ann?", offset=first, limit=30, now_ms=NOW)
        for first in range(0, 250, 30)
    ]
    found = [message for page in pages for message in page]
    assert sorted(texts) == sorted(message.text for message in found)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


async def test_what_is_found_says_where_it_is_from(store: Store) -> None:
    """Session, turn, place in the turn, position, who said it and when."""
    key = await index_call(store, "s", *CALL)
    (found,) = await search(store, "hazelnut", limit=1)
    assert (key, 1, 0, 10, "user", NOW, CALL[0]) == found[:-1]


async def test_scripts_without_spaces_are_found(store: Store) -> None:
    """Chinese, Japanese, Korean and Thai, by any two neighbouring characters, and by a single one."""
    texts = ("我对核桃过敏，请记住。", "アレルギーがあります", "호두를 먹으면 안 돼요", "ฉันแพ้ถั่ว", "我每天跑步")
    for number, text in enumerate(texts):
        await index_call(store, f"s{number}", text)
    for query, place in (
        ("核桃", 0),
        ("你对什么过敏？", 0),
        ("核", 0),
        ("アレルギー", 1),
        ("호두", 2),
        ("แพ้", 3),
        ("跑", 4),
    ):
        assert texts[place] == (await found_texts(store, query))[0]
    assert await found_texts(store, "杏仁") == []


async def test_german_words_are_found_in_any_form(store: Store) -> None:
    """On every engine: a query asks for their beginnings."""
    await index_call(store, "s", "Ich habe zwei Hunde.", "Und wo?", "Am See.")
    assert (await found_texts(store, "Wie heißt sein Hund, und was mag er?"))[0] == "Ich habe zwei Hunde."


async def test_umlauts_are_found_however_they_are_written(store: Store) -> None:
    """Composed, decomposed or left out."""
    await index_call(store, "s", "Ich wohne in der Schönhauser Straße, Tür 5.")
    for query in ("schonhauser", "SCHÖNHAUSER", "scho\u0308nhauser", "strasse", "Straße"):
        assert len(await found_texts(store, query)) == 1


async def test_pages_and_times(store: Store) -> None:
    """A page begins after an offset; what was said before or after the given times is left out."""
    key = await index_call(store, "s")
    turns = {turn: passages(turn, f"walnut number {turn}", said_ms=NOW + turn) for turn in range(1, 8)}
    await reindex(store, key, turns, position=2)
    whole = await found_texts(store, "walnut", limit=100)
    assert len(whole) == 7
    pages = [await found_texts(store, "walnut", offset=offset, limit=3) for offset in (0, 3, 6, 9)]
    assert [whole[:3], whole[3:6], whole[6:], []] == pages
    within = await found_texts(store, "walnut", since_ms=NOW + 3, until_ms=NOW + 5)
    assert {"walnut number 3", "walnut number 4"} == set(within)


async def test_a_search_stays_in_its_scope(store: Store) -> None:
    """Project, namespace, user and session each narrow it; nothing widens it when nothing is found."""
    for user in ("ann", "ben"):
        for namespace in ("shop", "bank"):
            config = {"user_id": user, "labels": {"namespace": namespace}}
            await index_call(store, f"{user}-{namespace}", f"walnuts of {user} in the {namespace}", given=config)
    await index_call(store, "nobody", "walnuts of nobody")
    await index_call(store, "ann-shop", "walnuts of another project", project="q", given={"user_id": "ann"})
    assert len(await found_texts(store, "walnuts")) == 5
    assert len(await found_texts(store, "walnuts", user_id="ann")) == 2
    assert len(await found_texts(store, "walnuts", namespace="shop")) == 2
    assert await found_texts(store, "walnuts", user_id="ben", namespace="bank") == ["walnuts of ben in the bank"]
    assert await found_texts(store, "walnuts", session_id="nobody") == ["walnuts of nobody"]
    assert await found_texts(store, "walnuts", project="q", user_id="ann") == ["walnuts of another project"]
    assert await found_texts(store, "walnuts", user_id="ann", session_id="ben-shop") == []
    assert await found_texts(store, "walnuts", user_id="nobody") == []
    assert await found_texts(store, "bank", user_id="ann", namespace="shop") == []


WORDS = ["walnut", "dog", "lake", "rex", "核桃", "nüsse", "OR", "AND", "NOT", "p1", "scope", "said", "x*", '"', "n\x01"]
names = st.sampled_from(["ann", "ben", 'a" OR b', "scope", "核桃", "u1 OR u2", "*", "a:b", "e\u0301", "%"])
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
queries = st.one_of(
    texts, st.text(max_size=30), st.sampled_from(['scope : "a" OR said : b', "NEAR(a b)", ") OR (x", "-dog"])
)


@examples(0.3)
@given(st.lists(st.tuples(names, names, texts), min_size=1, max_size=6), names, names, queries)
async def test_tenants_never_see_each_other(
    store: Store, calls: list[tuple[str, str, str]], user_id: str, namespace: str, query: str
) -> None:
    """Whatever they are called and ask for: a search finds exactly what has a word of it, in its scope."""
    number = next(example_numbers)
    projects = [f"p{number}", f"q{number}"]
    for place, (user, space, text) in enumerate(calls):
        config = {"user_id": user, "labels": {"namespace": space}}
        await index_call(store, f"s{number}-{place}", text, project=projects[place % 2], given=config)
    asked = {word.text for word in query_words(query)}
    for project, own in zip(projects, (calls[::2], calls[1::2]), strict=True):
        matching = [call for call in own if asked & set(words_of(call[2]))]
        beginning = {word.text for word in query_words(query) if word.is_prefix}
        matching += [
            call for call in own if call not in matching and any(w[:1] in beginning for w in words_of(call[2]))
        ]
        for scope, expected in (
            ({}, matching),
            ({"user_id": user_id}, [call for call in matching if call[0] == user_id]),
            (
                {"user_id": user_id, "namespace": namespace},
                [call for call in matching if call[:2] == (user_id, namespace)],
            ),
        ):
            found = await found_texts(store, query, project, **scope, limit=100)
            assert sorted(call[2] for call in expected) == sorted(found)


async def test_sessions_are_found_by_all_words_of_a_message(store: Store) -> None:
    """In the scope that was asked for, those that were indexed last first."""
    first = await index_call(store, "s1", *CALL, given={"user_id": "ann"})
    second = await index_call(store, "s2", "Walnuts are fine.", "At the lake?", given={"user_id": "bob"})
    await index_call(store, "s3", *CALL, project="q")

    async def found(query: str, limit: int = 10, **scope: str) -> list[int]:
        return await store.transcript_index.find_sessions(Scope("p", **scope).query(), query_words(query), limit)

    assert [second, first] == await found("walnut")
    assert [second] == await found("walnut", limit=1)
    assert [first] == await found("hazelnut walnut") == await found("walnut", user_id="ann")
    assert await found("walnut lake") == []
    assert [second] == await found("lake", user_id="bob")
    assert await found("???") == []


async def test_the_newest_messages_of_sessions(store: Store) -> None:
    """Of each session the last ones, the newest first, with as much of their texts as was asked for."""
    first = await index_call(store, "s", *CALL)
    second = await index_call(store, "t", "Hello.", "Good-bye.")
    find = store.transcript_index.newest_messages
    assert [CALL[3], CALL[2], "Good-bye.", "Hello."] == [one.text for one in await find([first, second], 2, 100)]
    assert [one.text for one in await find([second], 5, 2)] == ["Go", "He"]
    assert await find([], 5, 100) == []
    assert await find([first + second + 1], 5, 100) == []
