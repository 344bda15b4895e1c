-- Memories, each of a stream in whose journal the events about it are. `details` is JSON that is only passed on, `supersedes`
-- a JSON array of ids. `topics` and `entities` have a line break before, between and behind them. A row whose memory was removed
-- stays, without content. `event_ms` is `event_at`, comparable. `words` holds, stemmed, the words of the text (of weight A), those
-- of what it is about, and one word for each part of its scope; `length` is how many the first two are.
create table memories (
    bucket smallint not null,
    stream bigint not null,
    position bigint not null,
    id bytea not null,
    project bytea not null,
    namespace bytea,
    user_id bytea,
    session_id bytea,
    kind text not null,
    text bytea not null,
    said_ms bigint,
    created_ms bigint not null,
    updated_ms bigint not null,
    event_at bytea,
    event_ms bigint,
    expires_ms bigint,
    pinned boolean not null,
    removed_ms bigint,
    last_accessed_ms bigint,
    access_count bigint not null,
    topics bytea not null,
    entities bytea not null,
    details bytea not null,
    supersedes bytea not null,
    length integer not null default 0,
    words tsvector not null default '',
    primary key (bucket, stream, id)
);
create unique index memories_by_id on memories (project, id) where removed_ms is null;
create index memories_removed on memories (project, id) where removed_ms is not null;
-- With their length, since a search by words asks how many memories there are in its scope, and how long they are.
create index memories_by_project on memories (project, created_ms, id) include (length) where removed_ms is null;
create index memories_by_user on memories (project, user_id, created_ms, id) include (length)
    where removed_ms is null and user_id is not null;
create index memories_by_session on memories (project, session_id, created_ms, id) include (length)
    where removed_ms is null and session_id is not null;
create index memories_to_expire on memories (expires_ms) where removed_ms is null and expires_ms is not null;
create index memories_by_word on memories using gin (words) with (fastupdate = off);

-- Which memory (`old_id`) another one (`by_id`, in `stream`) has taken the place of: content of the newer one's stream.
create table superseded (
    bucket smallint not null,
    stream bigint not null,
    by_id bytea not null,
    old_id bytea not null,
    project bytea not null,
    created_ms bigint not null,
    primary key (bucket, stream, by_id, old_id)
);
create index superseded_by_older on superseded (project, old_id);
