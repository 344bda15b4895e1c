-- Calls at other stacks whose events the service fetches itself, one for a session, and which node does it.
create table observations (
    bucket smallint not null,
    stream bigint not null,
    dialect text not null,
    call bytea not null,
    state text not null,
    reason text,
    status bigint,
    connections bigint not null,
    started_ms bigint not null,
    changed_ms bigint not null,
    ended_ms bigint,
    node text,
    primary key (bucket, stream)
);
create index observations_going_on on observations (stream) where ended_ms is null;
