package lease

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A State says whether this host may use its subnet.
type State int

// The states.
const (
	None      State = iota // this host has no lease: it wants none yet, or waits for one
	Held                   // the lease is held, as far as the store was last read
	Lost                   // the store does not show the lease as this host's, which goes on using it
	Overdue                // not renewed for longer than hold: another host may have the subnet, which stays in use
	Withdrawn              // this host must not use the subnet that it had
)

// A Resumed subnet stays in use without a lease, because a datapath from before has it. The zero value is none.
type Resumed struct {
	Subnet  netip.Prefix
	As      string    // ends "10.5.1.0/24 stays in use as", such as "before the reload"
	Renewed time.Time // when its lease was last renewed, zero if that is not known
}

// A Status says how a Keeper's lease is.
type Status struct {
	State   State
	Lease   registry.Lease // the value of Keeper.Lease, empty if there is none
	Renewed time.Time      // the last successful renewal, zero for never; it stays after the end of a lease
	Problem string         // why the lease is not held, or is being taken back; "" if it is held or not wanted yet
	Revoked netip.Prefix   // the subnet that was revoked from this host, until it has a lease again
}

// IsHeld reports whether the host holds a lease and has not just lost it.
func (s Status) IsHeld() bool { return s.State == Held }

// A condition holds how well the lease is held and who else may have it, and sets the health checks of the lease and of
// conflicts accordingly.
type condition struct {
	report  *report.Reporter
	lease   *watch.Value[registry.Lease]
	hold    time.Duration
	resumed func() Resumed

	mu        sync.Mutex // also held while a check is set, so that the check shows the last change
	withdrawn string     // why the subnet must not be used, "" if there is none; until this host has a lease again
	problem   string     // why the lease is not held as it should be; "" if it is
	unrenewed string     // why the session could not be renewed; "" if it was
	formerly  string     // what this host had before, if its subnet has changed
	limit     string     // why some hosts cannot use the lease, "" if all can
	renewed   time.Time  // the last successful renewal

	suspicions map[string]Suspicion // why another host is believed to be mistaken for this one, by source such as "claim"
}

// setHeld records that this host has a lease.
func (c *condition) setHeld() {
	c.mu.Lock()
	c.withdrawn = ""
	c.mu.Unlock()
	c.setProblem("")
}

// setWithdrawn records why this host must not use the subnet that it had.
func (c *condition) setWithdrawn(reason string) {
	c.update(func() { c.withdrawn, c.problem, c.unrenewed = reason, "", "" })
}

// withdrawal returns why this host must not use the subnet that it had, "" if there is no such subnet.
func (c *condition) withdrawal() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.withdrawn
}

// setProblem records why the lease is not held as it should be; "" clears the problem.
func (c *condition) setProblem(reason string) {
	before := ""
	c.update(func() { before, c.problem = c.problem, reason })
	if before != "" && reason == "" {
		lease, _, _ := c.lease.Get()
		c.report.Log().Info("lease is held", "subnet", lease.Subnet())
	}
}

// setRenewed records the time of the last successful renewal and the failure since then; nil if there is none.
func (c *condition) setRenewed(last time.Time, err error) {
	before, reason := "", ""
	if err != nil {
		reason = fmt.Sprintf("not renewed since %s, packets flow: %v", last.UTC().Format(time.RFC3339), registry.Reason(err))
	}
	c.update(func() {
		before, c.unrenewed = c.unrenewed, reason
		if last.After(c.renewed) { // Keeper.Renew may have renewed it out of turn
			c.renewed = last
		}
	})
	c.report.Used(report.Session, err)
	if before == "" && reason != "" {
		c.report.Log().Warn("lease could not be renewed, trying again", "error", err)
	}
	if before != "" && reason == "" {
		c.report.Log().Info("lease is renewed again")
	}
}

// setFormerly records what this host had before, for example "; it was 10.5.1.0/24 until 2026-01-02T03:04:05Z,
// containers from before must be restarted".
func (c *condition) setFormerly(text string) {
	c.update(func() { c.formerly = text })
}

// setLimit records why some hosts cannot use the lease; "" if all can.
func (c *condition) setLimit(reason string) {
	c.update(func() { c.limit = reason })
}

// update changes the condition and sets the check.
func (c *condition) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	c.checkLocked()
}

