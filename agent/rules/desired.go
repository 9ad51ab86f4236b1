package rules

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/retry"
)

// desired is what the networks want, and the result of the last attempt to apply it.
type desired struct {
	mu sync.Mutex // never held while a program runs, because that may hang

	wishes   wishes
	former   map[string][]formerPort // by network
	present  map[string]bool         // networks that are here: they hold a lease, or their datapath exists
	applying bool                    // Firewall.Apply runs
	last     outcome
	backoff  *retry.Backoff
	flapping flapping.Detector
}

// formerPort is the UDP port of a tunnel that a network no longer has. Other hosts may still have that tunnel: their
// containers would be open to those of this host.
type formerPort struct {
	number uint16
	since  time.Time
}

// formerPorts is how long former ports stay guarded. They are removed with the next look at the rules.
const formerPorts = time.Minute

// wishes are what is to be applied.
type wishes struct {
	config   config.Firewall
	networks map[string]firewall.Network
}

// outcome is the result of the last attempt.
type outcome struct {
	applied *wishes // those in force; nil after a failure
	failed  *wishes // those that failed; nil after a success
	err     error   // of failed
	retryAt time.Time
	looked  time.Time       // when the attempt ended
	report  firewall.Report // of the last success, except for Unguarded
}

func newDesired(c config.Firewall) desired {
	return desired{
		wishes:  wishes{c, map[string]firewall.Network{}},
		former:  map[string][]formerPort{},
		present: map[string]bool{},
		backoff: retry.NewBackoff(),
	}
}

func (d *desired) configure(c config.Firewall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wishes.config = c
}

func (d *desired) want(networks ...firewall.Network) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range networks {
		for _, port := range d.wishes.networks[n.Name].Ports {
			if !slices.Contains(n.Ports, port) {
				d.former[n.Name] = append(d.former[n.Name], formerPort{port, time.Now()})
			}
		}
		d.wishes.networks[n.Name] = n
	}
}

// resume marks a network as present. It reports whether the network has wishes.
func (d *desired) resume(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.wishes.networks[name]
	if known {
		d.present[name] = true
	}
	return known
}

// drop removes a network. It reports whether the network had wishes, and whether the firewall may have rules of it that
// are not being removed yet.
func (d *desired) drop(name string) (known, needed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known = d.wishes.networks[name]; !known && (d.last.applied != nil || d.hasFailed()) {
		return false, false
	}
	delete(d.wishes.networks, name)
	delete(d.former, name)
	delete(d.present, name)
	return known, true
}

// begin starts an attempt and returns what it is to apply.
func (d *desired) begin() (firewall.State, *wishes) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applying = true
	now := &wishes{d.wishes.config, maps.Clone(d.wishes.networks)}
	s := firewall.State{Type: firewall.Type(now.config.Type), RandomFully: now.config.RandomFully}
	for _, name := range slices.Sorted(maps.Keys(now.networks)) {
		n := now.networks[name]
		d.former[name] = slices.DeleteFunc(d.former[name], func(p formerPort) bool {
			return time.Since(p.since) >= formerPorts
		})
		if former := d.former[name]; len(former) > 0 {
			n.Ports = slices.Clone(n.Ports)
			for _, p := range former {
				n.Ports = append(n.Ports, p.number)
			}
			slices.Sort(n.Ports)
			n.Ports = slices.Compact(n.Ports)
		}
		s.Networks = append(s.Networks, n)
	}
	return s, now
}

// The caller of the following methods holds mu.

// finish records an attempt that ended at now. A failure because the caller gave up is no reason to wait.
func (d *desired) finish(now time.Time, tried *wishes, report firewall.Report, err error, gaveUp bool) {
	d.applying = false
	d.last.looked = now
	switch {
	case err == nil:
		d.last = outcome{applied: tried, looked: now, report: report}
		d.backoff.Reset()
	case gaveUp:
		d.last.applied = nil
	default:
		d.last.applied, d.last.report.Unguarded = nil, report.Unguarded
		d.last.failed, d.last.err, d.last.retryAt = tried, err, now.Add(d.backoff.Next())
	}
}

// isTried reports whether the wishes need no attempt now: they are in force, or they failed and are being applied or
// wait for their next attempt.
func (d *desired) isTried(now time.Time) bool {
	if d.hasFailed() && (d.applying || now.Before(d.last.retryAt)) {
		return true
	}
	return d.last.applied != nil && reflect.DeepEqual(*d.last.applied, d.wishes)
}

// hasFailed reports whether the last attempt was made with these wishes, and failed.
func (d *desired) hasFailed() bool {
	return d.last.failed != nil && reflect.DeepEqual(*d.last.failed, d.wishes)
}

// isIdle reports whether there is nothing to keep: no network is here, and no rules of one that was are left.
func (d *desired) isIdle() bool {
	return len(d.present) == 0 && (d.last.applied != nil || d.last.looked.IsZero())
}

// isDue reports whether it is time for a look at the rules. changed reports whether any rules may have changed.
func (d *desired) isDue(now time.Time, changed bool) bool {
	if d.hasFailed() {
		return !now.Before(d.last.retryAt) // whatever other programs change
	}
	return changed || d.last.applied == nil || now.Sub(d.last.looked) >= d.wishes.config.Resync
}

// next returns how long nothing is due unless rules are changed. pending reports whether a network is expected.
func (d *desired) next(now time.Time, pending bool) time.Duration {
	if d.isIdle() {
		return time.Hour // the first network that comes changes rules
	}
	until := d.last.looked.Add(d.wishes.config.Resync)
	switch {
	case pending:
		until = now.Add(lookInterval)
	case d.last.applied == nil:
		until = d.last.retryAt
	}
	wait := max(until.Sub(now), 0)
	if d.last.report.Silent {
		wait = min(wait, lookInterval)
	}
	return wait
}

// pause returns how long a change waits before the rules are looked at, so that a burst of changes ends, and leno does
// not race a program that changes the same rules again and again.
func (d *desired) pause(now time.Time) time.Duration {
	interval := lookInterval
	if d.flapping.Count() > 0 {
		interval = flapping.LongestPause
	}
	return max(settle, d.last.looked.Add(interval).Sub(now))
}
