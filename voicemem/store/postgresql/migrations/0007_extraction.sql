-- Up to where sessions were looked at for memories that an LLM makes of them.
create table extracted (
    bucket smallint not null,
    stream bigint not null,
    position bigint not null,
    primary key (bucket, stream)
);

-- How many tokens a project has spent on that, on a day since 1970.
create table spent_tokens (
    project bytea not null,
    day bigint not null,
    tokens bigint not null,
    primary key (project, day)
);
