"""Keys: how they look, how they are kept, what they allow."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.security.access import FULL_GRANT, SCOPES, Access, Grant, bearer_token
from voicemem.store.port import Store
from voicemem.store.sqlite.store import InMemoryStore, SqliteStore

ADMIN_KEY = "the operator's own key"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """An empty store."""
    store = InMemoryStore()
    yield store
    await store.close_store()


@pytest.fixture
def access(store: Store) -> Access:
    """The keys of an empty store."""
    return Access(store.directory)


def every_byte(folder: Path) -> bytes:
    """What all files of a folder hold."""
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def refusal(access: Access, token: str | None) -> str:
    """The code with which a token is refused."""
    with pytest.raises(Refused) as caught:
        await access.grant(token)
    return caught.value.code


async def test_without_keys_everybody_may_do_everything(access: Access) -> None:
    """Before the first key there is one project, open to callers with and without a token."""
    assert not await access.needs_key()
    assert FULL_GRANT == await access.grant(None) == await access.grant("anything")


@pytest.mark.parametrize(
    ("session_id", "sentence"), [("s2", "is for another session"), (None, "A session token cannot do this; use a key.")]
)
def test_a_token_that_is_refused_hears_why(session_id: str | None, sentence: str) -> None:
    """It is of another session than the path, or the path is of no session, and for keys only."""
    token = Grant("shop", ("ingest", "read"), "k1", "s1")
    with pytest.raises(Refused, match=sentence):
        token.require("read", session_id)


async def test_a_key_reads_vm_id_secret_and_gives_its_project_and_scopes(access: Access) -> None:
    """A key has 40 random characters, and opens what it was made for."""
    key, text = await access.create_key("shop", "worker", ["ingest"])
    assert re.fullmatch(rf"vm_{key.id}_[0-9A-Za-z]{{40}}", text)
    assert Grant("shop", ("ingest",), key.id) == await access.grant(text)


async def test_the_first_key_closes_the_service(access: Access) -> None:
    """Once there is a key, callers need one."""
    await access.create_key("shop", "", ["read"])
    assert await access.needs_key()
    assert "unauthorized" == await refusal(access, None)


async def test_only_a_hash_is_stored(access: Access, store: Store) -> None:
    """The store has the SHA-256 of a key's secret, and nothing else of it."""
    _, text = await access.create_key("shop", "", ["read"])
    secret = text.rpartition("_")[2]
    (kept,) = await store.directory.list_keys()
    assert hashlib.sha256(secret.encode()).digest() == kept.hash
    assert secret not in repr(kept)


async def test_no_file_holds_the_secret(tmp_path: Path) -> None:
    """Neither the database nor its log has the key's text."""
    store = SqliteStore(str(tmp_path / "keys.db"))
    _, text = await Access(store.directory).create_key("shop", "", ["read"])
    secret = text.rpartition("_")[2].encode()
    assert secret not in every_byte(tmp_path)
    await store.close_store()
    assert secret not in every_byte(tmp_path)


async def test_two_keys_are_never_alike(access: Access) -> None:
    """Keys of one name have different ids and secrets."""
    made = [await access.create_key("shop", "same", ["read"]) for _ in range(20)]
    assert 20 == len({key.id for key, _ in made}) == len({text for _, text in made})


async def test_revoked_keys_are_refused_at_once_and_keep_the_service_closed(access: Access, store: Store) -> None:
    """A revoked key opens nothing, and when all are revoked no one gets in without one."""
    key, text = await access.create_key("shop", "", ["admin"])
    assert await store.directory.revoke_key(key.id, 1)
    assert "unauthorized" == await refusal(access, text) == await refusal(access, None)
    assert await access.needs_key()


async def test_revoking_one_key_leaves_the_others(access: Access, store: Store) -> None:
    """Keys are revoked one by one."""
    (gone, _), (_, kept) = [await access.create_key("shop", "", ["read"]) for _ in range(2)]
    assert await store.directory.revoke_key(gone.id, 1)
    assert "shop" == (await access.grant(kept)).project


