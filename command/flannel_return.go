package command

import (
	"github.com/lenonet/leno/agent/handover"
	"github.com/lenonet/leno/command/cli"
)

func flannelReturnSpec(m cli.Meta) cli.Spec {
	return newFlannelHandover(m, handover.Return).spec(cli.Spec{
		Name: "flannel return", Synopsis: "Hand leno's devices and routes on this host to flannel",
		Help: `
Lets flannel continue with leno's devices and routes on this host, so that no
packet is lost when the host moves from leno to flannel. Both must use the
same network in the same store. Stop the agent first, then run this, then
start flanneld. After that, leno cleanup -keep-lease removes leno's firewall
rules and files.

With vxlan, the device keeps its MAC address and gets flannel's name. With
vxlan and host-gw, the routes to other hosts become flannel's. In a network
with both address families, IPv6 packets are lost until flanneld has created
its device for IPv6.

  $ leno flannel return -dry-run -config-dir=/etc/leno.d
  $ leno flannel return -config-dir=/etc/leno.d

Needs root, and the store to read the network. Run it as often as you like.`,
	})
}
