// Package firewall keeps leno's own iptables chains, and one jump to each, as
// the networks want them: masquerading of what leaves the overlay, and
// forwarding of what stays in it. Chains beginning with "LENO-" are ours;
// everything else in the tables belongs to somebody else and is left alone.
package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/hashicorp/go-hclog"
)

// ErrNotInstalled says that rules are wanted and the program that writes them is
// missing. The text names the program and how to do without.
var ErrNotInstalled = errors.New("program is not installed")

// Network is what one network wants of the firewall.
type Network struct {
	Name    string
	Pools   []netip.Prefix // the whole network, at most one a family
	Subnets []netip.Prefix // this host's own; none asks for no masquerading
	IPMasq  bool           // masquerade packets from Subnets to outside Pools
	Forward bool           // accept forwarded packets from and to Pools
}

// Report is what one Apply did.
type Report struct {
	Writes int // tables written; 0 when all agreed
}

// Firewall writes the rules. Its methods are called by one goroutine at a time;
// programs are started from the calling thread, hence in its network namespace.
type Firewall struct {
	logger   hclog.Logger
	families []*family
}

// New touches nothing.
func New(logger hclog.Logger) *Firewall {
	return &Firewall{logger: logger, families: []*family{
		{name: "IPv4", command: "iptables", multicast: netip.MustParsePrefix("224.0.0.0/4"), is: netip.Addr.Is4},
		{name: "IPv6", command: "ip6tables", multicast: netip.MustParsePrefix("ff00::/8"), is: netip.Addr.Is6},
	}}
}

// Apply makes the chains say what all networks together want. It reads the
// tables and writes, each table in one transaction, only what differs; no
// packet ever meets an empty chain. No networks, or none that wants a rule,
// removes jumps and chains; then a missing iptables is no error. It goes on past
// a family that fails and joins the errors: ErrNotInstalled when rules of a
// family are wanted and its program is missing.
func (f *Firewall) Apply(ctx context.Context, networks []Network) (Report, error) {
	var report Report
	var errs []error
	for _, fam := range f.families {
		written, err := fam.apply(ctx, f.logger, networks)
		report.Writes += len(written)
		for _, table := range written {
			f.logger.Info("firewall rules written", "command", fam.command, "table", table)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s firewall: %w", fam.name, err))
		}
	}
	return report, errors.Join(errs...)
}
