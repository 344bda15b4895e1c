-- The journal is append-ordered: rows go in at the end of the table, found by one index.
create table meta (
    name text primary key,
    value blob not null
) strict, without rowid;

create table streams (
    key integer primary key,
    project text not null,
    kind text not null,
    id text not null,
    state text not null,
    position integer not null,
    started_ms integer not null,
    ended_ms integer,
    reason text,
    config blob not null,
    silent_since_ms integer,
    ending_ms integer,
    ending_ts integer,
    ending_reason text,
    provisional integer not null default 0,
    due_ms integer,
    unique (project, kind, id)
) strict;
create index streams_due on streams (due_ms) where due_ms is not null;
create index streams_by_start on streams (project, kind, started_ms, key);

create table producers (
    stream integer not null,
    name text not null,
    epoch integer not null,
    next_seq integer not null,
    unsequenced integer not null,
    ended integer not null,
    primary key (stream, name)
) strict, without rowid;

create table journal (
    stream integer not null,
    position integer not null,
    producer text,
    seq integer,
    received_ms integer not null,
    payload blob not null
) strict;
create unique index journal_by_position on journal (stream, position);

create table snapshots (
    stream integer primary key,
    position integer not null,
    version integer not null,
    state blob not null
) strict;

create table secrets (
    stream integer not null,
    name text not null,
    value text not null,
    primary key (stream, name)
) strict, without rowid;

-- A session's own receiver has its stream; the operator's has none, and hears of every session.
create table endpoints (
    key integer primary key,
    stream integer,
    url text not null,
    secret text,
    contents text not null,
    public_only integer not null,
    disabled_ms integer
) strict;
create index endpoints_by_stream on endpoints (stream);

create table exports (
    key integer primary key,
    stream integer not null,
    endpoint integer not null,
    notice_id text not null,
    event_type integer not null,
    position integer not null,
    closing blob not null,
    payload blob,
    state text not null,
    attempts integer not null,
    due_ms integer,
    lease integer not null,
    leased_until_ms integer not null
) strict;
create index exports_due on exports (due_ms) where due_ms is not null;
create index exports_by_stream on exports (stream);

create table attempts (
    export integer not null,
    number integer not null,
    started_ms integer not null,
    duration_ms integer not null,
    status integer,
    error text,
    excerpt text not null,
    primary key (export, number)
) strict, without rowid;

create table keys (
    id text primary key,
    project text not null,
    name text not null,
    hash blob not null,
    scopes text not null,
    created_ms integer not null,
    revoked_ms integer
) strict, without rowid;
