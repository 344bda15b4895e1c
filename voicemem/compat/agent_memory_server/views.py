"""Summary views: a project's memories in groups, each with a summary text that no LLM writes.

A view is kept in the document of the project's own stream. Its texts are made at each request, so they are never out of
date, and nothing runs in the background.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, structs, to_builtins

from voicemem.compat.agent_memory_server import finding
from voicemem.compat.agent_memory_server.records import RecordView, format_ms, view_of
from voicemem.errors import Refused
from voicemem.memory.long_term.memory_changes import NO_USER
from voicemem.memory.long_term.records import Memory
from voicemem.memory.working_memory import DocumentChange, DocumentOwner, DocumentView, WorkingMemory
from voicemem.protocol.quoting import on_one_line
from voicemem.protocol.types import JsonObject
from voicemem.sessions.off_loop import OffLoop, check_budget

MAX_GROUPS = 1_000
FIELDS = ("user_id", "namespace", "session_id", "memory_type")


class GivenView(Struct, frozen=True):
    """A view to keep."""

    source: str
    group_by: tuple[str, ...]
    name: str | None = None
    filters: dict[str, str | tuple[str, ...] | finding.TextFilter] | None = None
    time_window_days: Annotated[int, Meta(ge=1, le=36_500)] | None = None
    continuous: bool | None = None
    prompt: str | None = None
    model_name: str | None = None


class SummaryView(Struct, frozen=True, kw_only=True):
    """A view: its memories and groups. `prompt` and `model_name` are kept, but not used."""

    id: str
    name: str | None = None
    source: Literal["long_term"] = "long_term"
    group_by: tuple[str, ...] = ()
    filters: JsonObject = {}
    time_window_days: int | None = None
    continuous: bool = False
    prompt: str | None = None
    model_name: str | None = None


class Partition(Struct, frozen=True):
    """One group of a view."""

    view_id: str
    group: dict[str, str]
    summary: str
    memory_count: int
    computed_at: str


class Group(Struct, frozen=True):
    """The requested group."""

    group: dict[str, str]


class RunRequest(Struct, frozen=True):
    """The body of a run; its fields change nothing, because nothing needs to be forced."""

    force: bool = False


class ViewTask(Struct, frozen=True):
    """A run of a view, which is finished at once."""

    id: str
    type: str
    status: Literal["success"]
    view_id: str
    created_at: str
    started_at: str
    completed_at: str
    error_message: str | None = None


class SummaryViews:
    """The views of all projects."""

    def __init__(self, documents: WorkingMemory, records: finding.RecordFinder, off_loop: OffLoop) -> None:
        self.documents = documents
        self.off_loop = off_loop
        self.records = records
        self.clock = records.clock

    async def list_views(self, project: str) -> list[SummaryView]:
        document = await self.documents.read_document(owner_of_views(project))
        return [msgspec.convert(view, SummaryView) for view in views_in(document).values()]

    async def get(self, project: str, id: str) -> SummaryView:
        """Return a view. Raises `Refused` (`not_found`)."""
        for view in await self.list_views(project):
            if view.id == id:
                return view
        raise Refused("not_found", "There is no such summary view.")

    async def create(self, project: str, id: str, body: GivenView) -> SummaryView:
        """Keep a view under an id. Raises `Refused` (`invalid_field`, `too_big`)."""
        check_view(body)
        fields = {name: value for name, value in structs.asdict(body).items() if value is not None}
        view = SummaryView(id=id, **(fields | {"filters": to_builtins(body.filters or {})}))
        change = DocumentChange("append", {"summary_views": {id: to_builtins(view)}})
        await self.documents.change(owner_of_views(project), change)
        return view

    async def delete(self, project: str, id: str) -> None:
        owner = owner_of_views(project)
        while True:
            document = await self.documents.read_document(owner)
            views = views_in(document)
            if id not in views:
                return
            left = {name: view for name, view in views.items() if name != id}
            change = DocumentChange("replace", {**document.content, "summary_views": left})
            try:
                await self.documents.change(owner, change, [document.version])
                return
            except Refused as refused:
                if refused.code != "precondition_failed":
                    raise

    async def partition(self, project: str, id: str, group: Mapping[str, str]) -> Partition:
        """Return one group of a view. Raises `Refused` (`not_found`, `invalid_field`)."""
        view = await self.get(project, id)
        if set(group) != set(view.group_by):
            raise Refused("invalid_field", "The keys of `group` must be exactly those of the view's `group_by`.")
        (partition,) = await self.grouped(project, view, group) or [self.summarised(view, dict(group), [])]
        return partition

    async def partitions(self, project: str, id: str, group: Mapping[str, str]) -> list[Partition]:
        """Return groups with these values; an empty one only if it is fully named. Raises `Refused` (`not_found`)."""
        return await self.grouped(project, await self.get(project, id), group)

    async def run(self, project: str, id: str) -> ViewTask:
        """Return a finished task for a view. Raises `Refused` (`not_found`)."""
        return task_of((await self.get(project, id)).id, self.clock())

    async def find_task(self, project: str, task_id: str) -> ViewTask:
        """Return a task from its id, which has all of its fields. Raises `Refused` (`not_found`)."""
        view_id, _, ms = task_id.rpartition("-")
        if not (ms.isascii() and ms.isdigit() and len(ms) <= 15):
            raise Refused("not_found", "There is no such task.")
        return task_of((await self.get(project, view_id)).id, int(ms))

    async def grouped(self, project: str, view: SummaryView, group: Mapping[str, str]) -> list[Partition]:
        """Return the groups of a view that have these values, with their memories, the newest first."""
        merged: dict[str, Any] = {name: text_filter(one) for name, one in view.filters.items()}
        if view.time_window_days is not None:
            since_ms = self.clock() - view.time_window_days * finding.DAY_MS
            merged["created_at"] = finding.TimeFilter(gte=since_ms / 1000)
        async with self.records.queue.slot(project):
            conditions = await self.records.conditions(project, finding.Filters(**merged))
            memories = await self.records.newest(project, conditions, finding.MOST_RESULTS)
            return await self.off_loop.run(partial(self.in_groups, view, group, memories), owner=project)

    def in_groups(self, view: SummaryView, group: Mapping[str, str], memories: list[Memory]) -> list[Partition]:
        groups: defaultdict[tuple[str, ...], list[RecordView]] = defaultdict(list)
        if view.group_by and group.keys() >= {*view.group_by}:
            groups[tuple(group[name] for name in view.group_by)] = []
        for memory in memories:
            check_budget()
            record = view_of(memory)
            values = tuple(getattr(record, name) for name in view.group_by)
            fits = all(getattr(record, name) == value for name, value in group.items())
            if fits and all(value is not None for value in values):
                groups[values].append(record)
        several = sorted(groups)[:MAX_GROUPS]
        return [self.summarised(view, dict(zip(view.group_by, one, strict=True)), groups[one]) for one in several]

    def summarised(self, view: SummaryView, group: dict[str, str], records: list[RecordView]) -> Partition:
        """Return a group with a line for each memory, as many as fit."""
        lines, length = list[str](), 0
        for record in records:
            length += len(record.text) + 3
            if length > 8_000:  # characters
                break
            lines.append(f"- {on_one_line(record.text)}")
        return Partition(view.id, group, "\n".join(lines), len(records), format_ms(self.clock()))


def views_in(document: DocumentView) -> JsonObject:
    """Return the views in a session's data, by id; a client may have put other data there."""
    views = document.content.get("summary_views") if isinstance(document.content, dict) else None
    return views or {}


