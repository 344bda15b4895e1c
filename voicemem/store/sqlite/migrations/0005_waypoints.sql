-- What is stored under a seq is found from a waypoint: a row of its producer at most 256 positions before. An index of
-- every row doubles the pages that an append writes. (Rows of before are all waypoints.)
drop index journal_by_seq;
alter table journal add column waypoint integer;
create unique index journal_waypoints on journal (stream, producer, seq) where seq is not null and waypoint is not 0;
