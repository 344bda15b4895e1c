-- Times are Unix ms. JSON that is passed on as it came is bytea, since jsonb changes what was written. Keys of streams,
-- endpoints and deliveries are made by the nodes from the time, so that nothing waits for a sequence. Nothing cascades,
-- since content is deleted a portion at a time.

-- The store's own values: its schema and the oldest program that may use it, `incarnation` and `cursor_secret`, and
-- which server and timeline it was last seen on.
create table meta (
    name text primary key,
    value bytea not null
);

-- The connections of each node that write. A transaction holds the row of its connection, so raising `fencing_token` waits
-- for the transaction that may still run there, and keeps out one whose bytes are still on their way.
create table lanes (
    token bytea not null,
    lane integer not null,
    fencing_token integer not null,
    node text,
    primary key (token, lane)
);
create index lanes_by_node on lanes (node) where node is not null;

-- The processes that serve the store. What a node holds names its `token`, and is freed when its row is deleted.
create table nodes (
    token text primary key,
    address text collate "C" not null,
    version text collate "C" not null,
    snapshot_version bigint not null,
    started_ms bigint not null,
    expires_ms bigint not null
);

-- Work that one node does at a time, by its kind and the key of its session. A lease of retention stands in `retention`,
-- one of a delivery in `deliveries`.
create table claims (
    work text not null,
    key bigint not null,
    node text not null,
    until_ms bigint not null,
    primary key (work, key)
);
create index claims_by_node on claims (node);

-- Replies that a node is streaming.
create table replies (
    stream bigint not null,
    item text collate "C" not null,
    node text not null,
    primary key (stream, item)
);
create index replies_by_node on replies (node);

-- One row for each transaction of a lane that was not an append, while it may matter: it tells a node that has lost its
-- connection during the commit whether that was one.
create table commit_markers (
    token bytea not null,
    lane integer not null,
    job bigint not null,
    primary key (token, lane, job)
);

