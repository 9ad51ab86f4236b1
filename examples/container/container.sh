#!/bin/sh
# A container without a container runtime: the network namespace "try" on a bridge with
# this host's subnet of the network "default", as Docker or a CNI plugin would create it.
set -eu
. /run/leno/default.env
gateway=${LENO_SUBNET%/*}

ip link add br-try mtu "$LENO_MTU" type bridge
ip addr add "$LENO_SUBNET" dev br-try
ip link set br-try up

ip netns add try
ip link add try mtu "$LENO_MTU" type veth peer name eth0 mtu "$LENO_MTU" netns try
ip link set try master br-try up
ip -n try addr add "${gateway%.*}.2/${LENO_SUBNET#*/}" dev eth0
ip -n try link set lo up
ip -n try link set eth0 up
ip -n try route add default via "$gateway"