async def test_keys_of_one_project_do_not_open_another(access: Access) -> None:
    """Each key has its own project."""
    texts = [(await access.create_key(project, "", ["admin"]))[1] for project in ("a", "b")]
    assert ["a", "b"] == [(await access.grant(text)).project for text in texts]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda key: key[:-1] + ("a" if key[-1] != "a" else "b"),
        lambda key: key[:-1],
        lambda key: key + "a",
        lambda key: key + "\n",
        lambda key: " " + key,
        lambda key: key.upper(),
        lambda key: key.replace("vm_", "vm_000000000000_", 1)[:56],
        lambda key: key.rpartition("_")[2],
        lambda key: key.encode("utf-16").decode("latin-1"),
        lambda key: key[:-1] + "é",
        lambda key: key[:-1] + "\udcff",
        lambda key: key[:-1] + "٣",
        lambda key: key + "x" * 10_000,
        lambda key: "",
        lambda key: "\0",
        lambda key: "vm_" + "'" * 12 + "_" + "0" * 40,
    ],
)
async def test_whatever_is_not_the_key_is_refused(access: Access, spoil: object) -> None:
    """One character more, less or other, other spellings and garbage open nothing."""
    _, text = await access.create_key("shop", "", ["read"])
    assert callable(spoil)
    assert "unauthorized" == await refusal(access, spoil(text))


async def test_the_id_of_one_key_with_the_secret_of_another_is_refused(access: Access) -> None:
    """Id and secret belong together."""
    (one, _), (_, other) = [await access.create_key("shop", "", ["read"]) for _ in range(2)]
    assert "unauthorized" == await refusal(access, f"vm_{one.id}_{other.rpartition('_')[2]}")


@pytest.mark.parametrize("scope", SCOPES)
def test_admin_includes_the_other_scopes(scope: str) -> None:
    """An admin may do everything."""
    Grant("p", ("admin",)).require(scope)


@pytest.mark.parametrize(("has", "lacks"), [("ingest", "read"), ("read", "ingest"), ("read", "admin")])
def test_a_scope_does_not_include_another(has: str, lacks: str) -> None:
    """What a key was not made for is forbidden, and the sentence names the scope."""
    with pytest.raises(Refused, match=f"scope {lacks}") as caught:
        Grant("p", (has,)).require(lacks)
    assert "forbidden" == caught.value.code


@pytest.mark.parametrize("scopes", [[], ["write"], ["read", "root"], [""], ["READ"], ["read,admin"]])
async def test_unknown_scopes_are_refused(access: Access, store: Store, scopes: list[str]) -> None:
    """A key is made of known scopes, at least one, or not at all."""
    with pytest.raises(Refused):
        await access.create_key("shop", "", scopes)
    assert [] == await store.directory.list_keys()


@pytest.mark.parametrize("project", ["", "a b", "a/b", "é", "x" * 129, "a\n", "..\0", "%"])
async def test_projects_are_plain_names(access: Access, project: str) -> None:
    """A project that could be mistaken in a path or a log is refused."""
    with pytest.raises(Refused):
        await access.create_key(project, "", ["read"])


async def test_a_scope_given_twice_counts_once(access: Access) -> None:
    """Scopes are a set, in the order in which they were given."""
    key, _ = await access.create_key("shop", "", ["read", "ingest", "read"])
    assert ("read", "ingest") == key.scopes


async def test_the_operators_key_gives_everything_in_the_default_project(store: Store) -> None:
    """The key from the environment works where no command can make one, and closes the service."""
    access = Access(store.directory, admin_key=ADMIN_KEY)
    assert await access.needs_key()
    grant = await access.grant(ADMIN_KEY)
    assert ("default", SCOPES) == (grant.project, grant.scopes)
    assert "unauthorized" == await refusal(access, None) == await refusal(access, ADMIN_KEY + " ")


async def test_the_operators_key_stands_beside_stored_keys(store: Store) -> None:
    """With the operator's key, keys of the store work as well."""
    access = Access(store.directory, admin_key=ADMIN_KEY)
    _, text = await access.create_key("shop", "", ["read"])
    assert "shop" == (await access.grant(text)).project
    assert "default" == (await access.grant(ADMIN_KEY)).project


@pytest.mark.parametrize("header", ["Bearer k", "bearer k", "BEARER  k ", "Bearer\tk".replace("\t", " ")])
def test_the_token_stands_after_bearer(header: str) -> None:
    """The scheme's name has no case."""
    assert "k" == bearer_token(header)


@every_row("header", ["", "k", "Bearer", "Bearer ", "Basic azp2", "Token k", "Digest k", "Bearerk"])
def test_other_schemes_are_refused(header: str) -> None:
    """A header that carries no bearer token is an error, never a caller without a key."""
    with pytest.raises(Refused) as caught:
        bearer_token(header)
    assert "unauthorized" == caught.value.code


def test_no_header_is_no_token() -> None:
    """A caller without the header has no token."""
    assert bearer_token(None) is None
