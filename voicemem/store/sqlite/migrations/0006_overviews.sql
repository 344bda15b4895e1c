-- What the slim list of sessions shows besides their rows, so that it reads no configuration: what is repeated from that,
-- in bounds, and `figures` (JSON) of the memory at `position`, which are null until somebody has made them.
create table overviews (
    stream integer primary key,
    name text,
    user_id text,
    labels text,
    position integer,
    figures blob
) strict;
insert into overviews (stream, name, user_id, labels)
select key, substr(name, 1, 160), user_id, case when length(labels) <= 2048 then labels end
from (
    select key, name, json_extract(given, '$.user_id') as user_id, json_extract(given, '$.labels') as labels
    from (select key, name, cast(config as text) as given from streams where kind = 'session' and state <> 'erased')
    where json_valid(given)
);
