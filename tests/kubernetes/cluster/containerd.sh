#!/usr/bin/env bash
# Write the configuration of a containerd whose data lies in the folder $1, and make what it needs there.
# Environment: DEB
set -euo pipefail
DIR=$1
mkdir -p "$DIR"/{cni,opt}
cat > "$DIR/containerd.toml" <<X
version = 2
root = "$DIR/containerd/root"
state = "$DIR/containerd/state"
[grpc]
  address = "$DIR/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$DIR/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:test"
  # Root in a container has no right to lower a process's score (CAP_SYS_RESOURCE).
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$DEB/usr/lib/cni"
    conf_dir = "$DIR/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$DEB/usr/sbin/runc"
      SystemdCgroup = false
X
