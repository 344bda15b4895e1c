-- Times are Unix ms. Tables name a stream by its `key` and an endpoint or delivery by its `key`; nothing cascades, since
-- content is deleted a portion at a time.

-- The store's own values: `incarnation` and `cursor_secret`, made with the file.
create table meta (
    name text primary key,
    value blob not null
) strict, without rowid;

-- A stream is a session (or a user's own). `position` is that of the last time the row was saved: an ordinary append
-- writes the journal only. `config` is JSON without secrets; `name`, `user_id` and `channel` are repeated from it. `key_id` is the key that
-- began the session. The config of a user's own stream has at most a link: the other id of the same person as `user_id`. `restored_ms` is when one was made that says itself when it started. `interruptions` (replies that were interrupted) and `slowest_ms`
-- (the longest end-to-end latency) are what lists are filtered by, as of when the figures of the memory were last saved.
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
    name text,
    key_id text,
    restored_ms integer,
    user_id text,
    channel text,
    interruptions integer,
    slowest_ms integer,
    outcome text,
    unique (project, kind, id)
) strict;
create index streams_due on streams (due_ms) where due_ms is not null;
create index streams_by_key on streams (project, kind, key);
create index streams_by_state on streams (project, kind, state, started_ms, key);
create index streams_by_user on streams (project, kind, user_id, started_ms, key) where user_id is not null;
create index streams_open_by_key_id on streams (key_id) where key_id is not null and state = 'running';
create index streams_by_key_id on streams (key_id, started_ms) where key_id is not null;
create index streams_restored on streams (project, kind, restored_ms, key) where restored_ms is not null;
create index streams_restored_by_key_id on streams (key_id, restored_ms, key)
where restored_ms is not null and key_id is not null;
-- Sessions by the ids that clients of agent-memory-server's have for them; lists of these are in order. A configuration
-- that is damaged has none, and stops no one.
create index streams_by_client_id on streams (
    project, kind,
    case when json_valid(cast(config as text))
        then json_extract(cast(config as text), '$.labels."agent-memory.session"') end,
    started_ms, key
) where case when json_valid(cast(config as text))
    then json_extract(cast(config as text), '$.labels."agent-memory.session"') end is not null;
create index streams_by_name on streams (project, name) where state = 'running' and name is not null;
-- Of two indexes that serve a query as well, SQLite takes the one that was made last.
create index streams_by_start on streams (project, kind, started_ms, key) where state != 'erased';
create index streams_interrupted on streams (project, kind, started_ms, key) where interruptions > 0;
create index streams_slow on streams (project, kind, started_ms, key, slowest_ms) where slowest_ms >= 1000;
create index streams_by_outcome on streams (project, kind, outcome, started_ms, key) where outcome is not null;

-- `next_seq` is that of the last time the row was saved, like the position of a stream. `node` is the one that the
-- producer is connected to; `expected_until_ms` is until when it is expected back without.
create table producers (
    stream integer not null,
    name text not null,
    epoch integer not null,
    next_seq integer not null,
    unsequenced integer not null,
    ended integer not null,
    node text,
    expected_until_ms integer,
    primary key (stream, name)
) strict, without rowid;
create index producers_by_node on producers (node) where node is not null;

-- A row of the journal is a run: events of one producer that came together, at consecutive positions and seqs.
-- `position` and `seq` are those of the first; the payload of a run of several is a JSON array of them. The checksum is
-- there because SQLite does not notice a bit that changed on the disk. Rows are appended at the end of the table and
-- found by one index. What is stored under a seq is found from a waypoint: a row of its producer at most 256 positions
-- before, since an index of every row would double the pages that an append writes.
create table journal (
    stream integer not null,
    position integer not null,
    producer text,
    seq integer,
    received_ms integer not null,
    payload blob not null,
    count integer not null default 1,
    checksum integer,
    waypoint integer not null default 1
) strict;
create unique index journal_by_position on journal (stream, position);
create unique index journal_waypoints on journal (stream, producer, seq) where seq is not null and waypoint;

-- The first part of an ended journal, compressed: runs, from `position` to `last`. The rows behind `last` are in the
-- journal; what is in both is the same. `seqs` holds the first and the last seq of each producer in it, as JSON.
create table archives (
    stream integer not null,
    position integer not null,
    last integer not null,
    seqs blob not null,
    runs blob not null
) strict;
create unique index archives_by_position on archives (stream, position);

-- What is still to be done with a session: when its journal may be compacted, when it is to be erased, since when it is
-- erased but its content not deleted. A session with nothing to do has no row.
create table retention (
    stream integer primary key,
    compact_ms integer,
    expires_ms integer,
    erased_ms integer,
    node text,
    leased_until_ms integer not null default 0
) strict;
create index retention_leased on retention (node) where node is not null;
create index retention_to_compact on retention (compact_ms) where compact_ms is not null;
create index retention_to_expire on retention (expires_ms) where expires_ms is not null;
create index retention_erased on retention (erased_ms) where erased_ms is not null;

