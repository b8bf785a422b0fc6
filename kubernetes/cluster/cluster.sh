#!/bin/sh
# A real Kubernetes cluster of one node, from what tools.sh has made, in namespaces of its own: the host keeps its
# network, its mounts and its sysctls, and one process ends it all. Needs root and `unshare`, `ip`, `iptables`, `openssl`;
# the cache of tools.sh must not be below /var/lib.
#   cluster.sh start          start it and wait until its node is ready; volumes for 200 claims are there
#   cluster.sh load IMAGE...  copy images from the Docker engine
#   cluster.sh stop           end it, and remove what it wrote but the programs
# `kubectl` of the folder that `start` names last reaches it, from this machine alone.
set -eu
cache=${MAPA_CLUSTER_CACHE:-$HOME/.cache/mapa-cluster}
place=$cache/run
here=$(cd "$(dirname "$0")" && pwd)
root=$cache/root
PATH=$cache/bin:$root/usr/bin:$root/usr/sbin:$PATH:/usr/sbin:/sbin
address=10.90.0.1 volumes=200

inside() { nsenter --target "$(cat "$place/pid")" --net --mount --pid "$@"; }
runs() { [ -f "$place/pid" ] && [ "$(tr '\0' ' ' <"/proc/$(cat "$place/pid")/cmdline" 2>/dev/null | grep -c cluster.sh)" = 1 ]; }
client() { "$cache/bin/kubectl" --kubeconfig "$place/admin.conf" "$@"; }

await() { # await SECONDS WHAT COMMAND...
  left=$(($1 * 2)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    if [ "$left" -le 0 ] || ! kill -0 "$(cat "$place/pid")" 2>/dev/null; then
      echo "cluster: no $what; its logs are in $place/log" >&2
      exit 1
    fi
    sleep 0.5
  done
}

keys() { # the API server's certificate, the key of service accounts, one token for everybody who may enter here
  token=$(openssl rand -hex 16)
  openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=mapa-cluster -keyout "$place/api.key" -out "$place/api.pem" \
    -addext "subjectAltName=IP:$address,IP:10.91.0.1,IP:127.0.0.1,DNS:kubernetes" 2>/dev/null
  openssl genrsa -out "$place/accounts.key" 2048 2>/dev/null
  echo "$token,admin,1,system:masters" >"$place/tokens"
  cat >"$place/admin.conf" <<END
apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "https://$address:6443", certificate-authority: $place/api.pem}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: here, context: {cluster: here, user: admin}}]
current-context: here
END
}

