#!/bin/sh
# Certificates and passwords for a broker that several hosts reach.
#   secrets.sh FOLDER NAME[,NAME...] [GROUP=COUNT...]
#   secrets.sh secrets vm.example.org,192.0.2.7 lab=10 desk=2
# NAME: how the hosts call the broker (DNS or IP). GROUP=COUNT: edges GROUP-0, GROUP-1, … with a password each.
#   FOLDER/broker/     for the VM: certificate, key, password file; mosquitto.conf for a broker without a container
#   FOLDER/cloud/      for the VM: the cloud's password, ca.pem
#   FOLDER/edges/GROUP/  to copy to the workstations of that group: accounts/, ca.pem
# Run it again to add groups: what is there stays, and the broker must read its passwords again. FOLDER/ca.key signs: keep it away from the hosts.
set -eu
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$1 names=$2
shift 2
refuse() { echo "$1: must be $2" >&2; exit 2; }
case $names in *[!A-Za-z0-9_.:,-]* | ,* | *, | *,,* | '') refuse "NAME = '$names'" "DNS names or IP addresses with commas between them" ;; esac
for group in "$@"; do # all before anything is made
  name=${group%%=*} count=${group#*=}
  case $group in *=*) ;; *) refuse "'$group'" "GROUP=COUNT, like lab=10" ;; esac
  case $name in '' | *[!A-Za-z0-9_-]*) refuse "GROUP = '$name' of '$group'" "letters, digits, - and _" ;; esac
  case $count in '' | 0* | *[!0-9]* | ??????*) refuse "COUNT = '$count' of '$group'" "a whole number from 1 to 99999" ;; esac
done
command -v openssl >/dev/null || { echo "openssl is not on PATH (Debian: apt install openssl)" >&2; exit 2; }
command -v mosquitto_passwd >/dev/null || command -v docker >/dev/null || {
  echo "neither mosquitto_passwd nor docker is on PATH (Debian: apt install mosquitto)" >&2
  exit 2
}
umask 077
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
mkdir -p "$folder" && cd "$folder"
days=${DAYS:-825}

certificate() { # certificate NAME SUBJECT: a key and a request for it
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
}

password() { openssl rand -base64 24 | tr '+/' '-_'; }

if [ ! -f ca.key ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem \
    -days 3650 -subj "/CN=mapa testbed authority" 2>/dev/null
fi
mkdir -p broker cloud edges
# `broker` is its name for the cloud beside it
alternatives=$(echo "$names,broker" | tr ',' '\n' | sed -E 's/^([0-9.]+|.*:.*)$/IP:\1/; t; s/^/DNS:/' | paste -sd, -)
if [ -f broker/server.pem ]; then
  for name in $(echo "$alternatives" | tr ',' ' '); do
    case $name in DNS:*) known="-checkhost ${name#DNS:}" ;; *) known="-checkip ${name#IP:}" ;; esac
    # shellcheck disable=SC2086 # two words
    openssl x509 -in broker/server.pem -noout $known | grep -q 'does match' ||
      echo "${name#*:}: the certificate in $PWD/broker does not name it, and stays as it is; to have another, remove broker/server.pem and run this again" >&2
  done
else
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$alternatives" >names
  certificate broker/server "/CN=${names%%,*}"
  openssl x509 -req -in broker/server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -days "$days" \
    -out broker/server.pem 2>/dev/null
  rm -f broker/server.csr names
fi
[ -f cloud/password ] || password >cloud/password
for group in "$@"; do
  name=${group%%=*} count=${group#*=}
  mkdir -p "edges/$name/accounts"
  number=0
  while [ "$number" -lt "$count" ]; do
    account=edges/$name/accounts/$name-$number
    [ -f "$account" ] || password >"$account"
    number=$((number + 1))
  done
  cp ca.pem "edges/$name/ca.pem"
done
cp ca.pem broker/ && cp ca.pem cloud/

# For a broker without a container, which the user who runs this starts: tls.conf with the places of the files.
[ -f broker/acl ] || cp "$here/acl" broker/acl
if [ ! -f broker/mosquitto.conf ]; then
  place=$(printf '%s' "$PWD/broker" | sed 's/[&|\\]/\\&/g')
  { echo "user $(id -un)" && sed "s|/mosquitto/secrets|$place|" "$here/tls.conf"; } >broker/mosquitto.conf
fi

[ ! -f broker/passwords ] || again=1
# Mosquitto keeps hashes; its own tool makes them, from this machine or from its image.
printf 'cloud:%s\n' "$(cat cloud/password)" >broker/passwords
for account in edges/*/accounts/*; do
  [ ! -f "$account" ] || printf '%s:%s\n' "$(basename "$account")" "$(cat "$account")" >>broker/passwords
done
if command -v mosquitto_passwd >/dev/null; then
  mosquitto_passwd -U broker/passwords
else
  docker run --rm --user 0 --volume "$PWD/broker:/work" --entrypoint mosquitto_passwd "${BROKER_IMAGE:-eclipse-mosquitto:2}" -U /work/passwords
fi
# Other users of a host get through neither FOLDER nor a group's folder, which stays closed where it is copied to.
# Below them the users inside the containers must be able to read what is mounted: accounts/ and ca.pem, cloud/.
find cloud edges -type d -exec chmod 755 {} + && find cloud edges -type f -exec chmod 644 {} +
chmod 700 . broker edges && find edges -mindepth 1 -maxdepth 1 -type d -exec chmod 700 {} +
echo "secrets in $PWD: broker/ and cloud/ for the VM, edges/GROUP/ for the workstations"
[ -z "${again:-}" ] || echo "a running broker knows none of the new accounts yet: docker compose -f docker/cloud.yml restart broker, or without a container kill -HUP its process"
