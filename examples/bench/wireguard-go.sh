#!/bin/sh
# An overlay for `make bench`: wireguard-go, which has the library that leno's backend uses, with one fixed peer.
#
#   go build -o bin/wireguard-go golang.zx2c4.com/wireguard
#   make bench BENCH_PEER='wireguard-go=examples/bench/wireguard-go.sh'
set -eu
PATH=$PWD/bin:$PATH
key() { printf 'the benchmark key of host %-6s' "$1" | base64; } # 32 bytes
link=bench$LENO_BENCH_HOST peer=$((3 - LENO_BENCH_HOST)) mtu=$((LENO_BENCH_INTERFACE_MTU - 60))
key "$LENO_BENCH_HOST" >"$LENO_BENCH_DIR/key"
wireguard-go -f "$link" &
until wg show "$link" >/dev/null 2>&1; do
	kill -0 $!
	sleep 0.1
done
wg set "$link" private-key "$LENO_BENCH_DIR/key" listen-port 51820 \
	peer "$(key "$peer" | wg pubkey)" endpoint "$LENO_BENCH_PEER_ADDRESS:51820" allowed-ips "$LENO_BENCH_PEER_SUBNET"
ip link set "$link" mtu "$mtu" up
ip route add "$LENO_BENCH_PEER_SUBNET" dev "$link"
echo "LENO_MTU=$mtu" >"$LENO_BENCH_SUBNET_FILE"
wait
