-- Processes that serve this store, by their tokens. A file is served by one at a time, so what others hold here is of a
-- process that is gone, and is freed by the next start.
create table nodes (
    token text primary key,
    address text not null,
    version text not null,
    snapshot_version integer not null,
    started_ms integer not null,
    expires_ms integer not null
) strict, without rowid;

-- Who is connected, and to which node; a producer without a connection is expected back until `expected_until_ms`.
alter table producers add column node text;
alter table producers add column expected_until_ms integer;
create index producers_by_node on producers (node) where node is not null;
-- Who was connected to the last program is not known: the next start expects all of them back.
update producers set node = '' where epoch > 0 and stream in (select key from streams where state = 'running');

-- The node that has a lease: of a delivery, and of what retention does to a session.
alter table exports add column node text;
alter table retention add column node text;
alter table retention add column leased_until_ms integer not null default 0;
create index retention_leased on retention (node) where node is not null;

-- Which node writes a session's next summary.
create table summary_claims (
    stream integer primary key,
    node text not null,
    leased_until_ms integer not null
) strict;

-- Replies that a node is streaming: any other one that the journal shows without an end was left open.
create table replies (
    stream integer not null,
    item text not null,
    node text not null,
    primary key (stream, item)
) strict, without rowid;
