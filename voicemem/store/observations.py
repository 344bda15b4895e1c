"""Calls at other stacks whose events the service fetches, and which node fetches them."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from voicemem.store.database import Connection, Port, columns, writes

ObservationState = Literal["waiting", "connecting", "observing", "ended", "stopped", "failed"]
OVER = ("ended", "stopped", "failed")


class Observation(Struct, frozen=True):
    """A call at another stack whose events this service fetches itself, for one session."""

    key: int
    """Of the session."""
    dialect: str
    call: str
    started_ms: int
    changed_ms: int
    state: ObservationState = "waiting"
    reason: str | None = None
    status: int | None = None
    """The vendor's answer then: the status of its response, or the code of its close."""
    connections: int = 0
    ended_ms: int | None = None
    node: str | None = None


class ObservedSession(NamedTuple):
    """An observation that has not ended, and the session that it is for."""

    observation: Observation
    project: str
    session_id: str
    state: str
    """Of the session."""


FIELDS = Observation.__struct_fields__
NAMES = ("stream", *FIELDS[1:])
SELECT = f"select {columns(NAMES)} from observations where stream = :key"
COUNT = """
    select count(*), count(case when s.project = :project then 1 end),
    (select count(*) from keys where project <> :project and revoked_ms is null)
    from observations o join streams s on s.key = o.stream where o.ended_ms is null
"""
SAVE = f"""
    insert into observations ({columns(NAMES)}) select {columns(FIELDS, ":")}
    where exists (select 1 from streams where key = :key and state <> 'erased')
    on conflict (stream) do update set {", ".join(f"{name} = excluded.{name}" for name in NAMES[1:])}
"""
LIST = f"""
    select s.project, s.id, s.state, {columns(NAMES, "o.")}
    from observations o join streams s on s.key = o.stream where o.ended_ms is null order by o.stream
"""
CLAIM = """
    update observations set node = :node where ended_ms is null and (node is null or node = :node)
    and stream in :keys returning stream
"""
CHANGE = """
    update observations set state = :state, reason = :reason, status = :status, changed_ms = :now_ms,
    connections = connections + case when :state = 'observing' then 1 else 0 end,
    ended_ms = case when :is_over then :now_ms end, node = case when :is_over then null else node end
    where stream = :key and ended_ms is null and (cast(:node as text) is null or node = :node)
"""


class Observations(Port):
    """Calls that are observed, at most one for a session. A node holds what it observes until it is retired."""

    @writes
    def begin_observation(
        self, connection: Connection, observation: Observation, project: str, limit: int
    ) -> Observation | None:
        """Store a new observation, replacing one that is over; return one that is still running instead, if any.

        None if `limit` are running, or the session is erased; or, where other projects have keys, if its project
        already has as many as are still free.
        """
        connection.lock("observations")  # two nodes that begin one at once must not both find a place
        row = connection.row(SELECT, key=observation.key)
        if row is not None and (known := Observation(*row)).ended_ms is None:
            return known
        taken, own, others = connection.one(COUNT, project=project)
        if taken >= limit or (others and own >= limit - taken):
            return None
        return observation if connection.execute(SAVE, **asdict(observation)) else None

    async def find_observation(self, key: int) -> Observation | None:
        """Return the observation of a session, also one that is over; None where there was none."""
        return await self.database.find(Observation, SELECT, key=key)

    async def list_observations(self) -> list[ObservedSession]:
        """Return all running observations, on any node. Called once a second."""
        return [ObservedSession(Observation(*row[3:]), *row[:3]) for row in await self.database.rows(LIST)]

    @writes
    def claim_observations(self, connection: Connection, keys: Sequence[int], node: str) -> list[int]:
        """Claim running observations that no node has; return those that this node holds now."""
        connection.hold_node(node)
        return sorted(key for (key,) in connection.rows(CLAIM, node=node, keys=list(keys)))

    async def change_observation(
        self, key: int, node: str | None, state: ObservationState, reason: str | None, status: int | None, now_ms: int
    ) -> bool:
        """Record the state of an observation; False if it has ended, or the node does not have it.

        Without a node it is changed, whichever node has it. `observing` counts a connection; `ended`, `stopped` and
        `failed` end it.
        """
        values = {"key": key, "node": node, "state": state, "reason": reason, "status": status, "now_ms": now_ms}
        values["is_over"] = state in OVER
        return bool(await self.database.execute(CHANGE, **values))
