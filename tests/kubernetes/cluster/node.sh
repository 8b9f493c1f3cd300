#!/usr/bin/env bash
# One real node: containerd, kubelet and kube-proxy. Runs in namespaces of its own, made by real_nodes.py,
# which hands it an eth0.
# Environment: NAME INDEX DIR BIN DEB CGROUP KUBECONFIG LABELS STORE
set -euo pipefail
export PATH=$DEB/usr/sbin:$DEB/usr/bin:$PATH
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip addr add 10.200.0.$((10 + INDEX))/24 dev eth0
ip link set eth0 up
ip route add default via 10.200.0.1
sysctl -qw net.ipv4.ip_forward=1

mkdir -p "$DIR"/{varlog,varlib,cni,vol,opt} /var/lib/kubelet /var/lib/cni
mount -t tmpfs node /run
mount -t tmpfs node /var/lib/cni
mount --bind "$DIR/varlog" /var/log
mount --bind "$DIR/varlib" /var/lib/kubelet
mount --make-rshared /
for controller in /sys/fs/cgroup/*/; do
  case $controller in */unified/) continue ;; esac
  mkdir -p "$controller$CGROUP"
done
# A cpuset begins empty, and one without processors and memory takes no process.
here=/sys/fs/cgroup/cpuset
IFS=/ read -r -a parts <<< "${CGROUP#/}"
for part in "${parts[@]}"; do
  here+=/$part
  for file in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$file" > "$here/$file"; done
done

cat > "$DIR/cni/10-bridge.conflist" <<X
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.$INDEX.0/24"}]],
            "dataDir": "$DIR/ipam", "routes": [{"dst": "0.0.0.0/0"}]}}]}
X
"$(dirname "$0")/containerd.sh" "$DIR"
cat > "$DIR/kubelet.yaml" <<X
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://$DIR/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: $CGROUP
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDNS: [10.200.0.1]
clusterDomain: cluster.local
resolvConf: $DIR/resolv.conf
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100
volumePluginDir: $DIR/vol
nodeStatusUpdateFrequency: 3s
nodeLeaseDurationSeconds: 8
X
: > "$DIR/resolv.conf"

# The images, already unpacked: files of the lower layers never change, so nodes share them. Databases do.
mkdir -p "$DIR/containerd"
cp -al "$STORE/containerd/root" "$DIR/containerd/root"
find "$DIR/containerd/root" -name '*.db' | while read -r db; do
  cp --remove-destination "$STORE/containerd/root/${db#"$DIR/containerd/root/"}" "$db"
done

containerd -c "$DIR/containerd.toml" > "$DIR/containerd.log" 2>&1 &
ctr() { command ctr -a "$DIR/containerd.sock" -n k8s.io "$@"; }
until [ -S "$DIR/containerd.sock" ] && ctr version >/dev/null 2>&1; do sleep 0.05; done
"$BIN/kube-proxy" --kubeconfig="$KUBECONFIG" --hostname-override="$NAME" --proxy-mode=nftables \
  --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 \
  > "$DIR/kube-proxy.log" 2>&1 &
exec "$BIN/kubelet" --kubeconfig="$KUBECONFIG" --config="$DIR/kubelet.yaml" --root-dir=/var/lib/kubelet \
  --cert-dir="$DIR/pki" --hostname-override="$NAME" --node-ip=10.200.0.$((10 + INDEX)) --node-labels="$LABELS"
