-- A row of the journal is a run: events of one producer that came together, at consecutive positions and seqs. `position`
-- and `seq` are those of the first; the payload of a run of several is a JSON array of them.
alter table journal add column count integer not null default 1;
-- Of the payload, since SQLite does not see a bit that has changed on the disk; none in rows of the first version.
alter table journal add column checksum integer;

-- Finds what is stored under a seq, and the last seq of a producer.
create unique index journal_by_seq on journal (stream, producer, seq) where seq is not null;
