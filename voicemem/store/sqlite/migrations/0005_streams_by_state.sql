-- The list of running sessions is asked for most often: without this it goes through all that have ended.
create index streams_by_state on streams (project, kind, state, started_ms, key);
