#!/bin/sh
# Lowers the priority of flannel's routes on this host: each gets a large metric instead
# of its own. The routes carry packets until leno has a route to the same subnet, and
# again after leno is removed from this host. Running the script again does nothing.
#
#   step-back.sh 10.5.0.0/16 [fd00:5::/48]
set -eu

second=10000 # the new metric; leno's routes have the lowest one
ours=108     # the route protocol of leno's routes

[ $# -gt 0 ] || { echo "usage: $0 NETWORK..." >&2; exit 2; }
for network; do
	case $network in *:*) family=-6 ;; *) family=-4 ;; esac
	# Add the copy before deleting the original, so that there is always a route.
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
