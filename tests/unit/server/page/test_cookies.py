"""Cookies of the page: who has signed in with which key, until when, and under which number."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.clock import ManualClock
from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.runtime import Runtime
from voicemem.security.access import Access, Grant
from voicemem.security.session_tokens import sign_token
from voicemem.server.page.login import LIFE_S, MAX_PROJECTS, NAME, SECURE_NAME, PageCookies, SignedIn, free_number
from voicemem.store.sqlite.store import InMemoryStore

ADMIN_KEY = "the operator's own key"


@pytest.fixture
def clock() -> ManualClock:
    """The time that the cookies go by."""
    return ManualClock()


@pytest.fixture
async def access(clock: ManualClock) -> AsyncIterator[Access]:
    """The keys of an empty store, and the operator's."""
    store = InMemoryStore()
    yield Access(store.directory, Runtime(clock=clock), ADMIN_KEY)
    await store.close_store()


async def made(access: Access, *scopes: str, project: str = "default") -> tuple[str, str]:
    """A new key, and the value of a cookie for it."""
    _, text = await access.create_key(project, "", scopes)
    return text, (await PageCookies(access).make(await access.grant(text)))[0]


async def projects(access: Access, **cookies: str) -> list[str]:
    """The projects that these cookies open."""
    return [one.grant.project for one in await PageCookies(access).read(cookies)]


async def test_a_cookie_opens_what_its_key_does(access: Access) -> None:
    """The same project and scopes, marked as the page's, until it expires."""
    key, value = await made(access, "read", "admin", project="shop")
    (one,) = await PageCookies(access).read({f"{NAME}3": value})
    grant = await access.grant(key)
    assert (one.number, one.grant.key_id, one.grant.scopes) == (3, grant.key_id, ("read", "admin"))
    assert (one.grant.project, one.grant.via, one.grant.session_id) == ("shop", "page", None)
    assert one.grant.expires_ms == one.expires_s * 1000 == access.clock() // 1000 * 1000 + LIFE_S * 1000


async def test_the_operators_key_has_cookies_too(access: Access) -> None:
    """As it has session tokens."""
    value, _ = await PageCookies(access).make(await access.grant(ADMIN_KEY))
    assert await projects(access, **{f"{SECURE_NAME}0": value}) == ["default"]


async def test_a_cookie_ends(access: Access, clock: ManualClock) -> None:
    """After twelve hours it opens nothing."""
    _, value = await made(access, "read")
    clock.wait(LIFE_S - 1)
    assert await projects(access, **{f"{NAME}0": value}) == ["default"]
    clock.wait(1)
    assert await projects(access, **{f"{NAME}0": value}) == []


async def test_of_two_cookies_of_a_project_the_later_one_counts(access: Access, clock: ManualClock) -> None:
    """Whatever their names and numbers: that which was renewed."""
    key, first = await made(access, "read")
    clock.wait(60)
    second, _ = await PageCookies(access).make(await access.grant(key))
    for early, late in ((f"{NAME}0", f"{NAME}1"), (f"{NAME}1", f"{NAME}0"), (f"{SECURE_NAME}0", f"{NAME}0")):
        (one,) = await PageCookies(access).read({early: first, late: second})
        assert one.name == late


async def test_whatever_is_changed_opens_nothing(access: Access) -> None:
    """Each part of it, and its length, is what was made here."""
    _, value = await made(access, "read")
    _, other = await made(access, "read")
    key_id, expires, mac = value.split(".")
    for wrong in (
        f"{key_id}.{int(expires) - 1}.{mac}",
        f"{key_id}.{int(expires) + LIFE_S}.{mac}",
        f"{other.split('.')[0]}.{expires}.{mac}",
        f"{key_id}.{expires}.{other.split('.')[2]}",
        f"{key_id}.{expires}.{mac[:-1]}",
        f"{key_id}.{expires}.{mac.upper()}",
        *(value + end for end in ("\n", " ", ".", "0")),
        *("", "..", "x" * 5000, f"environment.{expires}.{mac}"),
    ):
        assert await projects(access, **{f"{NAME}0": wrong}) == [], wrong


async def test_it_dies_with_its_key(access: Access) -> None:
    """A key that is revoked opens the page no more."""
    key, value = await made(access, "read")
    await access.revoke_key("default", key.split("_")[1])
    assert await projects(access, **{f"{NAME}0": value}) == []


async def test_a_session_token_is_no_cookie_nor_the_reverse(access: Access) -> None:
    """Both are made with the key's hash, and neither stands for the other."""
    key, value = await made(access, "admin")
    _, secret = await access.find_signer(key.split("_")[1])
    token = sign_token("s", access.clock() // 1000 + 60, key.split("_")[1], secret)
    assert await projects(access, **{f"{NAME}0": token, f"{NAME}1": key}) == []
    for code in (value, value.split(".")[2]):
        with pytest.raises(Refused) as refused:
            await access.grant(code)
        assert refused.value.code == "unauthorized"
    with pytest.raises(Refused, match="sign in with a key"):
        await PageCookies(access).make(await access.grant(token))


async def test_who_may_not_read_gets_none(access: Access) -> None:
    """A key that sends events has nothing to look at, and hears what it needs."""
    with pytest.raises(Refused, match="the scope read or admin"):
        await made(access, "ingest")


async def test_cookies_under_other_names_are_not_looked_at(access: Access) -> None:
    """Only the numbers there are, with either prefix."""
    _, value = await made(access, "read")
    for name in (f"{NAME}{MAX_PROJECTS}", f"{NAME}00", NAME, f"__Host-{NAME}0", f"{NAME}0 "):
        assert await projects(access, **{name: value}) == [], name


def signed_in(number: int, project: str) -> SignedIn:
    return SignedIn(f"{NAME}{number}", number, Grant(project, ("read",)), 0)


@every_row(
    ("there", "standing", "expected"),
    [
        ([], [], 0),
        ([0], [signed_in(0, "shop")], 0),  # its own, again
        ([0], [signed_in(0, "default")], 1),
        ([0], [], 1),  # of a service on another port
        ([0, 2], [signed_in(2, "shop")], 2),
        (range(MAX_PROJECTS), [signed_in(0, "default")], 1),  # no room: one that opens nothing here
        (range(MAX_PROJECTS), [signed_in(number, f"p{number}") for number in range(MAX_PROJECTS)], MAX_PROJECTS - 1),
    ],
)
def test_a_project_has_one_number(there: list[int], standing: list[SignedIn], expected: int) -> None:
    """Its own again, or one that no one has."""
    assert free_number({f"{NAME}{number}": "x" for number in there}, standing, "shop") == expected
