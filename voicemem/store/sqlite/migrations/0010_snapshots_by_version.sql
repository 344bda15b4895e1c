-- Two versions of the program may serve a store for a while: each has snapshots of its own.
create table snapshots_by_version (
    stream integer not null,
    version integer not null,
    position integer not null,
    state blob not null,
    primary key (stream, version)
) strict;
insert into snapshots_by_version select stream, version, position, state from snapshots;
drop table snapshots;
alter table snapshots_by_version rename to snapshots;
