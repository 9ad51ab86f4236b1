// Package firewall keeps leno's own chains, and one jump to each, as the networks want them: masquerading for packets
// that leave the overlay, and forwarding for packets that stay in it. Chains beginning with "LENO-" and the nftables
// table "inet leno" are ours. Everything else belongs to others and is not changed.
package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// ErrUnseen reports that rules that were right could not be checked again. Nothing is known to be wrong with them.
var ErrUnseen = errors.New("the rules were correct at the last check and could not be checked again: " +
	"either a program that writes rules all the time keeps the tables busy, or the program hangs; tried again")

// Report describes what one Apply did.
type Report struct {
	Writes int // tables written; 0 when all agreed

	// Repaired describes, for each table written, what was wrong in it. It is set when the wanted rules were the same
	// as last time, so that another program must have changed the table.
	Repaired []string

	// Choice is the kind that holds the rules; the zero value when there are none.
	Choice Choice

	// Silent reports that rules are in tables whose changes are not announced: the caller has to poll Touched.
	Silent bool

	// Instead describes what is broken in the kind that this host prefers, while another one holds the rules, or in
	// the program that tells which kind is preferred. It is nil otherwise.
	Instead error

	// Unreadable names tables that iptables cannot show, in the notation of nft: "ip filter, ip nat". They contain what
	// another program wrote and only nft can write. Our rules in them were read from the kernel.
	Unreadable string

	// Unguarded is the error that kept the rules of the guard from being written; nil if they are in force. It is set
	// whether the other rules could be written or not, unless nftables has these, too.
	Unguarded error

	// Leftover is the error that kept our rules in a kind no longer used from being removed; nil when no rules remain
	// there. The wanted rules are in force in either case.
	Leftover error
}

// Firewall keeps the rules of all networks of this host. One goroutine at a time calls its methods. They start
// programs from the calling thread, hence in its network namespace.
type Firewall struct {
	logger   hclog.Logger
	appliers []tableWriter // one for every kind

	chosen  tableWriter // nil while no rule is wanted, or no kind can hold any
	choice  Choice
	broken  bool      // chosen did not work when the choice was made
	instead error     // Report.Instead
	basis   string    // the facts the choice was based on
	again   time.Time // when to choose again even if basis is unchanged; zero for never

	applied *rules // the rules that chosen last applied successfully
	stamp   string // of chosen at that time

	guarded *rules // that nftables last held successfully beside another kind
}

// New returns a Firewall. It changes nothing on the host.
func New(logger hclog.Logger) *Firewall {
	return &Firewall{logger: logger, appliers: []tableWriter{
		newIPTables(logger, netfilter.VariantNFT), newIPTables(logger, netfilter.VariantLegacy), newNFTables(logger),
	}}
}

// Apply makes the firewall hold the rules that all networks together want. It reads the tables and writes only the
// differences, each table in one transaction; no packet ever meets an empty chain. When another kind has to hold the
// rules, the new rules are in place before the old ones are removed. With no networks, or none that wants a rule, it
// removes jumps and chains; then nothing needs to be installed. It continues after a table fails and joins the
// errors: ErrNotInstalled when rules are wanted and no kind can hold them, netfilter.ErrLocked when another program
// keeps the lock. The guard is in nftables in any case.
func (f *Firewall) Apply(ctx context.Context, s State) (Report, error) {
	want := desiredRules(s)
	var report Report
	written, repaired, err := f.write(ctx, s.Type, want)
	report.Writes = len(written)
	if repaired {
		report.Repaired = written
	} else {
		for _, what := range written {
			f.logger.Info("firewall rules written", "what", what)
		}
	}
	if f.chosen != nil {
		report.Choice, report.Silent, report.Instead = f.choice, f.choice.Kind == kindLegacy, f.instead
	}
	if i, ok := f.chosen.(*iptables); ok {
		report.Unreadable = i.unreadable()
	}
	if err == nil {
		written, report.Leftover = f.removeOthers(ctx)
		report.Writes += len(written)
		for _, what := range written {
			f.logger.Info("firewall rules of another kind removed", "what", what)
		}
	}
	for _, a := range f.appliers {
		switch {
		case a.kind() != kindNFTables:
		case a == f.chosen:
			f.guarded = nil
		default:
			f.protect(ctx, a, want.guard, err != nil, &report)
		}
	}
	return report, cmp.Or(err, ctx.Err()) // what is missing because the caller gave up is no result
}

