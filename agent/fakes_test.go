package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// recorder makes backends that record the states applied to them. Like the kernel, it outlives agents.
type recorder struct {
	threads int // of each backend
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
	return backend.Type{Name: name, Threads: r.threads, Device: true,
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

// story returns the successful applies in order, with repetitions merged, such as
// "recorder {"colour":"red"} [10.5.0.0/22]: 10.5.1.0/24 <- ".
func (r *recorder) story() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, a := range r.applies {
		line := fmt.Sprintf("%s %s %v: %s", a.kind, a.config.Options, a.config.Pools, text(a.state))
		if len(out) == 0 || out[len(out)-1] != line {
			out = append(out, line)
		}
	}
	return out
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

func (w *wall) Touched() bool { return false }

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

// outage is a host's store that fails on demand. It records its calls as "<whose> <call>", such as
// "own Renew" for the agent's own token and "token operator Renew" for the token "operator" of a caller.
type outage struct {
	registry.Registry
	whose string
	*faults
}

// faults are shared by all tokens of a host.
type faults struct {
	failed  atomic.Bool // whether the last WatchLeases failed
	mu      sync.Mutex
	down    chan struct{} // closed while the store is down
	err     error
	single  map[string]error // the error of one kind of call
	calls   []string
	times   map[string][]time.Time
	claims  []registry.Claim
	before  func(call string) // called before each call that is not made to fail
	hanging bool              // calls that fail do so at the end of their context
	reload  error             // the error of PrepareToken
	reading chan struct{}     // if not nil, PrepareToken waits until it is closed
	tokens  []string          // the tokens and token files that were taken over
	settle  time.Duration     // the value set last
}

// refusedToken is a token that may not write.
const refusedToken = "refused"

func newOutage(r registry.Registry) *outage {
	return &outage{r, "own", &faults{down: make(chan struct{}), single: map[string]error{}, times: map[string][]time.Time{}}}
}

// As returns the same store under a caller's token.
func (o *outage) As(token string) registry.Registry {
	return &outage{o.Registry.As(token), "token " + token, o.faults}
}

// PrepareToken simulates a store that can take over another token.
func (o *outage) PrepareToken(value, file string) (func(), error) {
	o.mu.Lock()
	reading := o.reading
	o.mu.Unlock()
	if reading != nil {
		<-reading
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.tokens = append(o.tokens, value+file)
	}, o.reload
}

func (o *outage) SetSettle(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settle = d
}

func (f *faults) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil && err != nil {
		close(f.down)
	}
	if f.err != nil && err == nil {
		f.down = make(chan struct{})
	}
	f.err = err
}

// Probe answers as other calls do.
func (o *outage) Probe(ctx context.Context) error {
	return o.call(ctx, "Probe", func(context.Context) error { return nil })
}

// setOne makes one kind of call fail, from its next use on.
func (f *faults) setOne(call string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.single[call] = err
}

// setHanging makes calls that fail hang until the end of their context.
func (f *faults) setHanging(hang bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hanging = hang
}

// count returns how often a call such as "own Renew" was made.
func (f *faults) count(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c == call {
			n++
		}
	}
	return n
}

// at returns when calls such as "Renew" were made.
func (f *faults) at(call string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.times[call])
}

// claimed returns the last claim.
func (f *faults) claimed() registry.Claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claims[len(f.claims)-1]
}

// call runs c. It fails at once while the store is down, and interrupts c if the store goes down while c runs.
func (o *outage) call(ctx context.Context, name string, c func(context.Context) error) error {
	o.mu.Lock()
	down, err, before, hanging := o.down, o.err, o.before, o.hanging
	o.calls = append(o.calls, o.whose+" "+name)
	o.times[name] = append(o.times[name], time.Now())
	if err == nil {
		err = o.single[name]
	}
	o.mu.Unlock()
	if err != nil {
		if hanging {
			<-ctx.Done()
		}
		return err
	}
	if before != nil {
		before(name)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-down:
			cancel()
		case <-stop:
		}
	}()
	err = c(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	return err
}

