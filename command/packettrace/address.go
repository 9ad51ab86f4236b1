package packettrace

import (
	"context"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

// RunAddress follows packets between this host and an address, and prints the verdict.
func RunAddress(ctx context.Context, s *cli.Session, text string) error {
	to, err := netip.ParseAddr(text)
	if err != nil {
		return cli.UsageErrorf("%q is not an address such as 10.5.34.2", text)
	}
	var request api.TraceRequest
	err = s.Call(ctx, func(ctx context.Context, c *api.Client) error {
		list, err := c.Networks(ctx)
		request = requestForAddress(list.Networks, to)
		return err
	})
	if err != nil {
		return err
	}
	return (&tracer{Session: s}).run(ctx, request, writeTraceVerdict)
}

// requestForAddress returns the request for packets from this host to an address, or to this host if the address is one
// of its containers'.
func requestForAddress(networks []api.Network, to netip.Addr) api.TraceRequest {
	out := api.TraceRequest{Destination: to}
	for _, n := range networks {
		if n.Local == nil {
			continue
		}
		own := ownOverlayAddress(n.Local.Subnets, to)
		if !own.IsValid() {
			own = firstOfFamily(n.Local.Underlay.Own, to)
		}
		if !own.IsValid() {
			own = firstOfFamily(n.Local.Underlay.Addresses, to)
		}
		isIn := func(p netip.Prefix) bool { return p.Contains(to) }
		switch {
		case slices.ContainsFunc(n.Local.Subnets, isIn):
			return api.TraceRequest{Source: to, Destination: own}
		case slices.ContainsFunc(n.Pools, func(p api.Pool) bool { return isIn(p.Prefix) }), !out.Source.IsValid():
			out.Source = own
		}
	}
	return out
}

func firstOfFamily(list []netip.Addr, of netip.Addr) netip.Addr {
	for _, a := range list {
		if a.Is4() == of.Is4() {
			return a
		}
	}
	return netip.Addr{}
}
