-- Apps of Agora's whose tokens are accepted. `certificate` signs; `old_certificate` is the one before the last rotation.
-- `scopes` are joined by commas. The row of an app that was removed stays without certificates: as with a revoked key, the
-- service goes on requiring keys.
create table agora_apps (
    app_id text primary key,
    project text not null,
    certificate text,
    old_certificate text,
    scopes text not null,
    created_ms integer not null
) strict, without rowid;
