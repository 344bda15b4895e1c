"""Extractions of memories from sessions by an LLM: their progress and their cost."""

from voicemem.store.database import Check, Connection, Port, checked, scans, writes
from voicemem.store.stream_changes import POSITION, SELECT_READABLE_STREAMS, to_stream
from voicemem.store.streams import SESSION_KIND, Stream

EXTRACT = b'"extract"'
"""Contained in the configuration of each session that says itself whether memories are extracted from it."""


KEPT_DAYS = 2
LOOK_AT_SESSIONS = f"""
    select s.key, case when s.state = 'ended' then s.position else {POSITION} end > coalesce(e.position, 0),
    case when :everywhere then null else s.config end
    from streams s left join extracted e on e.stream = s.key
    where s.key > :after and s.kind = '{SESSION_KIND}' and s.state <> 'erased' order by s.key limit :limit
"""
"""The row of a session that has ended says where its journal ends."""
SELECT_READABLE = "select 1 from streams where key = :key and state <> 'erased' for share"
NOTE = """
    insert into extracted (stream, position) values (:key, :position)
    on conflict (stream) do update set position = greatest(extracted.position, excluded.position)
"""
SPEND = """
    insert into spent_tokens (project, day, tokens)
    select :project, :day, :spent where :limit = 0 or :tokens <= :limit
    on conflict (project, day) do update set tokens = greatest(0, spent_tokens.tokens + :tokens)
    where :limit = 0 or :tokens < 0 or spent_tokens.tokens + :tokens <= :limit
"""
FORGET_OLD_DAYS = "delete from spent_tokens where project = :project and day < :day"


class Extractions(Port):
    """The progress of extraction: up to where sessions were checked for memories, and what that has cost.

    What was really sent to an LLM is in the journals (`memory.extracted`); this only saves checks of sessions without
    new events.
    """

    @scans
    def check_extractions(self, connection: Connection, everywhere: bool, after_key: int, limit: int) -> Check[Stream]:
        """Check up to `limit` sessions of all projects, by key, for those that have grown since the last check.

        Unless `everywhere`, only sessions whose own configuration has `EXTRACT` are returned.
        """
        looked_at = connection.rows(LOOK_AT_SESSIONS, everywhere=everywhere, after=after_key, limit=limit)
        keys = [key for key, is_behind, config in looked_at if is_behind and (everywhere or EXTRACT in config)]
        rows = connection.rows(SELECT_READABLE_STREAMS, keys=keys) if keys else []
        return checked(looked_at, limit, list(map(to_stream, rows)))

    @writes
    def note_extracted(self, connection: Connection, key: int, position: int) -> None:
        """Record that a session was checked up to a position; do nothing for an erased one."""
        if connection.row(SELECT_READABLE, key=key) is not None:
            connection.execute(NOTE, key=key, position=position)

    @writes
    def spend_tokens(self, connection: Connection, project: str, day: int, tokens: int, limit: int) -> bool:
        """Count tokens that a project spends on a day (since 1970); False, and nothing counted, if they exceed `limit`.

        A `limit` of 0 means none. Negative tokens are given back.
        """
        values = {"project": project, "day": day, "tokens": tokens, "spent": max(0, tokens), "limit": limit}
        connection.execute(FORGET_OLD_DAYS, project=project, day=day - KEPT_DAYS)
        return bool(connection.execute(SPEND, **values))