-- A stream is a session (or a user's own). `position` is that of the last time the row was saved: an ordinary append
-- writes the journal only. `config` is JSON without secrets; `name`, `user_id` and `channel` are repeated from it.
-- That of a user's own stream has at most a link: the other id of the same person as `user_id`.
-- `interruptions` (replies that were interrupted) and `slowest_ms` (the longest end-to-end latency) are what lists are
-- filtered by, as of when the figures of the memory were last saved. The indexes by start leave out erased sessions.
create table streams (
    key bigint not null,
    project text collate "C" not null,
    kind text not null,
    id text collate "C" not null,
    state text not null,
    position bigint not null,
    started_ms bigint not null,
    ended_ms bigint,
    reason text collate "C",
    config bytea not null,
    silent_since_ms bigint,
    ending_ms bigint,
    ending_ts bigint,
    ending_reason text collate "C",
    provisional boolean not null default false,
    due_ms bigint,
    name text collate "C",
    user_id text collate "C",
    channel text collate "C",
    key_id text collate "C",
    restored_ms bigint,
    interruptions bigint,
    slowest_ms bigint,
    outcome text collate "C",
    primary key (key),
    unique (project, kind, id)
);
create index streams_due on streams (due_ms) where due_ms is not null;
create index streams_by_start on streams (project, kind, started_ms, key) where state <> 'erased';
create index streams_interrupted on streams (project, kind, started_ms, key) where interruptions > 0;
create index streams_slow on streams (project, kind, started_ms, key, slowest_ms) where slowest_ms >= 1000;
create index streams_by_outcome on streams (project, kind, outcome, started_ms, key) where outcome is not null;
create index streams_by_state on streams (project, kind, state, started_ms, key);
create index streams_by_key on streams (project, kind, key);
create index streams_by_user on streams (project, user_id, started_ms, key) where user_id is not null;
create index streams_open_by_key_id on streams (key_id) where key_id is not null and state = 'running';
create index streams_by_key_id on streams (key_id, started_ms) where key_id is not null;
create index streams_restored on streams (project, kind, restored_ms, key) where restored_ms is not null;
create index streams_restored_by_key_id on streams (key_id, restored_ms, key)
where restored_ms is not null and key_id is not null;

-- By the digest of the name, which may be too long for an index.
create index streams_by_name on streams (project, md5(name)) where state = 'running' and name is not null;

-- What appends lock, and never update: an update would leave a dead version of the row at each append. `version` moves with
-- everything that decides about an append and is not in the journal.
create table stream_locks (
    stream bigint not null,
    version integer not null,
    primary key (stream)
);

-- `digest` is the SHA-256 of name and value, which are too long for an index.
create table labels (
    stream bigint not null,
    digest bytea not null,
    primary key (stream, digest)
);

-- `next_seq` is that of the last time the row was saved, like the position of a stream. `node` is the one that the
-- producer is connected to; `expected_until_ms` is until when it is expected back without.
create table producers (
    stream bigint not null,
    name text collate "C" not null,
    epoch bigint not null,
    next_seq bigint not null,
    unsequenced boolean not null,
    ended boolean not null,
    node text,
    expected_until_ms bigint,
    primary key (stream, name)
);
create index producers_by_node on producers (node) where node is not null;

-- A row of the journal is a run: events of one producer that came together, at consecutive positions and seqs.
-- `position` and `seq` are those of the first; the payload of a run of several is a JSON array of them. The primary key
-- is the compare-and-set of an append: each run begins right behind the end of another. Keys of streams begin with the
-- time, so a partition holds what was created in one month. A waypoint is a row of its producer that is in the index of
-- seqs; every run with seqs is one, or has one at most 256 positions before it.
create table journal (
    stream bigint not null,
    position bigint not null,
    producer text collate "C",
    seq bigint,
    received_ms bigint not null,
    count integer not null,
    checksum bigint,
    waypoint boolean not null,
    payload bytea not null,
    primary key (stream, position)
) partition by range (stream);
alter table journal alter column payload set storage external;
create index journal_waypoints on journal (stream, producer, seq) where waypoint;

-- The first part of an ended journal, compressed: runs, from `position` to `last`. The rows behind `last` are in the
-- journal; what is in both is the same. `seqs` holds the first and the last seq of each producer in it, as JSON.
create table archives (
    stream bigint not null,
    position bigint not null,
    last bigint not null,
    seqs bytea not null,
    runs bytea not null,
    primary key (stream, position)
);
alter table archives alter column runs set storage external;

-- What is still to be done with a session: when its journal may be compacted, when it is to be erased, since when it is
-- erased but its content not deleted. A session with nothing to do has no row.
create table retention (
    stream bigint not null,
    compact_ms bigint,
    expires_ms bigint,
    erased_ms bigint,
    node text,
    leased_until_ms bigint not null default 0,
    primary key (stream)
);
create index retention_to_compact on retention (compact_ms) where compact_ms is not null;
create index retention_to_expire on retention (expires_ms) where expires_ms is not null;
create index retention_erased on retention (erased_ms) where erased_ms is not null;

-- Encoded fold states, compressed. Disposable: the journal gives the same state.
create table snapshots (
    stream bigint not null,
    position bigint not null,
    version bigint not null,
    state bytea not null,
    primary key (stream, version)
);
alter table snapshots alter column state set storage external;

-- What the slim list of sessions shows of their memories, as of `position`.
create table overviews (
    stream bigint not null,
    name text collate "C",
    user_id text collate "C",
    labels text collate "C",
    position bigint,
    figures bytea,
    primary key (stream)
);

-- Values taken out of a session's configuration, by their dotted path in it.
create table secrets (
    stream bigint not null,
    name text collate "C" not null,
    value text collate "C" not null,
    primary key (stream, name)
);

-- Streams whose memory could not be made, so that no later start tries it again.
create table quarantined (
    stream bigint primary key,
    reason text not null,
    since_ms bigint not null,
    version text not null
);

-- Receivers of webhooks. A session's own has its `stream`, a project's its `project` and `id`, the operator's neither
-- (it hears of every session).
create table endpoints (
    key bigint primary key,
    stream bigint,
    url text collate "C" not null,
    secret text collate "C",
    contents text not null,
    public_only boolean not null,
    disabled_ms bigint,
    id text collate "C",
    project text collate "C",
    description text collate "C" not null default '',
    event_types text collate "C" not null default '[103]',
    include text collate "C" not null default '[]',
    created_ms bigint not null default 0,
    old_secret text collate "C",
    old_secret_until_ms bigint,
    failing_since_ms bigint,
    disabled_reason text
);
create index endpoints_by_stream on endpoints (stream) where stream is not null;
create unique index endpoints_by_project on endpoints (project, id) where project is not null;
create unique index endpoints_of_operator on endpoints ((true)) where stream is null and project is null;

-- Webhook events on their way to endpoints. A lease moves `due_ms` to its end, so a claim does not look through what is leased.
create table deliveries (
    key bigint primary key,
    stream bigint not null,
    endpoint bigint not null,
    notice_id text collate "C" not null,
    event_type integer not null,
    position bigint not null,
    header bytea not null,
    payload_bytes bigint,
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
create index deliveries_due on deliveries (due_ms) where due_ms is not null;
create index deliveries_by_stream on deliveries (stream);
create index deliveries_waiting on deliveries (endpoint, due_ms) where due_ms is not null;
create index deliveries_by_endpoint on deliveries (endpoint, key);
create index deliveries_by_node on deliveries (node) where node is not null;
-- Deliveries of sessions that have failed, and those that wait.
create index deliveries_failed_by_stream on deliveries (stream) where state = 'failed';
create index deliveries_pending_by_stream on deliveries (stream) where state = 'pending';
-- Deliveries that were not made, for the lists of a project; and those of an endpoint by time, of which a day is counted.
create index deliveries_by_state on deliveries (state, key) where state != 'delivered';
create index deliveries_by_time on deliveries (endpoint, made_ms, state);

-- The payload of a delivery's body in parts, in the order of their keys: a large one in a row that changes with each attempt
-- would be written each time. `deliveries.payload_bytes` is their size once all are there, and null before that.
create table payloads (
    key bigint primary key,
    stream bigint not null,
    delivery bigint not null,
    payload bytea not null
);
create index payloads_by_delivery on payloads (stream, delivery);

create table attempts (
    delivery bigint not null,
    number integer not null,
    started_ms bigint not null,
    duration_ms bigint not null,
    status integer,
    error text collate "C",
    excerpt text collate "C" not null,
    primary key (delivery, number)
);

-- API keys; of each secret only its SHA-256. `scopes` are joined by commas. Limits are 0 where there are none.
create table keys (
    id text collate "C" primary key,
    project text not null,
    name text not null,
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
    app_id text collate "C" primary key,
    project text not null,
    certificate text,
    old_certificate text,
    scopes text not null,
    created_ms bigint not null
);

-- The bytes of each project's journals and archives. Nodes count what they store and delete, and add it here about once a
-- second, since a row that each append updates would leave a dead version each time.
create table stored_bytes (
    project text collate "C" primary key,
    bytes bigint not null
);

-- The transcript index, which the journals give again at any time. `words` of a message holds its own words and
-- those of the day (of weight A), the words of the message before it, all of them stemmed, and one word for each part of
-- the scope that the message is in. A query asks for the words of its scope in the same expression.
create text search dictionary voicemem_stems (template = snowball, language = english);
create text search configuration voicemem (copy = english);
alter text search configuration voicemem alter mapping replace english_stem with voicemem_stems;

-- Up to where a session is indexed, in which scope, and how many messages and words that are.
create table transcript_sessions (
    stream bigint not null,
    position bigint not null,
    project text collate "C" not null,
    namespace text collate "C",
    user_id text collate "C",
    session_id text collate "C" not null,
    started_ms bigint not null,
    messages bigint not null,
    words bigint not null,
    primary key (stream)
);
create index transcript_sessions_by_user on transcript_sessions (project, user_id);
create index transcript_sessions_by_id on transcript_sessions (project, session_id);

create table transcript_messages (
    stream bigint not null,
    turn bigint not null,
    number integer not null,
    position bigint not null,
    role text not null,
    said_ms bigint not null,
    text text collate "C" not null,
    before text collate "C" not null,
    speaker text collate "C" not null,
    length integer not null,
    words tsvector not null,
    primary key (stream, turn, number)
);
create index transcript_messages_by_word on transcript_messages using gin (words) with (fastupdate = off);

-- Memories, each of a stream in whose journal the events about it are. `details` is JSON that is only passed on, `supersedes`
-- a JSON array of ids. `topics` and `entities` have a line break before, between and behind them. A row whose memory was removed
-- stays, without content. `event_ms` is `event_at`, comparable. `text_digest` is that of the owner and the text. `words` holds, stemmed, the words of the text (of weight A), those
-- of what it is about, and one word for each part of its scope; `length` is how many the first two are.
create table memories (
    stream bigint not null,
    position bigint not null,
    id text collate "C" not null,
    project text collate "C" not null,
    namespace text collate "C",
    user_id text collate "C",
    session_id text collate "C",
    kind text not null,
    text text collate "C" not null,
    said_ms bigint,
    created_ms bigint not null,
    updated_ms bigint not null,
    event_at text collate "C",
    event_ms bigint,
    text_digest bigint not null,
    expires_ms bigint,
    pinned boolean not null,
    removed_ms bigint,
    last_accessed_ms bigint,
    access_count bigint not null,
    topics text collate "C" not null,
    entities text collate "C" not null,
    details bytea not null,
    supersedes bytea not null,
    length integer not null default 0,
    words tsvector not null default '',
    primary key (stream, id)
);
create unique index memories_by_id on memories (project, id) where removed_ms is null;
create index memories_removed on memories (project, id) where removed_ms is not null;
-- With their length, since a search by words asks how many memories there are in its scope, and how long they are.
create index memories_by_project on memories (project, created_ms, id) include (length) where removed_ms is null;
create index memories_by_user on memories (project, user_id, created_ms, id) include (length)
    where removed_ms is null and user_id is not null;
create index memories_by_session on memories (project, session_id, created_ms, id) include (length)
    where removed_ms is null and session_id is not null;
create index memories_by_text on memories (text_digest) where removed_ms is null;
create index memories_to_expire on memories (expires_ms) where removed_ms is null and expires_ms is not null;
create index memories_by_word on memories using gin (words) with (fastupdate = off);

-- Which memory (`old_id`) another one (`by_id`, in `stream`) has taken the place of: content of the newer one's stream.
create table superseded (
    stream bigint not null,
    by_id text collate "C" not null,
    old_id text collate "C" not null,
    project text collate "C" not null,
    created_ms bigint not null,
    primary key (stream, by_id, old_id)
);
create index superseded_by_older on superseded (project, old_id);

-- Vectors of messages and of memories, by the embedder that made them; null for what is to have none. They are kept as
-- arrays, so that the schema is the same with and without pgvector, which compares them. They go with what they are of.
create table transcript_vectors (
    stream bigint not null,
    turn bigint not null,
    number integer not null,
    said_ms bigint not null,
    embedder bigint not null,
    vector real[],
    primary key (stream, turn, number),
    foreign key (stream, turn, number) references transcript_messages on delete cascade
);
alter table transcript_vectors alter column vector set storage external;

create table memory_vectors (
    stream bigint not null,
    id text collate "C" not null,
    embedder bigint not null,
    vector real[],
    primary key (stream, id),
    foreign key (stream, id) references memories on update cascade on delete cascade
);
alter table memory_vectors alter column vector set storage external;

-- Up to where sessions were looked at for memories that an LLM makes of them.
create table extracted (
    stream bigint not null,
    position bigint not null,
    primary key (stream)
);

-- How many tokens a project has spent on that, on a day since 1970.
create table spent_tokens (
    project text collate "C" not null,
    day bigint not null,
    tokens bigint not null,
    primary key (project, day)
);

-- What signs the webhooks of other stacks' platforms, by project and dialect. The secret before the last rotation verifies
-- as well, until its time is over.
create table inbound_secrets (
    project text collate "C" not null,
    dialect text collate "C" not null,
    secret text not null,
    set_ms bigint not null,
    old_secret text,
    old_secret_until_ms bigint,
    identify text,
    primary key (project, dialect)
);

-- The keys of a project under which callers' numbers become ids; the newest makes them, and older ones still find.
create table caller_secrets (
    project text collate "C" not null,
    version bigint not null,
    secret bytea not null,
    made_ms bigint not null,
    primary key (project, version)
);

-- Calls at other stacks whose events the service fetches itself, one for a session, and which node does it.
create table observations (
    stream bigint primary key,
    dialect text not null,
    call text not null,
    state text not null,
    reason text,
    status bigint,
    connections bigint not null,
    started_ms bigint not null,
    changed_ms bigint not null,
    ended_ms bigint,
    node text
);
create index observations_going_on on observations (stream) where ended_ms is null;