configuration() {
  mkdir -p "$place/cni"
  cat >"$place/cni/10-pods.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$place/addresses", "ranges": [[{"subnet": "10.92.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
  cat >"$place/containerd.toml" <<END
version = 2
root = "$place/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "local/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$root/usr/lib/cni"
    conf_dir = "$place/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
END
  cat >"$place/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
resolvConf: ""
clusterDNS: [$address]
clusterDomain: cluster.local
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
maxPods: 250
evictionHard: {}
imageGCHighThresholdPercent: 100
END
  cat >"$place/proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $place/admin.conf}
iptables: {masqueradeAll: true}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
}

serve() { # in namespaces of its own, as their first process
  mount --make-rprivate /
  mount -t tmpfs tmpfs /run
  mount --bind "$place/log" /var/log
  mount -t tmpfs tmpfs /var/lib # the kubelet has a place of its own there, whatever it is told
  mkdir -p "$place/sysctl" "$place/kubelet"
  for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    copy=$place/sysctl/$(echo "$name" | tr / _)
    cat "/proc/sys/$name" >"$copy"
    mount --bind "$copy" "/proc/sys/$name" # the kubelet writes them
  done
  ip link set lo up
  ip link add node0 type bridge
  ip address add "$address/24" dev node0
  ip link set node0 up
  ip route add default via "$address" dev node0
  echo 1 >/proc/sys/net/ipv4/ip_forward
  log() { name=$1; shift; "$@" >"$place/log/$name.log" 2>&1 & }
  log etcd etcd --data-dir "$place/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380
  log containerd containerd --config "$place/containerd.toml"
  log api kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address "$address" --secure-port 6443 \
    --tls-cert-file "$place/api.pem" --tls-private-key-file "$place/api.key" --token-auth-file "$place/tokens" \
    --service-account-issuer https://kubernetes.default --service-account-key-file "$place/accounts.key" \
    --service-account-signing-key-file "$place/accounts.key" --service-cluster-ip-range 10.91.0.0/24 \
    --authorization-mode RBAC --kubelet-preferred-address-types InternalIP --allow-privileged=true
  log controllers kube-controller-manager --kubeconfig "$place/admin.conf" --leader-elect=false \
    --service-account-private-key-file "$place/accounts.key" --root-ca-file "$place/api.pem" --use-service-account-credentials=false
  log scheduler kube-scheduler --kubeconfig "$place/admin.conf" --leader-elect=false
  log kubelet kubelet --config "$place/kubelet.yaml" --kubeconfig "$place/admin.conf" --root-dir "$place/kubelet" \
    --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
    --hostname-override=node --node-ip="$address" --cert-dir "$place/kubelet-pki"
  log proxy kube-proxy --config "$place/proxy.yaml" --hostname-override=node
  log dns python3 "$here/dns.py" "$address" "$cache/bin/kubectl" --kubeconfig "$place/admin.conf"
  trap 'exit 0' TERM INT
  while :; do sleep 3600 & wait $! || true; done
}

load() {
  for image in "$@"; do
    docker save "$image" | inside "$root/usr/bin/ctr" -a /run/containerd/containerd.sock -n k8s.io image import - >/dev/null
  done
}

pause() { # what holds a pod's network: busybox, asleep
  docker image inspect local/pause:1 >/dev/null 2>&1 ||
    tar -C "$root/bin" -c busybox | docker import --change 'ENTRYPOINT ["/busybox", "sleep", "2147483647"]' - local/pause:1 >/dev/null
  load local/pause:1
}

claims() { # folders of this machine, for whoever claims one first
  for number in $(seq "$volumes"); do
    folder=$place/volumes/$number
    mkdir -p "$folder"
    chmod 1777 "$folder"
    cat <<END
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: local-$number}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: $folder}
END
  done | client create -f - >/dev/null
}

start() {
  if runs; then
    echo "cluster: runs already; PATH=$place/bin:\$PATH"
    return
  fi
  for name in kube-apiserver kubelet kube-controller-manager kube-scheduler kube-proxy; do
    [ -x "$cache/bin/$name" ] || { echo "cluster: no $name; $here/tools.sh makes it" >&2; exit 1; }
  done
  clear
  mkdir -p "$place/log" "$place/bin"
  keys
  configuration
  setsid unshare --mount --net --pid --fork --mount-proc --kill-child "$here/cluster.sh" serve >"$place/log/cluster.log" 2>&1 </dev/null &
  outer=$!
  for _ in $(seq 50); do
    inner=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null | tr -d ' ')
    [ -n "$inner" ] && break
    sleep 0.1
  done
  echo "$inner" >"$place/pid"
  cat >"$place/bin/kubectl" <<END
#!/bin/sh
exec nsenter --target $inner --net "$cache/bin/kubectl" --kubeconfig "$place/admin.conf" "\$@"
END
  chmod 755 "$place/bin/kubectl"
  client() { "$place/bin/kubectl" "$@"; }
  await 120 "API server" client get --raw /readyz
  await 60 containerd inside test -S /run/containerd/containerd.sock
  pause
  await 120 "ready node" sh -c "'$place/bin/kubectl' get nodes | grep -q ' Ready'"
  await 60 "default account" client get serviceaccount default
  claims
  echo "cluster: ready; PATH=$place/bin:\$PATH"
}

clear() {
  [ ! -d "$place" ] || { grep -o " $place/[^ ]*" /proc/self/mounts | sort -r | xargs -r -n1 umount -l; rm -rf "$place"; }
}

stop() {
  if runs; then
    pid=$(cat "$place/pid")
    kill -KILL "$pid" # the first process of its namespace: the kernel ends all others with it
    while [ -d "/proc/$pid" ]; do sleep 0.1; done
  fi
  for part in k8s.io kubepods; do # what the kernel keeps of containers that are gone
    find /sys/fs/cgroup -depth -type d -path "*/$part*" -exec rmdir {} + 2>/dev/null || true
  done
  clear
  echo "cluster: stopped"
}

case ${1:-} in
start) start ;;
stop) stop ;;
serve) serve ;;
load) shift; load "$@" ;;
*) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
