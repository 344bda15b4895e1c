-- Vectors of heard messages, by the embedder that made them; null for a message that is to have none. They are kept as
-- arrays, so that the schema is the same with and without pgvector, which compares them. They go with their messages.
create table heard_vectors (
    bucket smallint not null,
    stream bigint not null,
    turn bigint not null,
    number integer not null,
    said_ms bigint not null,
    embedder bigint not null,
    vector real[],
    primary key (bucket, stream, turn, number),
    foreign key (bucket, stream, turn, number) references heard_messages on delete cascade
);
alter table heard_vectors alter column vector set storage external;
