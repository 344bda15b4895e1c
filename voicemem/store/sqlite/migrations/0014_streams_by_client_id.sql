-- Sessions by the ids that clients of agent-memory-server's have for them; lists of these are in order. A configuration
-- that is damaged has none, and stops nobody.
create index streams_by_client_id on streams (
    project, kind,
    case when json_valid(cast(config as text))
        then json_extract(cast(config as text), '$.labels."agent-memory.session"') end,
    started_ms, key
) where case when json_valid(cast(config as text))
    then json_extract(cast(config as text), '$.labels."agent-memory.session"') end is not null;
