#!/bin/sh
# Stand-ins for the images that a registry would give, from Debian packages, and the torch wheel as an image.
# They carry the official names, so that every other file stays as it is, and a label that says what they are.
# Never publish them: they hold this machine's certificate authorities. Needs root and a Docker engine.
#   images.sh [--again]    build what is missing; --again: build anew
set -eu
label=org.mapa.stand-in
suite=bookworm
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
again=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

needed() { # needed IMAGE: whether to build it; an image that is no stand-in is never replaced
  made=$(docker image inspect --format "{{index .Config.Labels \"$label\"}}" "$1" 2>/dev/null) || return 0
  [ "$again" = --again ] && [ -n "$made" ]
}

import() { # import FOLDER IMAGE DIRECTIVE...
  folder=$1 image=$2
  shift 2
  changes=$(for directive in "$@"; do printf '%s\n' "$directive"; done)
  set --
  while IFS= read -r directive; do set -- "$@" --change "$directive"; done <<END
$changes
END
  tar -C "$folder" --numeric-owner -c . |
    docker import "$@" --message "stand-in from Debian packages" - "$image" >/dev/null
  echo "stand-in: $image, $(docker image inspect --format '{{.Size}}' "$image" | awk '{printf "%.0f MB", $1/1e6}')"
}

python_image() {
  root=$work/python
  command -v debootstrap >/dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
  }
  debootstrap --variant=minbase --include=python3,python-is-python3,python3-pip,python3-venv,ca-certificates \
    "$suite" "$root" "$mirror" >"$work/debootstrap.log" 2>&1 || { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
  mkdir -p "$root/usr/local/share/ca-certificates"
  for authority in /usr/local/share/ca-certificates/*.crt; do
    [ ! -f "$authority" ] || cp "$authority" "$root/usr/local/share/ca-certificates/"
  done
  chroot "$root" update-ca-certificates >/dev/null 2>&1
  # pip must work as in the official image, which has no system packages to protect
  rm -f "$root"/usr/lib/python3.*/EXTERNALLY-MANAGED
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/usr/share/doc/* \
    "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/info/*
  rm -rf "$root"/dev/* "$root"/proc/* "$root"/sys/*
  import "$root" python:3.11-slim "LABEL $label=debian-$suite" 'CMD ["python3"]' \
    'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin LANG=C.UTF-8'
}

broker_image() {
  root=$work/broker debs=$work/debs
  mkdir -p "$debs" "$root/bin" "$root/tmp" "$root/etc" "$root/mosquitto/config" "$root/mosquitto/data" "$root/mosquitto/log"
  apt-get update -qq
  # What a machine without any package would need, less what only Debian's own set-up asks for.
  packages=$(apt-get install -s --no-install-recommends -o Dir::State::status=/dev/null mosquitto mosquitto-clients busybox-static |
    sed -n 's/^Inst \([^ :]*\).*/\1/p' | grep -E '^(mosquitto|busybox|lib)' | grep -vE '^lib(pam|semanage|sepol|audit|db5)')
  (cd "$debs" && apt-get -qq -o APT::Sandbox::User=root download $packages coreutils)
  for deb in "$debs"/*.deb; do
    case $deb in */coreutils_*) continue ;; esac
    dpkg-deb -x "$deb" "$root"
  done
  # Debian's mosquitto block-buffers its log on a pipe; stdbuf makes `docker logs` see every line.
  mkdir -p "$work/coreutils"
  dpkg-deb -x "$debs"/coreutils_*.deb "$work/coreutils"
  install -D "$work/coreutils/usr/bin/stdbuf" "$root/usr/bin/stdbuf"
  install -D "$work/coreutils/usr/libexec/coreutils/libstdbuf.so" "$root/usr/libexec/coreutils/libstdbuf.so"
  for name in sh cat ls chown chmod mkdir sleep kill grep sed head tail wc cp rm touch id; do
    [ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"
  done
  printf 'root:x:0:0:root:/root:/bin/sh\nmosquitto:x:1883:1883::/:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\nmosquitto:x:1883:\n' >"$root/etc/group"
  printf 'listener 1883\nallow_anonymous true\n' >"$root/mosquitto/config/mosquitto.conf"
  cat >"$root/docker-entrypoint.sh" <<'END'
#!/bin/sh
set -e
[ "$(id -u)" != 0 ] || chown -R mosquitto:mosquitto /mosquitto 2>/dev/null || true
exec stdbuf -oL "$@"
END
  chmod 755 "$root/docker-entrypoint.sh"
  chmod 1777 "$root/tmp"
  chown -R 1883:1883 "$root/mosquitto"
  rm -rf "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale" "$root/usr/share/lintian" "$root/lib/systemd" "$root/etc/init.d"
  import "$root" eclipse-mosquitto:2 "LABEL $label=debian-$suite" 'ENTRYPOINT ["/docker-entrypoint.sh"]' \
    'CMD ["/usr/sbin/mosquitto","-c","/mosquitto/config/mosquitto.conf"]' 'EXPOSE 1883' \
    'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin' \
    'VOLUME ["/mosquitto/data","/mosquitto/log"]'
}

wheels_image() { # the folder where pip finds the CPU build of torch, where pip is told of one
  folder=${TORCH_WHEELS:-${PIP_FIND_LINKS:-$(pip config get global.find-links 2>/dev/null || true)}}
  wheel=$(find "${folder:-/nonexistent}" -maxdepth 1 -name 'torch-*cp311*.whl' 2>/dev/null | head -n 1)
  [ -n "$wheel" ] || { echo "stand-in: no torch wheel in '${folder:-}' (TORCH_WHEELS=FOLDER); pip will ask its index"; return; }
  tar -C "$(dirname "$wheel")" -c "$(basename "$wheel")" | docker import --change "LABEL $label=wheels" - local/wheels:torch >/dev/null
  echo "stand-in: local/wheels:torch, $(basename "$wheel")"
}

if needed python:3.11-slim; then python_image; fi
if needed eclipse-mosquitto:2; then broker_image; fi
if needed local/wheels:torch; then wheels_image; fi