// reset forgets everything but the time of the last renewal. It leaves the checks alone.
func (c *condition) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withdrawn, c.problem, c.unrenewed, c.formerly, c.limit = "", "", "", "", ""
	clear(c.suspicions)
}

// stateLocked returns the state.
func (c *condition) stateLocked() State {
	_, held, _ := c.lease.Get()
	switch {
	case c.withdrawn != "":
		return Withdrawn
	case isOverdue(c.inUseLocked().Renewed, c.hold):
		return Overdue
	case !held:
		return None
	case c.problem != "":
		return Lost
	}
	return Held
}

// inUseLocked returns the subnet that is held or resumed, with As only if it is resumed.
func (c *condition) inUseLocked() Resumed {
	if lease, held, _ := c.lease.Get(); held {
		return Resumed{Subnet: lease.Subnet(), Renewed: c.renewed}
	}
	return c.resumed()
}

// isOverdue reports whether a lease that was last renewed at that time may be another host's by now. Of the clocks, the
// one that says so counts: the monotonic one stands still while a machine is suspended. The zero time is not known.
func isOverdue(renewed time.Time, hold time.Duration) bool {
	return !renewed.IsZero() && max(time.Since(renewed), time.Now().Round(0).Sub(renewed.Round(0))) > hold
}

// checkLocked sets the lease's health check, and withholds the network's readiness while another host has the subnet or
// may have it. It does nothing to the check while this host neither uses a subnet nor wants a lease.
func (c *condition) checkLocked() {
	state := c.stateLocked()
	used := c.inUseLocked()
	c.report.Withhold(health.Lease, state == Withdrawn || state == Overdue)
	switch {
	case state == Withdrawn:
		c.report.Check(health.Lease, api.Critical, join(c.withdrawn, c.problem))
	case state == Overdue:
		overdue := fmt.Sprintf("%s was not renewed since %s, for longer than lease.hold: another host may have it by now",
			used.Subnet, used.Renewed.UTC().Format(time.RFC3339))
		c.report.Check(health.Lease, api.Critical, join(overdue, c.problem))
	case state == None && used.Subnet.IsValid():
		c.report.Check(health.Lease, api.Warning, fmt.Sprintf("%s stays in use as %s: %s",
			used.Subnet, used.As, cmp.Or(c.problem, "the store has not been read yet")))
	case state == None && c.problem == "":
	case state == None:
		c.report.Check(health.Lease, api.Critical, c.problem)
	case c.problem != "" || c.unrenewed != "":
		c.report.Check(health.Lease, api.Warning, fmt.Sprintf("%s: %s", used.Subnet, cmp.Or(c.problem, c.unrenewed)))
	case c.limit != "":
		c.report.Check(health.Lease, api.Warning, fmt.Sprintf("%s: %s%s", used.Subnet, c.limit, c.formerly))
	default:
		c.report.Check(health.Lease, api.Passing, fmt.Sprintf("%s is held%s", used.Subnet, c.formerly))
	}
}

// join returns two reasons as one; either may be "".
func join(reasons ...string) string {
	return strings.Join(slices.DeleteFunc(reasons, func(r string) bool { return r == "" }), "; ")
}

// A Suspicion says that another host is mistaken for this one.
type Suspicion struct {
	Reason string
	// Older means that this host's lease was first to say what both say, so the other host is the one that is refused.
	Older bool
}

// suspect replaces the suspicion of a source; one without a reason clears it.
func (c *condition) suspect(source string, now Suspicion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.suspicions[source]
	if c.suspicions[source] = now; now.Reason == "" {
		delete(c.suspicions, source)
	}
	if now.Reason != "" && before.Reason == "" {
		c.report.Log().Error("another host uses this host's name or addresses", "conflict", now.Reason)
	}
	if len(c.suspicions) == 0 {
		c.report.Check(health.Conflict, api.Passing, "no other host uses this host's name or addresses")
		return
	}
	status := api.Warning
	var reasons []string
	for _, s := range c.suspicions {
		reasons = append(reasons, s.Reason)
		if !s.Older {
			status = api.Critical
		}
	}
	slices.Sort(reasons)
	c.report.Check(health.Conflict, status, strings.Join(reasons, "; "))
}
