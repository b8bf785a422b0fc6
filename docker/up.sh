#!/bin/sh
# One run on containers from beginning to end: up, the cloud's words, its exit code; then everything is taken down.
# The volumes stay: they hold the edges' ledgers. Remove them with `docker compose down -v`.
#   EDGES=20 docker/up.sh          left out: as many edges as the scenario has
set -eu
patience=${EDGE_PATIENCE:-60} # seconds for the edges to end after the cloud
cd "$(dirname "$0")/.."

said() { docker compose config | sed -n "s/^ *$1: *\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" | head -n 1; } # with .env read
edges=$(said EDGES)
if [ -z "$edges" ]; then
  file=${SCENARIOS_DIR:-mapa/scenarios}/$(said SCENARIO | sed 's/\.toml$//').toml
  [ -f "$file" ] || { echo "EDGES: not set, and $file does not exist" >&2; exit 2; }
  edges=$(sed -n 's/^edges *= *\([0-9]*\).*/\1/p' "$file")
fi

down() { docker compose down --remove-orphans >/dev/null 2>&1; }
trap 'down' EXIT
trap 'exit 130' INT TERM

# so many are started: wait for all of them, or for a minute in which none has come
GATHER=${GATHER:-60} docker compose up --detach --quiet-pull --scale edge="$edges"
cloud=$(docker compose ps --all --quiet cloud)
docker logs --follow "$cloud"
code=$(docker wait "$cloud")
until [ -z "$(docker compose ps --quiet --status running edge)" ] || [ "$patience" -le 0 ]; do
  sleep 1
  patience=$((patience - 1))
done
for edge in $(docker compose ps --all --quiet edge); do
  ended=$(docker inspect --format '{{.State.Running}} {{.State.ExitCode}}' "$edge")
  if [ "$ended" != "false 0" ]; then
    echo "$(docker inspect --format '{{.Name}}' "$edge" | tr -d /): running, exit code = $ended" >&2
    docker logs --tail 3 "$edge" >&2
  fi
done
exit "$code"
