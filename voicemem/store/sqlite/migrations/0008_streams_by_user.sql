-- What a user's earlier sessions leave is looked for at the first context of each new one, and lists are filtered by
-- user. `user_id` is repeated from the configuration; sessions without one are not in the index.
alter table streams add column user_id text;
update streams set user_id = (select user_id from overviews where stream = key) where state != 'erased';
create index streams_by_user on streams (project, kind, user_id, started_ms, key) where user_id is not null;
