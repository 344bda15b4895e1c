-- The index of heard messages, which the journals give again at any time. `words` of a message holds its own words and
-- those of the day (of weight A), the words of the message before it, all of them stemmed, and one word for each part of
-- the scope that the message is in. A query asks for the words of its scope in the same expression.
create text search dictionary voicemem_stems (template = snowball, language = english);
create text search configuration voicemem (copy = english);
alter text search configuration voicemem alter mapping replace english_stem with voicemem_stems;

-- Up to where a session is indexed, in which scope, and how many messages and words that are.
create table heard_sessions (
    bucket smallint not null,
    stream bigint not null,
    position bigint not null,
    project bytea not null,
    namespace bytea,
    user_id bytea,
    session_id bytea not null,
    messages bigint not null,
    words bigint not null,
    primary key (bucket, stream)
);
create index heard_sessions_by_user on heard_sessions (project, user_id);
create index heard_sessions_by_id on heard_sessions (project, session_id);

create table heard_messages (
    bucket smallint not null,
    stream bigint not null,
    turn bigint not null,
    number integer not null,
    position bigint not null,
    role text not null,
    said_ms bigint not null,
    text bytea not null,
    before bytea not null,
    length integer not null,
    words tsvector not null,
    primary key (bucket, stream, turn, number)
);
create index heard_messages_by_word on heard_messages using gin (words) with (fastupdate = off);
