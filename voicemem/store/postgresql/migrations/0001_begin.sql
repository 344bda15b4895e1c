-- Times are Unix ms. What users write (names, ids, texts, JSON) is bytea: PostgreSQL's text and jsonb refuse U+0000, and
-- jsonb changes what was written. Keys of streams, endpoints and deliveries are made by the nodes from the time, so
-- that nothing waits for a sequence. Every table with content of a stream is led by `bucket`, which is the stream's key
-- modulo 64: it is by what the tables could be sharded. Nothing cascades, since content is deleted a portion at a time.

-- The store's own values: its schema and the oldest program that may use it, `incarnation` and `cursor_secret`, and
-- which server and timeline it was last seen on.
create table meta (
    name text primary key,
    value bytea not null
);

-- The connections of each node that write. A transaction holds the row of its connection, so whoever raises `era` waits
-- for the transaction that may still run there, and keeps out one whose bytes are still on their way.
create table lanes (
    token bytea not null,
    lane integer not null,
    era integer not null,
    node text,
    primary key (token, lane)
);
create index lanes_by_node on lanes (node) where node is not null;

-- The processes that serve the store. What a node holds names its `token`, and is freed when its row is deleted.
create table nodes (
    token text primary key,
    address bytea not null,
    version bytea not null,
    snapshot_version bigint not null,
    started_ms bigint not null,
    expires_ms bigint not null
);

-- Work that one node does at a time: the next summary of a stream. A lease of retention stands in `retention`, one of a
-- delivery in `exports`.
create table claims (
    bucket smallint not null,
    stream bigint not null,
    node text not null,
    until_ms bigint not null,
    primary key (bucket, stream)
);
create index claims_by_node on claims (node);

-- Replies that a node is streaming.
create table replies (
    bucket smallint not null,
    stream bigint not null,
    item bytea not null,
    node text not null,
    primary key (bucket, stream, item)
);
create index replies_by_node on replies (node);

-- One row for each transaction of a lane that was not an append, while it may matter: it tells a node that has lost its
-- connection during the commit whether that was one.
create table outcomes (
    token bytea not null,
    lane integer not null,
    job bigint not null,
    primary key (token, lane, job)
);

