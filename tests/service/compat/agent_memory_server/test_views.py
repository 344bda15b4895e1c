"""Summary views through agent-memory-server's own client."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest
from agent_memory_client import MemoryAPIClient
from agent_memory_client.exceptions import MemoryServerError
from agent_memory_client.models import ClientMemoryRecord, CreateSummaryViewRequest

from tests.service.compat.agent_memory_server.conftest import Connect
from tests.support.callers.rest import RestClient, make_key
from voicemem.app import App


def wanted(*group_by: str, **more: Any) -> CreateSummaryViewRequest:
    return CreateSummaryViewRequest(source="long_term", group_by=list(group_by), **more)


@pytest.fixture
async def known(client: MemoryAPIClient) -> MemoryAPIClient:
    for user, namespace, text in (("ann", "a", "Likes tea."), ("ann", "b", "Likes rain."), ("bob", "a", "Likes jam.")):
        await client.create_long_term_memory(
            [ClientMemoryRecord.model_validate({"text": text, "user_id": user, "namespace": namespace})]
        )
    return client


async def test_views_are_kept(client: MemoryAPIClient) -> None:
    """As they were given, until they are dropped."""
    first = await client.create_summary_view(wanted("user_id", name="by user", filters={"namespace": "a"}, prompt="!"))
    second = await client.create_summary_view(wanted("namespace", "user_id", time_window_days=7, continuous=True))
    assert [first, second] == await client.list_summary_views()
    assert first == await client.get_summary_view(first.id)
    assert ("by user", {"namespace": "a"}, ["user_id"]) == (first.name, first.filters, first.group_by)
    assert "ok" == (await client.delete_summary_view(first.id)).status
    assert "ok" == (await client.delete_summary_view(first.id)).status
    assert [second] == await client.list_summary_views()
    assert None is await client.get_summary_view(first.id)


async def test_groups_have_what_is_in_them(known: MemoryAPIClient) -> None:
    """Each memory of the view stands in its group, the newest first."""
    view = await known.create_summary_view(wanted("user_id", filters={"namespace": {"any": ["a", "b"]}}))
    ann = await known.run_summary_view_partition(view.id, {"user_id": "ann"})
    assert ("- Likes rain.\n- Likes tea.", 2, {"user_id": "ann"}) == (ann.summary, ann.memory_count, ann.group)
    assert 0 == (await known.run_summary_view_partition(view.id, {"user_id": "nobody"})).memory_count
    partitions = await known.list_summary_view_partitions(view.id)
    assert [("ann", 2), ("bob", 1)] == [(one.group["user_id"], one.memory_count) for one in partitions]
    assert ["bob"] == [one.group["user_id"] for one in await known.list_summary_view_partitions(view.id, user_id="bob")]
    [nobody] = await known.list_summary_view_partitions(view.id, user_id="nobody")
    assert ({"user_id": "nobody"}, 0) == (nobody.group, nobody.memory_count)
    narrow = await known.create_summary_view(wanted("memory_type", filters={"user_id": "ann", "namespace": ["b"]}))
    [partition] = await known.list_summary_view_partitions(narrow.id)
    assert ({"memory_type": "message"}, "- Likes rain.") == (partition.group, partition.summary)


async def test_a_run_is_a_task_that_is_done(known: MemoryAPIClient) -> None:
    """It can be asked for as often as one likes."""
    view = await known.create_summary_view(wanted("user_id"))
    task = await known.run_summary_view(view.id, force=True)
    assert ("success", view.id) == (task.status, task.view_id)
    assert task == await known.get_task(task.id)
    for unknown in ("nothing", f"{view.id}-", f"{view.id}x-1", "-5"):
        assert None is await known.get_task(unknown)


async def test_views_that_cannot_be_are_refused(client: MemoryAPIClient, app: App) -> None:
    """With what would be right; nothing of them is kept."""
    bad = [
        CreateSummaryViewRequest(source="working_memory", group_by=["user_id"]),
        wanted("topic"),
        wanted("user_id", "user_id"),
        wanted("user_id", filters={"text": "a"}),
        wanted("user_id", filters={"user_id": 5}),
        wanted("user_id", filters={"user_id": {}}),
        wanted("user_id", filters={"user_id": {"eq": None}}),
        wanted("user_id", time_window_days=0),
    ]
    for one in bad:
        with pytest.raises(MemoryServerError):
            await client.create_summary_view(one)
    assert [] == await client.list_summary_views()
    view = await client.create_summary_view(wanted("user_id"))
    with pytest.raises(MemoryServerError, match="exactly"):
        await client.run_summary_view_partition(view.id, {"namespace": "a"})
    answer = await RestClient(app).get("/v1/summary-views/nothing/partitions")
    assert (404, "not_found") == answer.problem


async def test_views_belong_to_a_project(connect: Connect, app: App) -> None:
    """No one else sees them, or what is in them."""
    ours = connect(await make_key(app, "admin", project="ours"))
    theirs = connect(await make_key(app, "admin", project="theirs"))
    await ours.create_long_term_memory([ClientMemoryRecord(text="Ours.", user_id="ann")])
    view = await ours.create_summary_view(wanted("user_id"))
    other = await theirs.create_summary_view(wanted("user_id"))
    assert None is await theirs.get_summary_view(view.id)
    assert [] == await theirs.list_summary_view_partitions(other.id)
    assert 1 == len(await ours.list_summary_view_partitions(view.id))
