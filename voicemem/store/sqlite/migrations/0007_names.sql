-- The name of a running session, which a join looks for. What cannot be read of a damaged row is no name.
alter table streams add column name text;
update streams set name = json_extract(cast(config as text), '$.name')
    where state = 'running' and json_valid(cast(config as text));
create index streams_by_name on streams (project, name) where state = 'running' and name is not null;
