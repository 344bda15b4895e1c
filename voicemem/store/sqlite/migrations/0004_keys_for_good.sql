-- Keys of exports and endpoints are never given again: what was begun for an erased session's may still come to its end.
create table new_endpoints (
    key integer primary key autoincrement,
    stream integer,
    url text not null,
    secret text,
    contents text not null,
    public_only integer not null,
    disabled_ms integer
) strict;
insert into new_endpoints select * from endpoints;
drop table endpoints;
alter table new_endpoints rename to endpoints;
create index endpoints_by_stream on endpoints (stream);

create table new_exports (
    key integer primary key autoincrement,
    stream integer not null,
    endpoint integer not null,
    notice_id text not null,
    event_type integer not null,
    position integer not null,
    closing blob not null,
    payload blob,
    state text not null,
    attempts integer not null,
    due_ms integer,
    lease integer not null,
    leased_until_ms integer not null
) strict;
insert into new_exports select * from exports;
drop table exports;
alter table new_exports rename to exports;
create index exports_due on exports (due_ms) where due_ms is not null;
create index exports_by_stream on exports (stream);
