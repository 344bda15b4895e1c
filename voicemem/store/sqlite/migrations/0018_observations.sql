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
