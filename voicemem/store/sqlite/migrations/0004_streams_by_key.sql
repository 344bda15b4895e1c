-- Tails of several sessions look for new ones by key, many times a minute, in projects of any size.
create index streams_by_key on streams (project, kind, key);