// protect makes nftables hold the guard, and nothing else, because another kind holds the other rules. With keep, it
// leaves other rules in nftables alone, because no other kind may have them yet.
func (f *Firewall) protect(ctx context.Context, nftables tableWriter, g guard, keep bool, report *Report) {
	before, want := f.guarded, rules{guard: g, keep: keep}
	f.guarded = nil
	written, err := nftables.apply(ctx, want)
	report.Writes += len(written)
	if report.Unguarded = err; err == nil {
		f.guarded = &want
	}
	if before != nil && reflect.DeepEqual(before.guard, g) && (keep || !before.keep) {
		report.Repaired = append(report.Repaired, written...)
		return
	}
	for _, what := range written {
		f.logger.Info("firewall rules written", "what", what)
	}
}

// IsTouched reports whether rules in tables whose changes are not announced differ from those of the last Apply. It
// starts no program: it takes a tenth of a millisecond, or some milliseconds beside ten thousand rules of others.
func (f *Firewall) IsTouched() bool {
	i, ok := f.chosen.(*iptables)
	return ok && f.choice.Kind == kindLegacy && i.isTouched()
}

// write makes the chosen kind hold the rules. repaired reports that the rules it wrote had been there before.
func (f *Firewall) write(ctx context.Context, t Type, want rules) (written []string, repaired bool, err error) {
	before := f.applied
	f.applied = nil
	if want.isEmpty() {
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
	case same && stamp == f.stamp && len(written) == 0 && isOnlyUnlisted(err):
		f.applied = before
		err = fmt.Errorf("%w: %w", ErrUnseen, err)
	case f.broken:
		err = fmt.Errorf("%s holds the rules and does not work now; they stay as they are until it works again, "+
			"is uninstalled, or firewall.type is another one: %w", f.choice.Kind, err)
	}
	return written, same, err
}

// lookAgain is the interval between checks of a kind that would be preferred but does not work, while another one
// holds the rules.
const lookAgain = time.Minute

// choose makes sure that chosen is the right kind. It searches when something relevant may have changed: a program
// was installed, removed or replaced, or another type was configured. A kind that fails after it was chosen stays
// chosen, because its rules are in force and are in the same tables as Docker's. It is given up only when it is
// uninstalled or no longer preferred.
func (f *Firewall) choose(ctx context.Context, t Type, want rules) error {
	basis := fmt.Sprintln(t, want.family(false).isEmpty(), want.family(true).isEmpty())
	for _, a := range f.appliers {
		basis += a.stamp() + "\n"
	}
	if f.chosen != nil && f.basis == basis && (f.again.IsZero() || time.Now().Before(f.again)) {
		return nil
	}
	var found []finding
	for _, a := range f.appliers {
		if t == TypeNFTables && a.kind() != kindNFTables || t == TypeIPTables && a.kind() == kindNFTables {
			continue
		}
		seen := a.inspect(ctx, want)
		seen.kind = a.kind()
		found = append(found, seen)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	last := ""
	if f.chosen != nil {
		last = f.chosen.kind()
	}
	best, reason, err := choose(t, found, last)
	if err != nil {
		f.chosen = nil
		return err
	}
	for _, a := range f.appliers {
		if a.kind() == best.kind {
			f.chosen = a
		}
	}
	f.broken = best.isBroken()
	if !f.broken || best.kind != last { // else the reason is the one it was chosen for
		f.choice = Choice{Kind: best.kind, Reason: reason}
	}
	f.basis, f.again, f.instead = basis, time.Time{}, nil
	for _, seen := range found {
		if seen.isBroken() || seen.doubt != nil {
			f.again = time.Now().Add(lookAgain)
		}
		if seen.kind != best.kind && seen.preferred && seen.isBroken() {
			f.instead = seen.err
		}
		if seen.doubt != nil {
			f.instead = seen.doubt
		}
	}
	return nil
}

// isOnlyUnlisted reports whether the joined errors of an applier contain only listings that took too long.
func isOnlyUnlisted(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return false
	}
	return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !errors.Is(e, netfilter.ErrUnlisted) })
}

// removeOthers removes our rules from all kinds but the chosen one, and returns what it wrote.
func (f *Firewall) removeOthers(ctx context.Context) (written []string, err error) {
	var errs []error
	for _, a := range f.appliers {
		if a == f.chosen || a.kind() == kindNFTables {
			continue // nftables has the guard
		}
		w, err := a.apply(ctx, rules{})
		written = append(written, w...)
		if err != nil {
			errs = append(errs, fmt.Errorf("rules of %s stay: %w", a.kind(), err))
		}
	}
	return written, errors.Join(errs...)
}
