-- Vectors of heard messages and of memories, by the embedder that made them; null for what is to have none. They are kept as
-- arrays, so that the schema is the same with and without pgvector, which compares them. They go with what they are of.
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

-- `digest` is that of the text: the memory may get another.
create table memory_vectors (
    bucket smallint not null,
    stream bigint not null,
    id bytea not null,
    embedder bigint not null,
    digest bytea not null,
    vector real[],
    primary key (bucket, stream, id),
    foreign key (bucket, stream, id) references memories on update cascade on delete cascade
);
alter table memory_vectors alter column vector set storage external;
