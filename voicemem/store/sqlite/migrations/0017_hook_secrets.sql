-- What signs the webhooks of other stacks' platforms, by project and dialect. The secret before the last rotation verifies
-- as well, until its time is over.
create table hook_secrets (
    project text not null,
    dialect text not null,
    secret text not null,
    set_ms integer not null,
    old_secret text,
    old_secret_until_ms integer,
    primary key (project, dialect)
) strict, without rowid;
