-- What lists of calls are filtered by, of the memory as of when its figures were last saved: how many replies were
-- interrupted, and the longest end-to-end latency in ms, without its fraction. Lists leave out erased sessions without a
-- look at each.
alter table streams add column interruptions bigint;
alter table streams add column slowest_ms bigint;
update streams s set
    interruptions = substring(o.given from '"interruptions":([0-9]{1,18})')::bigint,
    slowest_ms = substring(o.given from '"slowest_ms":(-?[0-9]{1,18})')::bigint
from (
    select bucket, stream, encode(substring(figures from 1 for 200), 'escape') as given
    from overviews where figures is not null
) o
where o.bucket = s.bucket and o.stream = s.key and s.state <> 'erased';
-- Figures that are saved have no strip: they are made again when they are listed.
update overviews set position = null where figures is not null;

drop index streams_by_start;
create index streams_by_start on streams (project, kind, started_ms, key) where state <> 'erased';
create index streams_interrupted on streams (project, kind, started_ms, key) where interruptions > 0;
create index streams_slow on streams (project, kind, started_ms, key, slowest_ms) where slowest_ms >= 1000;

-- Deliveries of sessions that have failed, and those that wait.
create index exports_failed_by_stream on exports (stream) where state = 'failed';
create index exports_pending_by_stream on exports (stream) where state = 'pending';
