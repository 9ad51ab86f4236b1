#!/bin/sh
# Makes flannel's routes of this host its second choice: each gets a large metric
# instead of its own. They carry packets until leno has a route to the same subnet,
# and again when leno is taken off this host. Run it again and it does nothing.
#
#   step-back.sh 10.5.0.0/16 [fd00:5::/48]
set -eu

second=10000 # the metric; leno's own routes have the first one there is
ours=108     # the number of the protocol on leno's routes

[ $# -gt 0 ] || { echo "usage: $0 NETWORK..." >&2; exit 2; }
for network; do
	case $network in *:*) family=-6 ;; *) family=-4 ;; esac
	# The copy is there before the original goes: there is no moment without.
	ip "$family" route show root "$network" | awk -v second="$second" -v ours="$ours" '
		/^unreachable/ || !/ via / { next }
		{
			via = dev = onlink = ""; metric = 0; protocol = ""
			for (i = 2; i <= NF; i++) {
				if ($i == "via") via = $(i + 1)
				if ($i == "dev") dev = $(i + 1)
				if ($i == "proto") protocol = $(i + 1)
				if ($i == "metric") metric = $(i + 1)
				if ($i == "onlink") onlink = " onlink"
			}
			if (protocol == ours || metric >= second) next
			print "route replace " $1 " via " via " dev " dev onlink " metric " second
			print "route del " $1 " via " via " dev " dev (metric ? " metric " metric : "")
		}' | ip "$family" -batch -
done
