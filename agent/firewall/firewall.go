// Package firewall keeps leno's own iptables chains, and one jump to each, as
// the networks want them: masquerading of what leaves the overlay, and
// forwarding of what stays in it. Chains beginning with "LENO-" are ours;
// everything else in the tables belongs to somebody else and is left alone.
package firewall

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"
)

// ErrNotInstalled says that rules are wanted and the program that writes them is
// missing. The text names the program and how to do without.
var ErrNotInstalled = errors.New("program is not installed")

// Report is what one Apply did.
type Report struct {
	Writes int // tables written; 0 when all agreed
}

// applier makes a firewall of one kind hold the wanted rules. Its methods are
// called by one goroutine at a time and do their work on the calling thread,
// hence in its network namespace.
type applier interface {
	// apply makes everything of ours in this firewall say what is wanted, and
	// nothing else: it lists what is there, compares content and order, and
	// writes what differs, so that no packet meets a moment in which wanted rules
	// are missing. The empty value removes all of ours, also what an earlier
	// version left; it is no error then that this kind does not exist here.
	// written names what had to be written ("iptables table nat"), nil when all
	// agreed. It goes on past a part that fails and joins the errors:
	// ErrNotInstalled when rules are wanted and this kind cannot be had.
	apply(ctx context.Context, want rules) (written []string, err error)
}

// Firewall keeps the rules of all networks of this host. Its methods are called
// by one goroutine at a time; programs are started from the calling thread, hence
// in its network namespace.
type Firewall struct {
	logger  hclog.Logger
	applier applier
}

// New touches nothing.
func New(logger hclog.Logger) *Firewall {
	return &Firewall{logger: logger, applier: newIPTables(logger, "")}
}

// Apply makes the chains say what all networks together want. It reads the
// tables and writes, each table in one transaction, only what differs; no
// packet ever meets an empty chain. No networks, or none that wants a rule,
// removes jumps and chains; then a missing iptables is no error. It goes on past
// a family that fails and joins the errors: ErrNotInstalled when rules of a
// family are wanted and its program is missing.
func (f *Firewall) Apply(ctx context.Context, networks []Network) (Report, error) {
	written, err := f.applier.apply(ctx, wanted(networks))
	for _, what := range written {
		f.logger.Info("firewall rules written", "what", what)
	}
	return Report{Writes: len(written)}, err
}
