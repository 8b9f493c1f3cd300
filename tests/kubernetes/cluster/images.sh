#!/usr/bin/env bash
# Import images once, into the store in the folder DIR that every node begins with a copy of.
# Environment: DIR DEB IMAGES
set -euo pipefail
export PATH=$DEB/usr/sbin:$DEB/usr/bin:$PATH
mkdir -p "$DIR"
"$(dirname "$0")/containerd.sh" "$DIR"
containerd -c "$DIR/containerd.toml" > "$DIR/containerd.log" 2>&1 &
ctr() { command ctr -a "$DIR/containerd.sock" -n k8s.io "$@"; }
until [ -S "$DIR/containerd.sock" ] && ctr version >/dev/null 2>&1; do sleep 0.05; done
for image in $IMAGES; do ctr images import "$image"; done
kill %1
wait