-- Encoded fold states, compressed. Disposable: the journal gives the same state. Two versions of the program may serve a
-- store for a while: each has snapshots of its own.
create table snapshots (
    stream integer not null,
    version integer not null,
    position integer not null,
    state blob not null,
    primary key (stream, version)
) strict;

-- Values taken out of a session's configuration, by their dotted path in it.
create table secrets (
    stream integer not null,
    name text not null,
    value text not null,
    primary key (stream, name)
) strict, without rowid;

-- Receivers of webhooks. A session's own has its `stream`, a project's its `project` and `id`, the operator's neither
-- (it hears of every session). `event_types` and `include` are JSON arrays. `failing_since_ms` is the first failed attempt since the last
-- success. Keys of endpoints and deliveries are never given twice: what was begun for one of an erased session may still
-- come to its end.
create table endpoints (
    key integer primary key autoincrement,
    stream integer,
    url text not null,
    secret text,
    contents text not null,
    public_only integer not null,
    disabled_ms integer,
    id text,
    project text,
    description text not null default '',
    event_types text not null default '[103]',
    include text not null default '[]',
    created_ms integer not null default 0,
    old_secret text,
    old_secret_until_ms integer,
    failing_since_ms integer,
    disabled_reason text
) strict;
create index endpoints_by_stream on endpoints (stream) where stream is not null;
create index endpoints_by_project on endpoints (project, id) where project is not null;
create index endpoints_of_operator on endpoints (key) where stream is null and project is null;

-- Webhook events on their way to endpoints. `header` is JSON. A lease moves `due_ms` to its end, so a claim does not look
-- through what is leased. `restarted_at` is how many attempts were made before the notice was sent again by hand, which
-- begins its schedule again.
create table deliveries (
    key integer primary key autoincrement,
    stream integer not null,
    endpoint integer not null,
    notice_id text not null,
    event_type integer not null,
    position integer not null,
    header blob not null,
    payload_bytes integer,
    state text not null,
    attempts integer not null,
    due_ms integer,
    lease integer not null,
    leased_until_ms integer not null,
    made_ms integer not null default 0,
    restarted_at integer not null default 0,
    waiting_for text,
    node text
) strict;
create index deliveries_due on deliveries (due_ms) where due_ms is not null;
create index deliveries_by_stream on deliveries (stream);
create index deliveries_waiting on deliveries (endpoint, due_ms) where due_ms is not null;
create index deliveries_failed on deliveries (endpoint, made_ms) where state = 'failed';
create index deliveries_by_endpoint on deliveries (endpoint);
create index deliveries_by_node on deliveries (node) where node is not null;
create index deliveries_failed_by_stream on deliveries (stream) where state = 'failed';
create index deliveries_pending_by_stream on deliveries (stream) where state = 'pending';
-- Deliveries that were not made, for the lists of a project; and those of an endpoint by time, of which a day is counted.
create index deliveries_by_state on deliveries (state) where state != 'delivered';
create index deliveries_by_time on deliveries (endpoint, made_ms, state);

-- The payload of a delivery's body in parts, in the order of their keys: a large one in a row that changes with each attempt
-- would be written each time. `deliveries.payload_bytes` is their size once all are there, and null before that.
create table payloads (
    key integer primary key autoincrement,
    stream integer not null,
    delivery integer not null,
    payload blob not null
) strict;
create index payloads_by_delivery on payloads (stream, delivery);

create table attempts (
    delivery integer not null,
    number integer not null,
    started_ms integer not null,
    duration_ms integer not null,
    status integer,
    error text,
    excerpt text not null,
    primary key (delivery, number)
) strict, without rowid;

-- API keys; of each secret only its SHA-256. `scopes` are joined by commas. Limits are 0 where there are
-- none.
create table keys (
    id text primary key,
    project text not null,
    name text not null,
    hash blob not null,
    scopes text not null,
    created_ms integer not null,
    revoked_ms integer,
    events_per_second integer not null default 0,
    bytes_per_second integer not null default 0,
    open_sessions integer not null default 0,
    sessions_per_day integer not null default 0
) strict, without rowid;

-- Apps of Agora's whose tokens are accepted. `certificate` signs; `old_certificate` is the one before the last rotation.
-- `scopes` are joined by commas. The row of an app that was removed stays without certificates: as with a revoked key, the
-- service continues to require keys.
create table agora_apps (
    app_id text primary key,
    project text not null,
    certificate text,
    old_certificate text,
    scopes text not null,
    created_ms integer not null
) strict, without rowid;

-- Streams whose memory could not be made, so that no later start tries it again: why, since when, and by which version of
-- the program and its fold; to any other version the row means nothing.
create table quarantined (
    stream integer primary key,
    reason text not null,
    since_ms integer not null,
    version text not null
) strict;

