package cli

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/api"
)

// OnNetwork turns a function on a network into a Call. It uses the given network, or the default
// one when none is given.
func OnNetwork(given string, fn func(ctx context.Context, c *api.Client, name string) error) Call {
	return func(ctx context.Context, c *api.Client) error {
		name, err := network(ctx, c, given)
		if err != nil {
			return err
		}
		return fn(ctx, c, name)
	}
}

// NetworkReader returns a Reader that replaces an empty name by that of the default network before
// it reads.
func NetworkReader[T any](name *string, read Reader[T]) Reader[T] {
	return func(ctx context.Context, c *api.Client, since api.Read) (T, uint64, error) {
		found, err := network(ctx, c, *name)
		if err != nil {
			var none T
			return none, 0, err
		}
		*name = found
		return read(ctx, c, since)
	}
}

// network returns the network to work on: the given one, or the only one the agent takes part in,
// or the only one that exists.
func network(ctx context.Context, client *api.Client, given string) (string, error) {
	if given != "" {
		return given, nil
	}
	list, err := client.Networks(ctx)
	if err != nil {
		return "", err
	}
	var all, joined []string
	for _, n := range list.Networks {
		all = append(all, n.Name)
		if n.Local != nil {
			joined = append(joined, n.Name)
		}
	}
	switch {
	case len(joined) == 1:
		return joined[0], nil
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return "", fmt.Errorf("there is no network yet; `leno network apply` defines one")
	}
	return "", UsageErrorf("there are several networks, name one: %s", strings.Join(all, ", "))
}

// SubnetArgs parses "[NETWORK] SUBNET".
func SubnetArgs(args []string) (network string, subnet netip.Prefix, err error) {
	text := args[len(args)-1]
	if len(args) == 2 {
		network = args[0]
	}
	subnet, ok := parseSubnet(text)
	if _, swapped := parseSubnet(network); swapped && !ok {
		return "", netip.Prefix{}, UsageErrorf("give the network before the subnet")
	}
	if !ok {
		return "", netip.Prefix{}, UsageErrorf("%q is not a subnet such as 10.5.34.0/24", text)
	}
	if subnet != subnet.Masked() {
		return "", netip.Prefix{}, UsageErrorf("%s has host bits set, did you mean %s?", subnet, subnet.Masked())
	}
	return network, subnet, nil
}

// parseSubnet accepts the usual notation, and keys in a store, of which it returns the first subnet: 10.5.34.0-24, or
// flannel's /coreos.com/network/subnets/10.5.34.0-24&fd00:5:0:22::-64.
func parseSubnet(text string) (netip.Prefix, bool) {
	if subnet, err := netip.ParsePrefix(text); err == nil {
		return subnet, true
	}
	for part := range strings.SplitSeq(text[strings.LastIndexByte(text, '/')+1:], "&") {
		i := max(strings.LastIndexByte(part, '-'), 0)
		// 0.0.0.0-0 stands for no IPv4.
		if subnet, err := netip.ParsePrefix(part[:i] + "/" + strings.TrimPrefix(part[i:], "-")); err == nil &&
			subnet.Bits() > 0 {
			return subnet, true
		}
	}
	return netip.Prefix{}, false
}

// FirstArg returns the optional first argument.
func FirstArg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
