-- Endpoints that a project made have an id and the project; a session's own have its stream, the operator's has neither.
-- `event_types` is a JSON array. `failing_since_ms` is the first failed attempt since the last success.
alter table endpoints add column id text;
alter table endpoints add column project text;
alter table endpoints add column description text not null default '';
alter table endpoints add column event_types text not null default '[103]';
alter table endpoints add column created_ms integer not null default 0;
alter table endpoints add column old_secret text;
alter table endpoints add column old_secret_until_ms integer;
alter table endpoints add column failing_since_ms integer;
alter table endpoints add column disabled_reason text;
create index endpoints_by_project on endpoints (project, id) where project is not null;
create index endpoints_of_operator on endpoints (key) where stream is null and project is null;

-- `restarted_at` is how many attempts were made before the export was sent again by hand, which begins its schedule anew.
-- A lease moves `due_ms` to its end, so that a claim does not look through what is leased.
alter table exports add column made_ms integer not null default 0;
alter table exports add column restarted_at integer not null default 0;
update exports set made_ms = ifnull(json_extract(cast(closing as text), '$.stopped_ms'), 0)
    where json_valid(cast(closing as text));
create index exports_waiting on exports (endpoint, due_ms) where due_ms is not null;
create index exports_failed on exports (endpoint, made_ms) where state = 'failed';
create index exports_by_endpoint on exports (endpoint);
