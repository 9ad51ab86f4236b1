package command

import (
	"context"
	"flag"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func reservationAddSpec(m cli.Meta) cli.Spec {
	f := cli.NewAgentFlags(m)
	var r api.Reservation
	force := false
	return cli.Spec{
		Name: "reservation add", Args: "[NETWORK] SUBNET", Min: 1, Max: 2,
		Synopsis: "Reserve a subnet for one host",
		Help: `
Reserves SUBNET for one host, identified by its node name or its node id; give
exactly one of -node and -node-id. A host that has another subnet keeps it
until its lease is released or revoked.

If another host holds the lease of SUBNET, this is refused unless you give
-force. The other host then keeps it until its lease is released or revoked.

  $ leno reservation add 10.5.40.0/24 -node=host-b
  $ leno reservation add blue 10.9.4.0/24 -node=host-b -force`,
		Flags: func(fs *flag.FlagSet) {
			f.Register(fs)
			fs.StringVar(&r.Node, "node", "", "`name` of the host")
			fs.BoolVar(&force, "force", false, "reserve it even if another host holds its lease")
			fs.StringVar(&r.NodeID, "node-id", "", "`id` of the host, as `leno status` shows it there")
		},
		Predict: cli.PredictLeases(m),
		Run: func(ctx context.Context, args []string) error {
			given, subnet, err := cli.SubnetArgs(args)
			if err != nil {
				return err
			}
			if (r.Node == "") == (r.NodeID == "") {
				return cli.UsageErrorf("exactly one of -node and -node-id is needed")
			}
			r.Subnet = subnet
			return f.Call(ctx, cli.OnNetwork(given, func(ctx context.Context, c *api.Client, name string) error {
				if err := c.AddReservation(ctx, name, r, force); err != nil {
					return err
				}
				cli.Printf(m.Stdout, "Reserved %s of network %s for %s.", subnet, name, r.Host())
				return nil
			}))
		},
	}
}
