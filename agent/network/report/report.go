// Package report tells operators what happens to one network on this host: health checks, events, log lines, metrics
// and the sentence that says what the network does or waits for.
package report

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
)

// Options are what New builds a Reporter from. All fields but Store and Flows are required.
type Options struct {
	Network   string
	Store     string // the kind of the store, such as "etcd"; "" for Consul
	Log       hclog.Logger
	Health    *health.Board
	Events    *events.Log
	Telemetry *telemetry.Telemetry
	Changed   *watch.Value[struct{}] // set when the API may show the network differently

	// Flows reports whether packets flow, because a lease is held or an earlier process left a datapath. nil means that
	// they do not.
	Flows func() bool
}

// A Reporter reports on one network. It is safe for concurrent use.
type Reporter struct {
	o      Options
	faults health.ActiveFaults

	mu       sync.Mutex      // also held while the board is set from the fields below, so that it shows the last change
	store    map[Use]error   // why uses of the store do not work
	files    map[File]error  // why files could not be written
	ready    bool            // as SetReady was told
	withheld map[string]bool // the checks for which Withhold was told so
	state    string          // what the network does or waits for, for example "running"
	check    string          // the check of the last log line about waiting
	at       time.Time       // of that line
}

// New returns the reporter of a network and sets its first checks.
func New(o Options) *Reporter {
	r := &Reporter{o: o, store: map[Use]error{}, files: map[File]error{}, state: health.Starting}
	r.withheld = map[string]bool{}
	o.Health.Reset(o.Network)
	r.Check(health.Network, api.Critical, health.Starting)
	return r
}

// Log returns the network's logger.
func (r *Reporter) Log() hclog.Logger { return r.o.Log }

// Check sets one health check of the network. It reports whether the status changed.
func (r *Reporter) Check(name, status, reason string) (changed bool) {
	return r.o.Health.Set(r.o.Network, name, status, reason)
}

// Clear removes one health check of the network.
func (r *Reporter) Clear(name string) { r.o.Health.Clear(r.o.Network, name) }

// Reset removes all health checks of the network, which is not ready then.
func (r *Reporter) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = false
	clear(r.withheld)
	r.o.Health.Reset(r.o.Network)
}

// SetReady records whether containers can be started in the network, unless Withhold forbids it.
func (r *Reporter) SetReady(ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = ready
	r.o.Health.SetReady(r.o.Network, r.ready && len(r.withheld) == 0)
}

// Withhold records whether what a check is about forbids that containers are started. The network is then not ready,
// whatever SetReady was told.
func (r *Reporter) Withhold(check string, withheld bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.withheld, check); withheld {
		r.withheld[check] = true
	}
	r.o.Health.SetReady(r.o.Network, r.ready && len(r.withheld) == 0)
}

// Event adds an event. fields are such as {"change": "taken", "subnet": "10.5.1.0/24"}, or nil.
func (r *Reporter) Event(kind, severity, message string, fields map[string]string) {
	r.o.Events.Add(api.Event{Network: r.o.Network, Kind: kind, Severity: severity, Message: message, Fields: fields})
}

// Count adds n to a metric of the network. labels are those after the network's.
func (r *Reporter) Count(metric string, n int, labels ...string) {
	r.o.Telemetry.Count(metric, n, append([]string{r.o.Network}, labels...)...)
}

// Time adds a duration to a metric of the network.
func (r *Reporter) Time(metric string, took time.Duration) {
	r.o.Telemetry.Time(metric, took, r.o.Network)
}

// Failing sets a check to a status because of an error. The reason also says what to do about it. A new fault is
// logged.
func (r *Reporter) Failing(check, status string, area advice.Area, err error) {
	reason := advice.Reason(area, err)
	r.Check(check, status, reason)
	r.faults.Failing(r.o.Log, check, reason)
}

// Recovered logs the end of a fault, if there was one. The caller sets the check.
func (r *Reporter) Recovered(check string) { r.faults.Recovered(r.o.Log, check) }

// Forget ends faults without a log line, because something else says what became of them, and removes their checks.
func (r *Reporter) Forget(checks ...string) {
	for _, check := range checks {
		r.faults.End(check)
		r.Clear(check)
	}
}

// Changed wakes the readers of the API because it may show the network differently.
func (r *Reporter) Changed() { r.o.Changed.Set(struct{}{}) }

// SetState sets the sentence that says what the network does or waits for, for example "waiting for the leases of the
// other hosts".
func (r *Reporter) SetState(sentence string) {
	r.mu.Lock()
	r.state = sentence
	r.mu.Unlock()
	r.Changed()
}

// State returns the sentence that SetState or Waiting set last.
func (r *Reporter) State() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// Wait shows and logs what the network waits for, and sets the check to critical, or to warning if packets flow.
func (r *Reporter) Wait(check, reason string) {
	status := api.Critical
	if r.o.Flows != nil && r.o.Flows() {
		status = api.Warning
	}
	r.Check(check, status, reason)
	r.Waiting(check, reason)
}

// Waiting shows what the network waits for. It logs the reason if the check differs from the one logged last, or if
// the last line is more than a minute old.
func (r *Reporter) Waiting(check, reason string) {
	r.SetState(reason)
	r.mu.Lock()
	due := r.check != check || time.Since(r.at) > time.Minute
	if due {
		r.check, r.at = check, time.Now()
	}
	r.mu.Unlock()
	if due {
		r.o.Log.Warn("network waits", "reason", reason)
	}
}