def owner_of_views(project: str) -> DocumentOwner:
    return DocumentOwner("user", project, NO_USER)


def task_of(view_id: str, ms: int) -> ViewTask:
    at = format_ms(ms)
    return ViewTask(f"{view_id}-{ms}", "summary_view_full_run", "success", view_id, at, at, at)


def check_view(view: GivenView) -> None:
    """Raise `Refused` (`invalid_field`) for an invalid view."""
    if view.source != "long_term":
        raise Refused("invalid_field", "`source` must be long_term; working_memory is not supported.")
    unknown = sorted({*view.group_by, *(view.filters or {})} - {*FIELDS})
    if unknown:
        raise Refused("invalid_field", f"`group_by` and `filters` may only name {', '.join(FIELDS)}.")
    for name, value in (view.filters or {}).items():
        if isinstance(value, finding.TextFilter):
            finding.check_named(name, value)
    if len(set(view.group_by)) < len(view.group_by):
        raise Refused("invalid_field", "`group_by` names a field twice.")


def text_filter(value: Any) -> finding.TextFilter:
    """Convert a view's filter: one value, alternatives, or a filter as in searches."""
    if isinstance(value, dict):
        return msgspec.convert(value, finding.TextFilter)
    return finding.TextFilter(eq=value) if isinstance(value, str) else finding.TextFilter(any=tuple(value))
