-- The first part of an ended journal, compressed: runs, from `position` to `last`. The rows from `last` on are in the
-- journal; what is in both is the same. `seqs` are the first and the last seq of each producer in it.
create table archives (
    stream integer not null,
    position integer not null,
    last integer not null,
    seqs blob not null,
    runs blob not null
) strict;
create unique index archives_by_position on archives (stream, position);

-- What is still to be done with a session: when its journal may be compacted, when it is to be erased, since when it is
-- erased and not yet gone from the file (with `deleted`, from the tables it is). With nothing to do there is no row.
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

insert into retention (stream, compact_ms, expires_ms)
    select key, ended_ms + cast(1000 * ifnull(json_extract(config, '$.reopen_window'), 3600) as integer),
        ended_ms + cast(1000 * json_extract(config, '$.ttl_seconds') as integer)
    from streams where state = 'ended' and ended_ms is not null;
