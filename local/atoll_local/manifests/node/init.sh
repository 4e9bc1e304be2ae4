# Pid 1 of the node. Restarts each service when it ends, as systemd does.
set -eu
mount --make-rshared /
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/containerd
bind() { mkdir -p "$$1" "$$2"; mount --bind "$$1" "$$2"; }
bind "$root/kubelet" /var/lib/kubelet
bind "$root/containerd" /var/lib/containerd
bind "$root/cni" /etc/cni/net.d
bind "$root/cni-state" /var/lib/cni
bind "$root/pods-log" /var/log/pods
bind "$root/containers-log" /var/log/containers
sysctl -qw net.ipv4.ip_forward=1
touch /run/mounted
until [ -e "$root/network-ready" ]; do sleep 0.05; done
log() { basename "$$1" | sed 's/-[0-9.]*$$//'; }
serve() { while true; do "$$@" >>"$root/log/$$(log "$$1").log" 2>&1 || true; sleep 0.3; done; }
serve containerd --config "$root/containerd.toml" &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
serve "$kubelet" --config="$root/kubelet.yaml" --kubeconfig="$root/kubelet.conf" --hostname-override=$name \
  --node-ip=$address --node-labels=$labels --root-dir=/var/lib/kubelet --v=1 &
serve "$proxy" --config="$root/proxy.yaml" --hostname-override=$name &
[ $chips = 0 ] || serve "$python" -m atoll_local.deviceplugin "$root/tpu.json" &
wait
