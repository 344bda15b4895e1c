-- Times are Unix ms. Tables name a stream by its `key` and an endpoint or export by its `key`; nothing cascades, since
-- content is deleted a portion at a time.

-- The store's own values: `incarnation` and `cursor_secret`, made with the file.
create table meta (
    name text primary key,
    value blob not null
) strict, without rowid;

-- A stream is a session (or a user's own). `position` is that of the last time the row was saved: an ordinary append
-- writes the journal only. `config` is JSON without secrets; `name` is repeated from it, for the search by name.
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
    unique (project, kind, id)
) strict;
create index streams_due on streams (due_ms) where due_ms is not null;
create index streams_by_start on streams (project, kind, started_ms, key);
create index streams_by_name on streams (project, name) where state = 'running' and name is not null;

-- `next_seq` is that of the last time the row was saved, like the position of a stream.
create table producers (
    stream integer not null,
    name text not null,
    epoch integer not null,
    next_seq integer not null,
    unsequenced integer not null,
    ended integer not null,
    primary key (stream, name)
) strict, without rowid;

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
    waypoint integer
) strict;
create unique index journal_by_position on journal (stream, position);
create unique index journal_waypoints on journal (stream, producer, seq) where seq is not null and waypoint is not 0;

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
-- erased but not yet gone from the file (`deleted`: from the tables it is). A session with nothing to do has no row.
create table retention (
    stream integer primary key,
    compact_ms integer,
    expires_ms integer,
    erased_ms integer,
    deleted integer not null default 0
) strict;
create index retention_to_compact on retention (compact_ms) where compact_ms is not null;
create index retention_to_expire on retention (expires_ms) where expires_ms is not null;
create index retention_erased on retention (erased_ms) where erased_ms is not null;

-- Encoded fold states, compressed. Disposable: the journal gives the same state.
create table snapshots (
    stream integer primary key,
    position integer not null,
    version integer not null,
    state blob not null
) strict;

-- Values taken out of a session's configuration, by their dotted path in it.
create table secrets (
    stream integer not null,
    name text not null,
    value text not null,
    primary key (stream, name)
) strict, without rowid;

-- Receivers of webhooks. A session's own has its `stream`, a project's its `project` and `id`, the operator's neither
-- (it hears of every session). `event_types` is a JSON array. `failing_since_ms` is the first failed attempt since the last
-- success. Keys of endpoints and exports are never given twice: what was begun for one of an erased session may still
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
    created_ms integer not null default 0,
    old_secret text,
    old_secret_until_ms integer,
    failing_since_ms integer,
    disabled_reason text
) strict;
create index endpoints_by_stream on endpoints (stream);
create index endpoints_by_project on endpoints (project, id) where project is not null;
create index endpoints_of_operator on endpoints (key) where stream is null and project is null;

-- Notices on their way to endpoints. `closing` is JSON. A lease moves `due_ms` to its end, so a claim does not look
-- through what is leased. `restarted_at` is how many attempts were made before the notice was sent again by hand, which
-- begins its schedule again.
create table exports (
    key integer primary key autoincrement,
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
    leased_until_ms integer not null,
    made_ms integer not null default 0,
    restarted_at integer not null default 0
) strict;
create index exports_due on exports (due_ms) where due_ms is not null;
create index exports_by_stream on exports (stream);
create index exports_waiting on exports (endpoint, due_ms) where due_ms is not null;
create index exports_failed on exports (endpoint, made_ms) where state = 'failed';
create index exports_by_endpoint on exports (endpoint);

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

-- API keys; of each secret only its SHA-256. `scopes` are joined by commas.
create table keys (
    id text primary key,
    project text not null,
    name text not null,
    hash blob not null,
    scopes text not null,
    created_ms integer not null,
    revoked_ms integer
) strict, without rowid;
