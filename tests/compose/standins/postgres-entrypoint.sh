#!/bin/bash
# Stands in for the entrypoint of the official image of PostgreSQL, as far as the project uses it: POSTGRES_USER,
# POSTGRES_PASSWORD, POSTGRES_DB, POSTGRES_INITDB_ARGS, each also as …_FILE, PGDATA, /docker-entrypoint-initdb.d.
set -euo pipefail

read_setting() { # NAME DEFAULT
  local file="${1}_FILE"
  if [ -n "${!file:-}" ]; then
    printf -v "$1" '%s' "$(<"${!file}")"
    unset "$file"
  fi
  printf -v "$1" '%s' "${!1:-$2}"
  export "${1?}"
}

[ "${1:0:1}" != - ] || set -- postgres "$@"
[ "$1" = postgres ] || exec "$@"

read_setting POSTGRES_PASSWORD ''
read_setting POSTGRES_USER postgres
read_setting POSTGRES_DB "$POSTGRES_USER"
read_setting POSTGRES_INITDB_ARGS ''

if [ "$(id -u)" = 0 ]; then
  install -d -o postgres -g postgres -m 700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
  [ -n "$POSTGRES_PASSWORD" ] || { echo 'POSTGRES_PASSWORD is not set' >&2; exit 1; }
  eval 'initdb --username="$POSTGRES_USER" --pwfile=<(printf "%s\n" "$POSTGRES_PASSWORD") '"$POSTGRES_INITDB_ARGS"
  printf '\nhost all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
  PGPASSWORD="$POSTGRES_PASSWORD" pg_ctl -D "$PGDATA" -o "-c listen_addresses='' -k /tmp" -w start
  export PGHOST=/tmp PGUSER="$POSTGRES_USER" PGPASSWORD="$POSTGRES_PASSWORD"
  [ "$POSTGRES_DB" = postgres ] || psql -v ON_ERROR_STOP=1 -d postgres -c "CREATE DATABASE \"$POSTGRES_DB\""
  for file in /docker-entrypoint-initdb.d/*; do
    case "$file" in
      *.sh) . "$file" ;;
      *.sql) psql -v ON_ERROR_STOP=1 -d "$POSTGRES_DB" -f "$file" ;;
    esac
  done
  pg_ctl -D "$PGDATA" -m fast -w stop
  unset PGHOST PGUSER PGPASSWORD
  echo 'PostgreSQL init process complete; ready for start up.'
fi

exec "$@" -c listen_addresses='*' -c unix_socket_directories=/tmp