-- What the slim list of sessions shows besides their rows, so that it reads no configuration: what is repeated from that,
-- in bounds, and `figures` (JSON) of the memory at `position`, which are null until they are made.
create table overviews (
    stream integer primary key,
    name text,
    user_id text,
    labels text,
    position integer,
    figures blob
) strict;

-- The bytes of each project's journals, archived parts included, while the service bounds them; otherwise it is empty.
create table stored_bytes (
    project text primary key,
    bytes integer not null
) strict, without rowid;

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

-- Work that one node does at a time, by its kind and the key of its session.
create table claims (
    work text not null,
    key integer not null,
    node text not null,
    until_ms integer not null,
    primary key (work, key)
) strict, without rowid;

-- Replies that a node is streaming: any other one that the journal shows without an end was left open.
create table replies (
    stream integer not null,
    item text not null,
    node text not null,
    primary key (stream, item)
) strict, without rowid;

-- Memories, each of a stream in whose journal the events about it are. `details` is JSON that is only passed on, `supersedes`
-- a JSON array of ids. `topics` and `entities` have a line break before, between and behind them. A row whose memory was removed
-- stays, without content. `event_ms` is `event_at`, comparable. `text_digest` is that of the owner and the text.
create table memories (
    number integer primary key,
    stream integer not null,
    position integer not null,
    id text not null,
    project text not null,
    namespace text,
    user_id text,
    session_id text,
    kind text not null,
    text text not null,
    said_ms integer,
    created_ms integer not null,
    updated_ms integer not null,
    event_at text,
    event_ms integer,
    text_digest integer not null,
    expires_ms integer,
    pinned integer not null,
    removed_ms integer,
    last_accessed_ms integer,
    access_count integer not null,
    topics text not null,
    entities text not null,
    details blob not null,
    supersedes blob not null
) strict;
create unique index memories_by_stream on memories (stream, id);
create unique index memories_by_id on memories (project, id) where removed_ms is null;
create index memories_removed on memories (project, id) where removed_ms is not null;
create index memories_by_project on memories (project, created_ms, id) where removed_ms is null;
create index memories_by_user on memories (project, user_id, created_ms, id)
    where removed_ms is null and user_id is not null;
create index memories_by_session on memories (project, session_id, created_ms, id)
    where removed_ms is null and session_id is not null;
create index memories_by_text on memories (text_digest) where removed_ms is null;
create index memories_to_expire on memories (expires_ms) where removed_ms is null and expires_ms is not null;

-- Which memory (`old_id`) another one (`by_id`, in `stream`) has taken the place of: content of the newer one's stream.
create table superseded (
    stream integer not null,
    by_id text not null,
    old_id text not null,
    project text not null,
    created_ms integer not null
) strict;
create unique index superseded_by_newer on superseded (stream, by_id, old_id);
create index superseded_by_older on superseded (project, old_id);

-- The words of memories by their number. It keeps no texts: what is taken out is given again as it was put in, and is then
-- overwritten in the file. `meta` says (`memory_words`) which words these are; the next start makes others again.
create virtual table memory_words using fts5 (
    scope, said, about, own_said, own_about, content='', tokenize='porter ascii'
);
insert into memory_words (memory_words, rank) values ('secure-delete', 1);
insert into meta values ('memory_words', x'');

-- Vectors of memories, by the embedder that made them; null for a memory that is to have none. What changes the text of a
-- memory, or removes it, deletes its vector.
create table memory_vectors (
    stream integer not null,
    id text not null,
    embedder integer not null,
    vector blob,
    primary key (stream, id)
) strict;

-- Up to where sessions were looked at for memories that an LLM makes of them.
create table extracted (
    stream integer primary key,
    position integer not null
) strict;

-- How many tokens a project has spent on that, on a day since 1970.
create table spent_tokens (
    project text not null,
    day integer not null,
    tokens integer not null,
    primary key (project, day)
) strict;

-- What signs the webhooks of other stacks' platforms, by project and dialect. The secret before the last rotation verifies
-- as well, until its time is over.
create table inbound_secrets (
    project text not null,
    dialect text not null,
    secret text not null,
    set_ms integer not null,
    old_secret text,
    old_secret_until_ms integer,
    identify text,
    primary key (project, dialect)
) strict, without rowid;

-- The keys of a project under which callers' numbers become ids; the newest makes them, and older ones still find.
create table caller_secrets (
    project text not null,
    version integer not null,
    secret blob not null,
    made_ms integer not null,
    primary key (project, version)
) strict, without rowid;

-- Calls at other stacks whose events the service fetches itself, one for a session, and which node does it.
create table observations (
    stream integer primary key,
    dialect text not null,
    call text not null,
    state text not null,
    reason text,
    status integer,
    connections integer not null,
    started_ms integer not null,
    changed_ms integer not null,
    ended_ms integer,
    node text
) strict;
create index observations_going_on on observations (stream) where ended_ms is null;
