-- Streams whose memory could not be made, so that no later start tries it again: why, since when, and by which version of
-- the program and its fold; to any other version the row means nothing.
create table set_aside (
    stream integer primary key,
    reason text not null,
    since_ms integer not null,
    version text not null
) strict;

-- Why a delivery that is pending is not attempted: `session_set_aside`; null for any other.
alter table exports add column waiting_for text;
