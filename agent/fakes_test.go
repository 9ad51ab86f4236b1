package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/backend"
)

// recorder makes backends that record the states applied to them. Like the kernel, it outlives agents.
type recorder struct {
	mu      sync.Mutex
	states  []backend.State
	applies []applied
	tried   []time.Time // the time of every Apply, including those that fail
	built   []backend.Config
	closed  []int // indexes into built
	fail    error
	report  backend.Report
	onApply func(backend.State)
	onClose func()
	totals  atomic.Pointer[backend.Counters] // the totals of a metered backend
}

// applied is one successful Apply, with the backend that received it.
type applied struct {
	kind   string
	config backend.Config
	state  backend.State
}

// recording is one backend of a recorder.
type recording struct {
	*recorder
	number int
	kind   string
	config backend.Config
}

func newRecorder() *recorder {
	r := &recorder{}
	r.totals.Store(&backend.Counters{})
	return r
}

func (r *recorder) kind(name string) backend.Type {
	return backend.Type{Name: name, Device: true,
		Normalize: func(o json.RawMessage) (json.RawMessage, error) { return o, nil },
		New: func(c backend.Config) (backend.Backend, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.built = append(r.built, c)
			return &recording{r, len(r.built) - 1, name, c}, nil
		}}
}

func (r *recording) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	return backend.Advertisement{MTU: u.MTU - 50, Attributes: json.RawMessage(`{"mark":"` + u.Interface + `"}`)}, nil
}

func (r *recording) Apply(_ context.Context, s backend.State) (backend.Report, error) {
	r.mu.Lock()
	r.tried = append(r.tried, time.Now())
	err, report, hook := r.fail, r.report, r.onApply
	if err == nil {
		r.states = append(r.states, s)
		r.applies = append(r.applies, applied{r.kind, r.config, s})
		report.Peers = len(s.Peers)
	}
	r.mu.Unlock()
	if hook != nil {
		hook(s)
	}
	return report, err
}

func (*recording) Abilities() backend.Abilities { return backend.Abilities{} }

func (r *recording) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = append(r.closed, r.number)
	if r.onClose != nil {
		r.onClose()
	}
	return nil
}

func (r *recorder) setFail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func (r *recorder) setReport(report backend.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report = report
}

// hook makes the backends call f after each Apply.
func (r *recorder) hook(f func(backend.State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onApply = f
}

// tries returns the times at which Apply was called.
func (r *recorder) tries() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.tried)
}

// made returns every Apply that succeeded.
func (r *recorder) made() []applied {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.applies)
}

// open returns how many backends were built, and how many of them were not closed.
func (r *recorder) open() (built, open int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	closed := slices.Compact(slices.Sorted(slices.Values(r.closed)))
	return len(r.built), len(r.built) - len(closed)
}

// last returns the state applied last, such as "10.5.1.0/24 <- b@10.5.2.0/24".
func (r *recorder) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.states) == 0 {
		return "nothing"
	}
	return text(r.states[len(r.states)-1])
}

// all returns the applied states in order, with repetitions merged.
func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, s := range r.states {
		if t := text(s); len(out) == 0 || out[len(out)-1] != t {
			out = append(out, t)
		}
	}
	return out
}

func text(s backend.State) string {
	if s.Zero() {
		return "zero"
	}
	var peers []string
	for _, p := range s.Peers {
		peers = append(peers, fmt.Sprintf("%s@%s", p.Node, p.Subnets[0]))
	}
	return fmt.Sprintf("%s <- %s", s.Subnets[0], strings.Join(peers, ", "))
}

// wall is a firewall that records what the agent wants of it.
type wall struct {
	mu      sync.Mutex
	wanted  [][]firewall.Network
	states  []firewall.State
	err     error
	report  firewall.Report
	changed func() // tells the agent that rules changed; nil until the agent watches
}

func (w *wall) Apply(_ context.Context, s firewall.State) (firewall.Report, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = append(w.wanted, slices.Clone(s.Networks))
	w.states = append(w.states, s)
	return w.report, w.err
}

func (w *wall) IsTouched() bool { return false }

func (w *wall) Watch(ctx context.Context, changed func()) error {
	w.mu.Lock()
	w.changed = changed
	w.mu.Unlock()
	<-ctx.Done()
	return nil
}

// set changes the behaviour of the firewall.
func (w *wall) set(change func(*wall)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

// looks returns how often Apply was called.
func (w *wall) looks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wanted)
}

func (w *wall) setErr(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// names returns the networks of every Apply, such as "m n".
func (w *wall) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, networks := range w.wanted {
		var names []string
		for _, n := range networks {
			names = append(names, n.Name)
		}
		out = append(out, strings.Join(names, " "))
	}
	return out
}
