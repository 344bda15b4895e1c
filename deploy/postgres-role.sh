#!/bin/sh
# Run once by the image of PostgreSQL, on an empty volume: the role of the nodes, which is no superuser, and its database.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$DATABASE_PASSWORD" --username "$POSTGRES_USER" --dbname postgres <<'SQL'
create role voicemem login password :'password';
create database voicemem owner voicemem;
SQL
