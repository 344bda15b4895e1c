-- Up to where sessions were looked at for memories that an LLM makes of them.
create table extracted (
    stream integer primary key,
    position integer not null
) strict;

-- Which node makes memories of a session.
create table extraction_claims (
    stream integer primary key,
    node text not null,
    leased_until_ms integer not null
) strict;

-- How many tokens a project has spent on that, on a day since 1970.
create table spent_tokens (
    project text not null,
    day integer not null,
    tokens integer not null,
    primary key (project, day)
) strict;
