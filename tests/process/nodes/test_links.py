"""Users that are linked, erased and given sessions at once, on two nodes: what is left is that of one order."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient
from tests.support.postgresql import database_of, server
from tests.support.processes.service_process import running_process

pytestmark = pytest.mark.postgresql
ROUNDS = 12


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[RestClient, RestClient]]:
    """Two nodes on one database."""
    with database_of(tmp_path) as name:
        url = server().url(name)
        async with running_process(tmp_path / "a", url=url) as one, running_process(tmp_path / "b", url=url) as other:
            yield one.api, other.api


async def link(api: RestClient, user_id: str, other_id: str) -> int:
    return (await api.call("PUT", f"/v1/users/{user_id}/same-as", json={"user_id": other_id})).status


async def sessions_of(api: RestClient, user_id: str) -> set[str]:
    return {one["session_id"] for one in (await api.get(f"/v1/users/{user_id}/sessions")).json["sessions"]}


async def test_a_user_linked_and_erased_at_once(nodes: tuple[RestClient, RestClient]) -> None:
    """Linked before, it is gone with its link; linked after, it is a new user, whom both ids mean."""
    one, other = nodes
    for number in range(ROUNDS):
        tel, ann = f"tel-{number}", f"ann-{number}"
        for user_id in (tel, ann):
            await one.create(f"of-{user_id}", user_id=user_id)
            await one.call("PUT", f"/v1/users/{user_id}/working-memory", json={"content": f"I am {user_id}."})
        linked, erased = await asyncio.gather(link(one, tel, ann), other.delete(f"/v1/users/{tel}"))
        assert 200 == linked
        assert erased.status in (200, 204), erased.body
        for api in nodes:
            kept: Any = {user_id: await sessions_of(api, user_id) for user_id in (tel, ann)}
            assert {f"of-{ann}"} == kept[ann]
            is_linked = kept[tel] == kept[ann]
            assert is_linked or set() == kept[tel]
            of_tel = (await api.get(f"/v1/users/{tel}/working-memory")).json["content"]
            assert (f"I am {ann}." if is_linked else None) == of_tel
        assert (409 if is_linked else 200) == await link(other, ann, f"new-{number}")


async def test_two_ids_are_linked_by_one_of_two_nodes(nodes: tuple[RestClient, RestClient]) -> None:
    """Of links that exclude each other one is made."""
    one, other = nodes
    for number in range(ROUNDS):
        a, b, c = (f"{name}-{number}" for name in "abc")
        statuses = await asyncio.gather(link(one, a, b), link(other, b, c), link(other, b, a), link(one, c, b))
        assert [200, 409, 409, 409] == sorted(statuses)


async def test_a_call_given_to_a_user_who_is_erased_at_once(nodes: tuple[RestClient, RestClient]) -> None:
    """It is erased with the user, or it is no one's; never the call of an erased user."""
    one, other = nodes
    for number in range(ROUNDS):
        session_id, user_id = f"s-{number}", f"u-{number}"
        await one.create(session_id)
        await one.end(session_id)
        given, erased = await asyncio.gather(
            one.patch(f"/v1/sessions/{session_id}", {"user_id": user_id}), other.delete(f"/v1/users/{user_id}")
        )
        assert 204 == erased.status
        left = await other.get(f"/v1/sessions/{session_id}")
        if left.status == 404:
            assert given.status in (200, 404), given.body
        else:
            assert (409, "user_erased") == given.problem
            assert {} == left.json["config"]
        assert set() == await sessions_of(one, user_id)
