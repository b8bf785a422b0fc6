#!/bin/sh
# Start the broker of a container.
# MESSAGE_SIZE_LIMIT: bytes of the largest message; 40 + 4N for N parameters, and a little more. 1 MiB admits 262,000
# parameters, six times the largest model that is shipped; a cloud whose models do not pass says so and ends.
# Of large messages 64 may wait for one client, as in mapa/brokers.py: a cloud has one gradient of each edge to read.
# RUN: the run that edges may write to; empty: any. Then an account can retain any number of messages.
# /secrets, where there are any: handed to the broker's own user, in memory; on the host they are the caller's alone.
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
secrets=${MOSQUITTO_SECRETS:-/secrets}
if [ -d "$secrets" ]; then
  cp "$secrets"/* "$home/secrets/"
  sed "s#/+/#/${RUN:-+}/#" "$home/config/acl" >"$home/secrets/acl"
  chmod 600 "$home"/secrets/*
  chown -R "${MOSQUITTO_USER:-mosquitto:mosquitto}" "$home/secrets"
fi
queued=$((64 * limit))
[ "$queued" -gt 67108864 ] || queued=67108864
sed -e "s/^message_size_limit .*/message_size_limit $limit/" -e "s/^max_queued_bytes .*/max_queued_bytes $queued/" \
  "$home/config/mosquitto.conf" >"$home/data/mosquitto.conf"
exec mosquitto -c "$home/data/mosquitto.conf"
