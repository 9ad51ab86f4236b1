package firewall

import (
	"context"
	"errors"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// The names of kinds that get special treatment.
const (
	kindNFTables = "nftables"
	kindLegacy   = "iptables-" + netfilter.VariantLegacy
)

// ErrNotInstalled reports that rules are wanted but nothing is installed that could hold them. The text names what is
// missing and how to do without it.
var ErrNotInstalled = errors.New("program is not installed")

// tableWriter makes the firewall of one kind hold the wanted rules of both address families. One goroutine at a time
// calls its methods. They work on the calling thread, hence in its network namespace.
type tableWriter interface {
	// kind returns its name: iptables-nft, iptables-legacy or nftables.
	kind() string

	// stamp returns a string that changes when another look is worthwhile. It is cheap.
	stamp() string

	// inspect finds out whether this kind can hold the wanted rules here. It writes nothing and loads no kernel module
	// of iptables-legacy.
	inspect(ctx context.Context, want rules) finding

	// apply makes this firewall contain exactly the wanted rules of ours. It lists what is there, compares content
	// and order, and writes the differences, so that wanted rules are never missing for any packet. The empty value
	// removes all our rules, including those of an earlier version; it is then no error that this kind does not exist
	// here. written describes for each table written what was wrong ("iptables-nft table nat: no chain
	// LENO-POSTROUTING"); it is nil when all agreed. apply continues after a part fails and joins the errors.
	apply(ctx context.Context, want rules) (written []string, err error)
}

// finding holds what a kind reports about itself.
type finding struct {
	kind      string
	what      string // the program with its version, "" if the kind needs none
	preferred bool   // the program's plain name leads to this kind
	err       error  // why it cannot hold the rules: ErrNotInstalled, or the error it returned
	usable    bool   // it can hold the rules of at least one address family
	doubt     error  // why the plain name does not tell which kind is preferred
}

// isBroken reports whether the kind is there but does not work.
func (f finding) isBroken() bool { return f.err != nil && !errors.Is(f.err, ErrNotInstalled) }
