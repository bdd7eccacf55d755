#!/bin/sh
# Create the database that the environment names, unless it is there, and serve it, as the official image does.
set -eu
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    install --directory --owner postgres --mode 0700 "$PGDATA"
    echo "$POSTGRES_PASSWORD" > /tmp/password
    chown postgres /tmp/password
    as_postgres initdb --username postgres --pwfile /tmp/password --auth scram-sha-256 --encoding UTF8 --locale C >&2
    rm /tmp/password
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE \"$POSTGRES_DB\"" | as_postgres postgres --single -D "$PGDATA" postgres >&2
fi
exec setpriv --reuid postgres --regid postgres --clear-groups postgres -c listen_addresses='*' -c unix_socket_directories=/tmp
