#!/bin/sh
# A Docker engine with Compose on a Debian machine that has none, without systemd.
#   engine.sh start    install what is missing, start a daemon unless one answers, wait until it does
#   engine.sh stop     stop the daemon that `start` started, and no other
# Needs root. Engine 20.10 comes from bookworm; Compose and buildx, single binaries, from trixie.
set -eu
place=${MAPA_ENGINE_DIR:-/run/mapa-engine} # pid and log of a daemon that is ours
plugins=/usr/libexec/docker/cli-plugins

answers() { docker version >/dev/null 2>&1; }

install_engine() {
  command -v dockerd >/dev/null && command -v iptables >/dev/null && return
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io iptables ca-certificates >/dev/null
}

install_plugins() {
  docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 && return
  work=$(mktemp -d)
  # A source of its own: the machine's own packages never see trixie.
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} trixie main" >"$work/sources.list"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/root" "$plugins"
  chmod -R a+rX "$work"
  apt_private() {
    apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
      -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "$@"
  }
  apt_private update
  (cd "$work/debs" && apt_private download docker-compose docker-buildx)
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
  for plugin in docker-compose docker-buildx; do
    binary=$(find "$work/root" -type f -name "$plugin" -perm -u+x | head -n 1)
    [ -n "$binary" ] || { echo "engine: no $plugin in the package" >&2; exit 1; }
    install -m 755 "$binary" "$plugins/$plugin"
  done
  rm -rf "$work"
}

start_engine() {
  answers && { echo "engine: one answers already"; return; }
  mkdir -p "$place"
  setsid nohup dockerd --pidfile "$place/dockerd.pid" >"$place/dockerd.log" 2>&1 </dev/null &
  started=$!
  for _ in $(seq 120); do
    if answers; then
      echo "engine: started, pid $(cat "$place/dockerd.pid"), log $place/dockerd.log"
      return
    fi
    kill -0 "$started" 2>/dev/null || break
    sleep 0.5
  done
  tail -n 20 "$place/dockerd.log" >&2
  echo "engine: dockerd did not start" >&2
  exit 1
}

stop_engine() {
  [ -f "$place/dockerd.pid" ] || { echo "engine: none that we started"; return; }
  pid=$(cat "$place/dockerd.pid")
  # The number may have been given away since: only a dockerd is stopped.
  if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
    kill "$pid"
    for _ in $(seq 60); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.5
    done
  fi
  rm -f "$place/dockerd.pid"
  echo "engine: stopped"
}

case ${1:-} in
start)
  [ "$(id -u)" = 0 ] || answers || { echo "engine: none answers, and only root can start one" >&2; exit 1; }
  answers || install_engine
  install_plugins
  start_engine
  ;;
stop) stop_engine ;;
*) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
