#!/bin/sh
# An overlay for `make bench`: VXLAN of the kernel with one fixed peer.
#
#   make bench BENCH_PEER='plain=examples/bench/vxlan.sh'
set -eu
mtu=$((LENO_BENCH_INTERFACE_MTU - 50))
ip link add overlay0 mtu "$mtu" type vxlan id 1 dstport 4789 nolearning \
	dev "$LENO_BENCH_INTERFACE" local "$LENO_BENCH_ADDRESS" remote "$LENO_BENCH_PEER_ADDRESS"
ip addr add "172.31.0.$LENO_BENCH_HOST/30" dev overlay0
ip link set overlay0 up
ip route add "$LENO_BENCH_PEER_SUBNET" via "172.31.0.$((3 - LENO_BENCH_HOST))"
echo "LENO_MTU=$mtu" >"$LENO_BENCH_SUBNET_FILE"
exec sleep infinity
