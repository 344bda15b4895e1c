-- What signs the webhooks of other stacks' platforms, by project and dialect. The secret before the last rotation verifies
-- as well, until its time is over.
create table hook_secrets (
    project bytea not null,
    dialect bytea not null,
    secret bytea not null,
    set_ms bigint not null,
    old_secret bytea,
    old_secret_until_ms bigint,
    primary key (project, dialect)
);
