-- What a key may do at most, below the service's own limits; 0 where it has no limit of its own.
alter table keys add column events_per_second integer not null default 0;
alter table keys add column bytes_per_second integer not null default 0;
alter table keys add column open_sessions integer not null default 0;
alter table keys add column sessions_per_day integer not null default 0;

-- The key that began a session, of keys that have a quota of sessions; any other session has none here.
alter table streams add column key_id text;
create index streams_open_by_key_id on streams (key_id) where key_id is not null and state = 'running';
create index streams_by_key_id on streams (key_id, started_ms) where key_id is not null;

-- The bytes of each project's journals, archived parts included, while the service bounds them; otherwise it is empty.
create table stored_bytes (
    project text primary key,
    bytes integer not null
) strict, without rowid;
