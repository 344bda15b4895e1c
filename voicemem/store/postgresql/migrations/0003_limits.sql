-- Rows that a transaction locks for what must be done one after another over all nodes: claims of deliveries, and the
-- start of sessions in a project that has quotas. They are made when they are first needed, and never change.
create table turns (
    name bytea primary key
);

-- The bytes of each project's journals and archives. Nodes count what they store and delete, and add it here about once a
-- second, since a row that each append updates would leave a dead version each time.
create table stored_bytes (
    project bytea primary key,
    bytes bigint not null
);
insert into stored_bytes select s.project, sum(r.size) from (
    select bucket, stream, octet_length(payload) as size from journal
    union all select bucket, stream, octet_length(runs) from archives
) r join streams s on s.bucket = r.bucket and s.key = r.stream group by s.project;
