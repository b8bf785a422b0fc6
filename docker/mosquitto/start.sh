#!/bin/sh
# Hand the secrets to the broker's own user, in memory: on the host they are the caller's alone.
set -eu
for file in /secrets/* /mosquitto/config/acl; do
  cp "$file" /mosquitto/secrets/
done
chmod 600 /mosquitto/secrets/*
chown -R mosquitto:mosquitto /mosquitto/secrets
exec mosquitto -c /mosquitto/config/mosquitto.conf
