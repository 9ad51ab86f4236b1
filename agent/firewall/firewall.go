// Package firewall keeps leno's own chains, and one jump to each, as the
// networks want them: masquerading of what leaves the overlay, and forwarding of
// what stays in it. Chains beginning with "LENO-", and the nftables table "inet
// leno", are ours; everything else belongs to somebody else and is left alone.
package firewall

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
)

// ErrNotInstalled says that rules are wanted and nothing is there that could hold
// them. The text names what is missing and how to do without.
var ErrNotInstalled = errors.New("program is not installed")

// ErrUnseen says that rules that were right could not be looked at again, and
// nothing is known to be wrong with them.
var ErrUnseen = errors.New("rules stand as they were last seen and could not be looked at again: " +
	"either a program that writes rules all the time keeps the tables busy, or the program hangs; tried again")

// State is everything wanted of the firewall.
type State struct {
	Type        Type // zero is TypeAuto
	RandomFully bool // masquerading takes source ports at random, where it can
	Networks    []Network
}

// Report is what one Apply did.
type Report struct {
	Writes int // tables written; 0 when all agreed

	// Healed says of each table written what was wrong in it, when nothing else
	// was wanted than last time, so that somebody else had changed it.
	Healed []string

	// Choice is the kind that holds the rules, the zero value when there are none.
	Choice Choice

	// Silent says that rules stand where nobody tells of changes: Touched has to be
	// asked.
	Silent bool

	// Instead is what is broken of the kind that this host prefers, while another
	// one holds the rules, or of the program that says which it prefers; else nil.
	Instead error

	// Leftover is why rules of ours in a kind that is not used any more could not
	// be removed, nil when none are left. The wanted ones stand all the same.
	Leftover error
}

// applier makes the firewall of one kind hold the wanted rules, of both address
// families. Its methods are called by one goroutine at a time and do their work on
// the calling thread, hence in its network namespace.
type applier interface {
	// kind names it: iptables-nft, iptables-legacy, nftables.
	kind() string

	// stamp changes when it is worthwhile to look again. It is cheap.
	stamp() string

	// look finds out whether this kind can hold the wanted rules here. It writes
	// nothing and loads no kernel module of iptables-legacy.
	look(ctx context.Context, want rules) finding

	// apply makes everything of ours in this firewall say what is wanted, and
	// nothing else: it lists what is there, compares content and order, and writes
	// what differs, so that no packet meets a moment in which wanted rules are
	// missing. The empty value removes all of ours, also what an earlier version
	// left; it is no error then that this kind does not exist here. written says of
	// each table written what was wrong ("iptables-nft table nat: no chain
	// LENO-POSTROUTING"), nil when all agreed. It goes on past a part that fails and
	// joins the errors.
	apply(ctx context.Context, want rules) (written []string, err error)
}

// Firewall keeps the rules of all networks of this host. Its methods are called
// by one goroutine at a time; programs are started from the calling thread, hence
// in its network namespace.
type Firewall struct {
	logger   hclog.Logger
	appliers []applier // of every kind there is

	chosen  applier // nil while no rule is wanted, or nothing can hold any
	choice  Choice
	broken  bool      // chosen did not work when the choice was made
	instead error     // Report.Instead
	basis   string    // what the choice was made of
	again   time.Time // when to make it anew all the same; zero for never

	applied *rules // what was applied last with success, by chosen
	stamp   string // of chosen then
}

// New touches nothing.
func New(logger hclog.Logger) *Firewall {
	return &Firewall{logger: logger, appliers: []applier{
		newIPTables(logger, variantNFT), newIPTables(logger, variantLegacy), newNFTables(logger),
	}}
}

// Apply makes the firewall say what all networks together want. It reads the
// tables and writes, each table in one transaction, only what differs; no packet
// ever meets an empty chain. Where the rules stand by another kind than the one
// they should, the new ones stand before the old ones go. No networks, or none
// that wants a rule, removes jumps and chains; then nothing needs to be
// installed. It goes on past a table that fails and joins the errors:
// ErrNotInstalled when rules are wanted and nothing can hold them, ErrLocked when
// another program keeps the lock.
func (f *Firewall) Apply(ctx context.Context, s State) (Report, error) {
	want := wanted(s)
	var report Report
	written, healed, err := f.hold(ctx, s.Type, want)
	report.Writes = len(written)
	if healed {
		report.Healed = written
	} else {
		for _, what := range written {
			f.logger.Info("firewall rules written", "what", what)
		}
	}
	if f.chosen != nil {
		report.Choice, report.Silent, report.Instead = f.choice, f.choice.Kind == kindLegacy, f.instead
	}
	if err != nil {
		return report, err
	}
	written, report.Leftover = f.removeOthers(ctx)
	report.Writes += len(written)
	for _, what := range written {
		f.logger.Info("firewall rules of another kind removed", "what", what)
	}
	return report, nil
}

// Touched says whether rules that stand where nobody tells of changes are other
// than at the last Apply. It starts no program: it takes a tenth of a millisecond,
// and some milliseconds beside ten thousand rules of others.
func (f *Firewall) Touched() bool {
	i, ok := f.chosen.(*iptables)
	return ok && f.choice.Kind == kindLegacy && i.touched()
}

// hold makes the chosen kind hold the rules. healed says that what was written
// had been there before.
func (f *Firewall) hold(ctx context.Context, t Type, want rules) (written []string, healed bool, err error) {
	before := f.applied
	f.applied = nil
	if want.empty() {
		f.chosen = nil
		return nil, false, nil
	}
	last := f.chosen
	if err := f.choose(ctx, t, want); err != nil {
		return nil, false, err
	}
	stamp := f.chosen.stamp()
	same := f.chosen == last && before != nil && reflect.DeepEqual(*before, want)
	written, err = f.chosen.apply(ctx, want)
	switch {
	case err == nil:
		f.applied, f.stamp = &want, stamp
		f.broken = false
	case same && stamp == f.stamp && len(written) == 0 && onlyUnlisted(err):
		f.applied = before
		err = fmt.Errorf("%w: %w", ErrUnseen, err)
	case f.broken:
		err = fmt.Errorf("%s holds the rules and does not work now; they stay as they are until it works again, "+
			"is uninstalled, or firewall.type is another one: %w", f.choice.Kind, err)
	}
	return written, same, err
}

// onlyUnlisted says of what an applier joined that listings took too long, and
// nothing else failed.
func onlyUnlisted(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	return ok && !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !errors.Is(e, errUnlisted) })
}

// removeOthers takes our rules away from all kinds but the chosen one, and
// returns what it wrote.
func (f *Firewall) removeOthers(ctx context.Context) (written []string, err error) {
	var errs []error
	for _, a := range f.appliers {
		if a == f.chosen {
			continue
		}
		w, err := a.apply(ctx, rules{})
		written = append(written, w...)
		if err != nil {
			errs = append(errs, fmt.Errorf("rules of %s stay: %w", a.kind(), err))
		}
	}
	return written, errors.Join(errs...)
}