// write makes a call that needs the right to write.
func (o *outage) write(ctx context.Context, name string, c func(context.Context) error) error {
	if o.whose == "token "+refusedToken {
		return fmt.Errorf("%s: %w", name, registry.ErrDenied)
	}
	return o.call(ctx, name, c)
}

func (o *outage) Network(ctx context.Context, name string) (n registry.Network, err error) {
	err = o.call(ctx, "Network", func(ctx context.Context) (err error) { n, err = o.Registry.Network(ctx, name); return err })
	return n, err
}

func (o *outage) PutNetwork(ctx context.Context, n registry.Network, kept ...registry.Reservation) error {
	return o.write(ctx, "PutNetwork", func(ctx context.Context) error { return o.Registry.PutNetwork(ctx, n, kept...) })
}

func (o *outage) DeleteNetwork(ctx context.Context, name string) error {
	return o.write(ctx, "DeleteNetwork", func(ctx context.Context) error { return o.Registry.DeleteNetwork(ctx, name) })
}

func (o *outage) PutDeletion(ctx context.Context, d registry.Deletion) error {
	return o.write(ctx, "PutDeletion", func(ctx context.Context) error { return o.Registry.PutDeletion(ctx, d) })
}

func (o *outage) Acquire(ctx context.Context, n registry.Network, c registry.Claim) (l registry.Lease, err error) {
	o.mu.Lock()
	o.claims = append(o.claims, c)
	o.mu.Unlock()
	err = o.write(ctx, "Acquire", func(ctx context.Context) (err error) { l, err = o.Registry.Acquire(ctx, n, c); return err })
	return l, err
}

func (o *outage) Renew(ctx context.Context, l registry.Lease) error {
	return o.write(ctx, "Renew", func(ctx context.Context) error { return o.Registry.Renew(ctx, l) })
}

func (o *outage) Release(ctx context.Context, l registry.Lease) error {
	return o.write(ctx, "Release", func(ctx context.Context) error { return o.Registry.Release(ctx, l) })
}

func (o *outage) Revoke(ctx context.Context, network string, subnet netip.Prefix) error {
	return o.write(ctx, "Revoke", func(ctx context.Context) error { return o.Registry.Revoke(ctx, network, subnet) })
}

func (o *outage) Expire(ctx context.Context, l registry.Lease) error {
	return o.write(ctx, "Expire", func(ctx context.Context) error { return o.Registry.Expire(ctx, l) })
}

func (o *outage) AddReservation(ctx context.Context, n registry.Network, v registry.Reservation, force bool) error {
	return o.write(ctx, "AddReservation", func(ctx context.Context) error { return o.Registry.AddReservation(ctx, n, v, force) })
}

func (o *outage) RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error {
	return o.write(ctx, "RemoveReservation", func(ctx context.Context) error { return o.Registry.RemoveReservation(ctx, network, subnet) })
}

func (o *outage) WatchNetworks(ctx context.Context, after uint64) (s registry.NetworkSet, i uint64, err error) {
	err = o.call(ctx, "WatchNetworks", func(ctx context.Context) (err error) {
		s, i, err = o.Registry.WatchNetworks(ctx, after)
		return err
	})
	return s, i, err
}

// WatchLeases returns at once after it has failed, as the contract of registry.Registry demands.
func (o *outage) WatchLeases(ctx context.Context, n registry.Network, after uint64) (s registry.LeaseSet, i uint64, err error) {
	if o.failed.Swap(false) {
		after = 0
	}
	defer func() {
		if err != nil {
			o.failed.Store(true)
		}
	}()
	err = o.call(ctx, "WatchLeases", func(ctx context.Context) (err error) { s, i, err = o.Registry.WatchLeases(ctx, n, after); return err })
	return s, i, err
}

func (o *outage) WatchLease(ctx context.Context, n registry.Network, p netip.Prefix, after uint64) (l registry.Lease, i uint64, err error) {
	err = o.call(ctx, "WatchLease", func(ctx context.Context) (err error) { l, i, err = o.Registry.WatchLease(ctx, n, p, after); return err })
	return l, i, err
}
