-- Memories, each of a stream in whose journal the events about it are. `details` is JSON that is only passed on, `supersedes`
-- a JSON array of ids. `topics` and `entities` have a line break before, between and behind them. A row whose memory was removed
-- stays, without content. `event_ms` is `event_at`, comparable.
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
create index memories_by_id on memories (project, id);
create index memories_by_project on memories (project, created_ms, id) where removed_ms is null;
create index memories_by_user on memories (project, user_id, created_ms, id)
    where removed_ms is null and user_id is not null;
create index memories_by_session on memories (project, session_id, created_ms, id)
    where removed_ms is null and session_id is not null;
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
create virtual table memory_words using fts5 (scope, said, about, content='', tokenize='porter ascii');
insert into memory_words (memory_words, rank) values ('secure-delete', 1);
insert into meta values ('memory_words', x'');
