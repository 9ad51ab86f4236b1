package cli

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
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
	return "", UsageErrorWithFix(insertArg(all[0]), "there are several networks, name one: %s", strings.Join(all, ", "))
}

// SubnetArgs parses "[NETWORK] SUBNET".
func SubnetArgs(args []string) (network string, subnet netip.Prefix, err error) {
	before, text := args[:len(args)-1], args[len(args)-1]
	if len(args) == 2 {
		network = args[0]
	}
	notSubnet := func(fixed ...string) error {
		return UsageErrorWithFix(SetArgs(fixed...), "%q is not a subnet such as %s", text, exampleSubnet)
	}
	subnet, ok := parseSubnet(text)
	meant, similar := meantSubnet(text)
	switch {
	case ok:
	case similar:
		return "", netip.Prefix{}, UsageErrorWithFix(SetArgs(append(before[:len(before):len(before)], meant.String())...),
			"%q is not a subnet, did you mean %s?", text, meant)
	case len(args) == 2:
		if _, swapped := parseSubnet(network); swapped {
			return "", netip.Prefix{}, UsageErrorWithFix(SetArgs(text, network), "the network comes before the subnet")
		}
		return "", netip.Prefix{}, notSubnet(network, exampleSubnet)
	default:
		if a, err := netip.ParseAddr(text); err == nil {
			likely := netip.PrefixFrom(a, likelyLength(a)).Masked()
			return "", netip.Prefix{}, UsageErrorWithFix(SetArgs(likely.String()), "%s is an address, not a subnet such as %s",
				a, likely)
		}
		if !strings.ContainsAny(text, "./:") { // only the network was given
			return "", netip.Prefix{}, notSubnet(text, exampleSubnet)
		}
		return "", netip.Prefix{}, notSubnet(exampleSubnet)
	}
	if whole := subnet.Masked(); subnet != whole {
		return "", netip.Prefix{}, UsageErrorWithFix(SetArgs(append(before[:len(before):len(before)], whole.String())...),
			"%s has host bits set, did you mean %s?", subnet, whole)
	}
	return network, subnet, nil
}

const exampleSubnet = "10.5.34.0/24"

// likelyLength returns the default prefix length of a subnet.
func likelyLength(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

// parseSubnet accepts the usual notation and that of keys in Consul and of paths, for example
// 10.5.34.0-24.
func parseSubnet(text string) (netip.Prefix, bool) {
	subnet, err := netip.ParsePrefix(text)
	if i := strings.LastIndexByte(text, '-'); err != nil && i >= 0 {
		subnet, err = netip.ParsePrefix(text[:i] + "/" + text[i+1:])
	}
	return subnet, err == nil
}

// subnetWithin matches a subnet at the end of a key, or before flannel's second one.
var subnetWithin = regexp.MustCompile(`([0-9a-f:.]+)[-_/]([0-9]+)(?:&|$)`)

// meantSubnet returns the subnet in a key of flannel's or leno's, such as
// /coreos.com/network/subnets/10.5.34.0-24&fd00:5:0:22::-64. It corrects a length that no prefix has.
func meantSubnet(text string) (netip.Prefix, bool) {
	for _, m := range subnetWithin.FindAllStringSubmatch(text, -1) {
		a, err := netip.ParseAddr(m[1])
		if err != nil || a.IsUnspecified() { // 0.0.0.0-0 stands for no IPv4
			continue
		}
		subnet, err := netip.ParsePrefix(m[1] + "/" + m[2])
		if err != nil {
			subnet = netip.PrefixFrom(a, likelyLength(a))
		}
		return subnet.Masked(), true
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
