package cli

import (
	"context"
	"flag"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
)

// completeTimeout bounds what completion may wait for.
const completeTimeout = time.Second

// predictFlag returns the completion of a flag, by its name or by the value that its usage text
// names.
func predictFlag(m Meta, f *flag.Flag) complete.Predictor {
	switch f.Name {
	case "format":
		return complete.PredictSet(FormatTable, FormatJSON)
	case "network":
		return fromAgent(m, func(ctx context.Context, a *api.Client, _ []string) []string {
			return networkNames(ctx, a)
		})
	case "node", "peer":
		return predictOfLeases(m, func(l api.Lease) string { return l.Node })
	case "node-id":
		return predictOfLeases(m, func(l api.Lease) string { return l.NodeID })
	case "log-level":
		return complete.PredictSet(api.LogLevels()...)
	}
	switch value, _ := flag.UnquoteUsage(f); {
	case IsBool(f):
		return complete.PredictNothing
	case value == "file":
		return complete.PredictFiles("*")
	case strings.HasPrefix(value, "dir"):
		return complete.PredictDirs("*")
	}
	return complete.PredictAnything
}

// fromAgent completes with words from the agent that the line or the environment names. args are
// the arguments before the word, without flags. If anything fails, it completes nothing.
func fromAgent(m Meta, words func(ctx context.Context, c *api.Client, args []string) []string) complete.Predictor {
	return complete.PredictFunc(func(line complete.Args) []string {
		f := NewAgentFlags(m)
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		f.Register(flags)
		var args []string
		for i := 0; i < len(line.Completed); i++ {
			name, value, hasValue := flagName(line.Completed[i])
			switch known := flags.Lookup(name) != nil; {
			case name == "":
				args = append(args, line.Completed[i])
				continue
			case known && !hasValue && i+1 < len(line.Completed):
				i++
				value, hasValue = line.Completed[i], true
				fallthrough
			case known && hasValue:
				if flags.Set(name, value) != nil {
					return nil
				}
			}
		}
		client, err := f.Open()
		if err != nil {
			return nil
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
		defer cancel()
		return words(ctx, client, args)
	})
}

// PredictNetworks completes the argument NETWORK of commands that take no other.
func PredictNetworks(m Meta) complete.Predictor {
	return fromAgent(m, func(ctx context.Context, c *api.Client, args []string) []string {
		if len(args) > 0 {
			return nil
		}
		return networkNames(ctx, c)
	})
}

// predictSubnets completes [NETWORK] SUBNET: the subnets of the named or default network and, if
// none is named, also the names of networks.
func predictSubnets(
	m Meta, subnets func(ctx context.Context, c *api.Client, network string) ([]netip.Prefix, error),
) complete.Predictor {
	return fromAgent(m, func(ctx context.Context, c *api.Client, args []string) []string {
		var out []string
		if len(args) > 1 {
			return nil
		}
		if len(args) == 0 {
			out = networkNames(ctx, c)
		} else if _, subnet := parseSubnet(args[0]); subnet {
			return nil
		}
		name, err := network(ctx, c, FirstArg(args))
		if err != nil {
			return out
		}
		list, err := subnets(ctx, c, name)
		if err != nil {
			return out
		}
		for _, s := range list {
			out = append(out, s.String())
		}
		return out
	})
}

// PredictLeases completes [NETWORK] SUBNET of commands that take a leased subnet.
func PredictLeases(m Meta) complete.Predictor {
	return predictSubnets(m, func(ctx context.Context, c *api.Client, network string) (out []netip.Prefix, err error) {
		list, err := c.Leases(ctx, network)
		for _, l := range list.Leases {
			out = append(out, l.Subnet)
		}
		return out, err
	})
}

// PredictReservations completes [NETWORK] SUBNET of commands that take a reserved subnet.
func PredictReservations(m Meta) complete.Predictor {
	return predictSubnets(m, func(ctx context.Context, c *api.Client, network string) (out []netip.Prefix, err error) {
		list, err := c.Reservations(ctx, network)
		for _, r := range list.Reservations {
			out = append(out, r.Subnet)
		}
		return out, err
	})
}

func networkNames(ctx context.Context, c *api.Client) (names []string) {
	list, err := c.Networks(ctx)
	if err != nil {
		return nil
	}
	for _, n := range list.Networks {
		names = append(names, n.Name)
	}
	return names
}

// predictOfLeases completes with a value of every lease of the named or default network, or of all networks.
func predictOfLeases(m Meta, what func(api.Lease) string) complete.Predictor {
	return fromAgent(m, func(ctx context.Context, c *api.Client, args []string) (out []string) {
		names := networkNames(ctx, c)
		if name, err := network(ctx, c, FirstArg(args)); err == nil && slices.Contains(names, name) {
			names = []string{name}
		}
		for _, n := range names {
			list, err := c.Leases(ctx, n)
			if err != nil {
				continue
			}
			for _, l := range list.Leases {
				out = append(out, what(l))
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	})
}