-- A stream is a session (or a user's own). `position` is that of the last time the row was saved: an ordinary append
-- writes the journal only. `config` is JSON without secrets; `name`, `user_id` and `channel` are repeated from it.
create table streams (
    bucket smallint not null,
    key bigint not null,
    project bytea not null,
    kind text not null,
    id bytea not null,
    state text not null,
    position bigint not null,
    started_ms bigint not null,
    ended_ms bigint,
    reason bytea,
    config bytea not null,
    silent_since_ms bigint,
    ending_ms bigint,
    ending_ts bigint,
    ending_reason bytea,
    provisional boolean not null default false,
    due_ms bigint,
    name bytea,
    user_id bytea,
    channel bytea,
    key_id bytea,
    primary key (bucket, key)
);
create index streams_due on streams (due_ms) where due_ms is not null;
create index streams_by_start on streams (project, kind, started_ms, key);
create index streams_by_state on streams (project, kind, state, started_ms, key);
create index streams_by_key on streams (project, kind, key);
create index streams_by_user on streams (project, user_id, started_ms, key) where user_id is not null;
create index streams_open_by_key_id on streams (key_id) where key_id is not null and state = 'running';
create index streams_by_key_id on streams (key_id, started_ms) where key_id is not null;

-- Who has a name: a stream's, by project and kind. It is led by the project, which is what callers know.
create table stream_ids (
    project bytea not null,
    kind text not null,
    id bytea not null,
    stream bigint not null,
    primary key (project, kind, id)
);

-- Which running session has a name that only one may have; `digest` is the SHA-256 of the name. The close frees it.
create table names (
    project bytea not null,
    digest bytea not null,
    stream bigint not null,
    primary key (project, digest)
);
create index names_by_stream on names (stream);
create index streams_by_name on streams (project, sha256(name)) where state = 'running' and name is not null;

-- What appends lock, and never update: an update would leave a dead version of the row at each append. `gen` moves with
-- everything that decides about an append and is not in the journal.
create table heads (
    bucket smallint not null,
    stream bigint not null,
    gen integer not null,
    primary key (bucket, stream)
);

-- `digest` is the SHA-256 of name and value, which are too long for an index.
create table labels (
    bucket smallint not null,
    stream bigint not null,
    digest bytea not null,
    primary key (bucket, stream, digest)
);

-- `next_seq` is that of the last time the row was saved, like the position of a stream. `node` is the one that the
-- producer is connected to; `expected_until_ms` is until when it is expected back without.
create table producers (
    bucket smallint not null,
    stream bigint not null,
    name bytea not null,
    epoch bigint not null,
    next_seq bigint not null,
    unsequenced boolean not null,
    ended boolean not null,
    node text,
    expected_until_ms bigint,
    primary key (bucket, stream, name)
);
create index producers_by_node on producers (node) where node is not null;

-- A row of the journal is a run: events of one producer that came together, at consecutive positions and seqs.
-- `position` and `seq` are those of the first; the payload of a run of several is a JSON array of them. The primary key
-- is the compare-and-set of an append: each run begins right behind the end of another. Keys of streams begin with the
-- time, so a partition holds what was created in one month. A waypoint is a row of its producer that is in the index of
-- seqs; every run with seqs is one, or has one at most 256 positions before it.
create table journal (
    bucket smallint not null,
    stream bigint not null,
    position bigint not null,
    producer bytea,
    seq bigint,
    received_ms bigint not null,
    count integer not null,
    checksum bigint,
    waypoint boolean not null,
    payload bytea not null,
    primary key (bucket, stream, position)
) partition by range (stream);
alter table journal alter column payload set storage external;
create index journal_waypoints on journal (bucket, stream, producer, seq) where waypoint;

-- The first part of an ended journal, compressed: runs, from `position` to `last`. The rows behind `last` are in the
-- journal; what is in both is the same. `seqs` holds the first and the last seq of each producer in it, as JSON.
create table archives (
    bucket smallint not null,
    stream bigint not null,
    position bigint not null,
    last bigint not null,
    seqs bytea not null,
    runs bytea not null,
    primary key (bucket, stream, position)
);
alter table archives alter column runs set storage external;

-- What is still to be done with a session: when its journal may be compacted, when it is to be erased, since when it is
-- erased but its content not deleted. A session with nothing to do has no row.
create table retention (
    bucket smallint not null,
    stream bigint not null,
    compact_ms bigint,
    expires_ms bigint,
    erased_ms bigint,
    node text,
    leased_until_ms bigint not null default 0,
    primary key (bucket, stream)
);
create index retention_to_compact on retention (compact_ms) where compact_ms is not null;
create index retention_to_expire on retention (expires_ms) where expires_ms is not null;
create index retention_erased on retention (erased_ms) where erased_ms is not null;

-- Encoded fold states, compressed. Disposable: the journal gives the same state.
create table snapshots (
    bucket smallint not null,
    stream bigint not null,
    position bigint not null,
    version bigint not null,
    state bytea not null,
    primary key (bucket, stream, version)
);
alter table snapshots alter column state set storage external;

-- What the slim list of sessions shows of their memories, as of `position`.
create table overviews (
    bucket smallint not null,
    stream bigint not null,
    name bytea,
    user_id bytea,
    labels bytea,
    position bigint,
    figures bytea,
    primary key (bucket, stream)
);

-- Values taken out of a session's configuration, by their dotted path in it.
create table secrets (
    bucket smallint not null,
    stream bigint not null,
    name bytea not null,
    value bytea not null,
    primary key (bucket, stream, name)
);

-- Streams whose memory could not be made, so that no later start tries it again.
create table set_aside (
    bucket smallint not null,
    stream bigint not null,
    reason text not null,
    since_ms bigint not null,
    version bytea not null,
    primary key (bucket, stream)
);

-- Receivers of webhooks. A session's own has its `stream`, a project's its `project` and `id`, the operator's neither
-- (it hears of every session).
create table endpoints (
    key bigint primary key,
    stream bigint,
    url bytea not null,
    secret bytea,
    contents text not null,
    public_only boolean not null,
    disabled_ms bigint,
    id bytea,
    project bytea,
    description bytea not null default '',
    event_types bytea not null default '[103]',
    created_ms bigint not null default 0,
    old_secret bytea,
    old_secret_until_ms bigint,
    failing_since_ms bigint,
    disabled_reason text
);
create index endpoints_by_stream on endpoints (stream) where stream is not null;
create unique index endpoints_by_project on endpoints (project, id) where project is not null;
create unique index endpoints_of_operator on endpoints ((true)) where stream is null and project is null;

-- Notices on their way to endpoints. A lease moves `due_ms` to its end, so a claim does not look through what is leased.
create table exports (
    key bigint primary key,
    stream bigint not null,
    endpoint bigint not null,
    notice_id bytea not null,
    event_type integer not null,
    position bigint not null,
    closing bytea not null,
    payload bytea,
    state text not null,
    attempts integer not null,
    due_ms bigint,
    lease integer not null,
    leased_until_ms bigint not null,
    node text,
    made_ms bigint not null,
    restarted_at integer not null default 0,
    waiting_for text
);
create index exports_due on exports (due_ms) where due_ms is not null;
create index exports_by_stream on exports (stream);
create index exports_waiting on exports (endpoint, due_ms) where due_ms is not null;
create index exports_by_endpoint on exports (endpoint, key);
create index exports_by_node on exports (node) where node is not null;

create table attempts (
    export bigint not null,
    number integer not null,
    started_ms bigint not null,
    duration_ms bigint not null,
    status integer,
    error bytea,
    excerpt bytea not null,
    primary key (export, number)
);

-- API keys; of each secret only its SHA-256. `scopes` are joined by commas. Limits are 0 where there are none.
create table keys (
    id bytea primary key,
    project bytea not null,
    name bytea not null,
    hash bytea not null,
    scopes text not null,
    created_ms bigint not null,
    revoked_ms bigint,
    events_per_second bigint not null,
    bytes_per_second bigint not null,
    open_sessions bigint not null,
    sessions_per_day bigint not null
);

-- Apps of Agora's whose tokens are accepted; one that was removed stays without certificates.
create table agora_apps (
    app_id bytea primary key,
    project bytea not null,
    certificate bytea,
    old_certificate bytea,
    scopes text not null,
    created_ms bigint not null
);
