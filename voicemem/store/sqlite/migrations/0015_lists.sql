-- What lists of calls are filtered by, of the memory as of when its figures were last saved: how many replies were
-- interrupted, and the longest end-to-end latency in ms, without its fraction. Lists leave out erased sessions without a
-- look at each.
alter table streams add column interruptions integer;
alter table streams add column slowest_ms integer;
update streams set (interruptions, slowest_ms) = (
    select json_extract(given, '$.interruptions'), cast(json_extract(given, '$.slowest_ms') as integer)
    from (select cast(figures as text) as given from overviews where stream = streams.key)
    where json_valid(given)
) where state != 'erased' and exists (select 1 from overviews where stream = streams.key and figures is not null);
-- Figures that are saved have no strip: they are made again when they are listed.
update overviews set position = null where figures is not null;

drop index streams_by_start;
create index streams_by_start on streams (project, kind, started_ms, key) where state != 'erased';
create index streams_interrupted on streams (project, kind, started_ms, key) where interruptions > 0;
create index streams_slow on streams (project, kind, started_ms, key, slowest_ms) where slowest_ms >= 1000;

-- Deliveries of sessions that have failed, and those that wait.
create index exports_failed_by_stream on exports (stream) where state = 'failed';
create index exports_pending_by_stream on exports (stream) where state = 'pending';
