#!/bin/sh
# Start the broker of a container.
# MESSAGE_SIZE_LIMIT: bytes of the largest message; 40 + 4N for N parameters, and a little more. 1 MiB admits 262,000
# parameters, six times the largest model that is shipped; a cloud whose models do not pass says so and ends.
# Of large messages 64 may wait for one client, as in mapa/brokers.py: a cloud has one gradient of each edge to read.
# RUN: the run that edges may write to; empty: any. Then an edge can retain any number of messages.
# /secrets, where it is mounted: what `mapa certs` wrote. The broker's own user gets a copy, in memory. Whenever a file in
# it changes (a revoked certificate, a new password), the broker starts again, which ends all sessions; LOOK: seconds
# between two looks.
set -eu
home=${MOSQUITTO_HOME:-/mosquitto}
limit=${MESSAGE_SIZE_LIMIT:-1048576}
case $limit in 0* | *[!0-9]* | ??????????*)
  echo "MESSAGE_SIZE_LIMIT = '$limit': must be a whole number of bytes from 1 to 999999999" >&2
  exit 2
  ;;
esac
case ${RUN:-} in *[!A-Za-z0-9._-]*)
  echo "RUN = '$RUN': must be letters, digits, . _ and -" >&2
  exit 2
  ;;
esac
secrets=${MOSQUITTO_SECRETS:-/secrets} owner=${MOSQUITTO_USER:-mosquitto:mosquitto}
queued=$((64 * limit))
[ "$queued" -gt 67108864 ] || queued=67108864

configure() { # configure FROM TO
  sed -e "s/^message_size_limit .*/message_size_limit $limit/" -e "s/^max_queued_bytes .*/max_queued_bytes $queued/" \
    -e "s/^max_packet_size .*/max_packet_size $((limit + 4096))/" \
    -e "s/^user .*/user ${owner%%:*}/" "$1" >"$2"
}

if [ ! -d "$secrets" ]; then
  configure "$home/config/mosquitto.conf" "$home/data/mosquitto.conf"
  exec mosquitto -c "$home/data/mosquitto.conf"
fi

each() { # each COMMAND...: run it with every file of the secrets; a folder among them is none of the broker's
  for file in "$secrets"/*; do
    [ ! -f "$file" ] || "$@" "$file"
  done
}
copy() { cat "$1" >"${1##*/}"; } # a Secret is mounted without the right to write, which `cp` would copy
state() { each cat; }
stop() {
  kill -TERM "$broker" 2>/dev/null || true
  wait "$broker" || true
}
trap 'stop; exit 0' TERM INT
cd "$home/secrets" # the paths in its configuration are relative
while :; do
  known=$(state)
  rm -f ./*
  each copy
  configure "$secrets/mosquitto.conf" mosquitto.conf
  sed "s#/+/#/${RUN:-+}/#" "$secrets/acl" >acl
  chmod 600 ./*
  [ "$(id -u)" != 0 ] || chown -R "$owner" .
  mosquitto -c mosquitto.conf &
  broker=$!
  while kill -0 "$broker" 2>/dev/null && [ "$(state)" = "$known" ]; do
    sleep "${LOOK:-5}" &
    wait $! || true # a signal ends it at once
  done
  if [ "$(state)" = "$known" ]; then # it ended by itself
    wait "$broker"
    exit $?
  fi
  echo "secrets have changed: starting again" >&2
  stop
done
