// Package faulty makes a store fail on demand, for tests.
package faulty

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/registry"
)

// A Registry is a store that fails on demand, for tests. It records its calls as "<whose> <call>", such as
// "own Renew" for the agent's own token and "token operator Renew" for the token "operator" of a caller.
type Registry struct {
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
	before  func(call string)
	hanging bool          // calls that fail do so at the end of their context
	reload  error         // the error of PrepareToken
	reading chan struct{} // if not nil, PrepareToken waits until it is closed
	tokens  []string      // the tokens and token files that were taken over
	logins  []registry.Login
	users   []string      // the users that were taken over, as "name:password"
	settle  time.Duration // the value set last
}

// RefusedToken is a token that may not write.
const RefusedToken = "refused"

// New returns a store that works like r until it is told to fail.
func New(r registry.Registry) *Registry {
	return &Registry{r, "own", &faults{down: make(chan struct{}), single: map[string]error{}, times: map[string][]time.Time{}}}
}

// As returns the same store under a caller's token.
func (o *Registry) As(token string) registry.Registry {
	return &Registry{o.Registry.As(token), "token " + token, o.faults}
}

// Abilities adds to those of the store what the methods below do.
func (o *Registry) Abilities() registry.Abilities {
	can := o.Registry.Abilities()
	can.Probe, can.SetUser, can.PrepareToken, can.SetSettle = o.Probe, o.SetUser, o.PrepareToken, o.SetSettle
	return can
}

// SetUser records the user.
func (o *Registry) SetUser(name, password string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if name != "" {
		o.users = append(o.users, name+":"+password)
	}
}

// PrepareToken simulates a store that can take over another token.
func (o *Registry) PrepareToken(_ context.Context, to registry.Credentials) (take, drop func(), err error) {
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
		if to.Login.IsSet() {
			o.logins = append(o.logins, to.Login)
			return
		}
		o.tokens = append(o.tokens, to.Token+to.TokenFile)
	}, nil, o.reload
}

// SetSettle records the time.
func (o *Registry) SetSettle(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settle = d
}

// Set makes every call fail, and interrupts those in progress; nil makes them work again.
func (f *faults) Set(err error) {
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
func (o *Registry) Probe(ctx context.Context) error {
	return o.Call(ctx, "Probe", func(context.Context) error { return nil })
}

// SetOne makes one kind of call fail, from its next use on.
func (f *faults) SetOne(call string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.single[call] = err
}

// SetHanging makes calls that fail hang until the end of their context.
func (f *faults) SetHanging(hang bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hanging = hang
}

// Count returns how often a call such as "own Renew" was made.
func (f *faults) Count(call string) int {
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

// At returns when calls such as "Renew" were made.
func (f *faults) At(call string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.times[call])
}

// Claimed returns the last claim.
func (f *faults) Claimed() registry.Claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claims[len(f.claims)-1]
}

// Call runs c as a call with this name. It fails at once while the store is down, and interrupts c if the store goes down
// while c runs.
func (o *Registry) Call(ctx context.Context, name string, c func(context.Context) error) error {
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
func (o *Registry) write(ctx context.Context, name string, c func(context.Context) error) error {
	if o.whose == "token "+RefusedToken {
		return fmt.Errorf("%s: %w", name, registry.ErrDenied)
	}
	return o.Call(ctx, name, c)
}

func (o *Registry) Network(ctx context.Context, name string) (n registry.Network, err error) {
	err = o.Call(ctx, "Network", func(ctx context.Context) (err error) { n, err = o.Registry.Network(ctx, name); return err })
	return n, err
}

func (o *Registry) PutNetwork(ctx context.Context, n registry.Network, kept ...registry.Reservation) error {
	return o.write(ctx, "PutNetwork", func(ctx context.Context) error { return o.Registry.PutNetwork(ctx, n, kept...) })
}

func (o *Registry) DeleteNetwork(ctx context.Context, name string) error {
	return o.write(ctx, "DeleteNetwork", func(ctx context.Context) error { return o.Registry.DeleteNetwork(ctx, name) })
}

func (o *Registry) PutDeletion(ctx context.Context, d registry.Deletion) error {
	return o.write(ctx, "PutDeletion", func(ctx context.Context) error { return o.Registry.PutDeletion(ctx, d) })
}

func (o *Registry) Holders(ctx context.Context, network string) (h []registry.Holder, err error) {
	err = o.Call(ctx, "Holders", func(ctx context.Context) (err error) { h, err = o.Registry.Holders(ctx, network); return err })
	return h, err
}

func (o *Registry) Acquire(ctx context.Context, n registry.Network, c registry.Claim) (l registry.Lease, err error) {
	o.mu.Lock()
	o.claims = append(o.claims, c)
	o.mu.Unlock()
	err = o.write(ctx, "Acquire", func(ctx context.Context) (err error) { l, err = o.Registry.Acquire(ctx, n, c); return err })
	return l, err
}

func (o *Registry) Renew(ctx context.Context, l registry.Lease) error {
	return o.write(ctx, "Renew", func(ctx context.Context) error { return o.Registry.Renew(ctx, l) })
}

func (o *Registry) Release(ctx context.Context, l registry.Lease) error {
	return o.write(ctx, "Release", func(ctx context.Context) error { return o.Registry.Release(ctx, l) })
}

func (o *Registry) Revoke(ctx context.Context, network string, subnet netip.Prefix) error {
	return o.write(ctx, "Revoke", func(ctx context.Context) error { return o.Registry.Revoke(ctx, network, subnet) })
}

func (o *Registry) Expire(ctx context.Context, l registry.Lease) error {
	return o.write(ctx, "Expire", func(ctx context.Context) error { return o.Registry.Expire(ctx, l) })
}

func (o *Registry) Restore(ctx context.Context, n registry.Network, l registry.Lease, hold time.Duration) error {
	return o.write(ctx, "Restore", func(ctx context.Context) error { return o.Registry.Restore(ctx, n, l, hold) })
}

func (o *Registry) AddReservation(ctx context.Context, n registry.Network, v registry.Reservation, force bool) error {
	return o.write(ctx, "AddReservation", func(ctx context.Context) error { return o.Registry.AddReservation(ctx, n, v, force) })
}

func (o *Registry) RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error {
	return o.write(ctx, "RemoveReservation", func(ctx context.Context) error { return o.Registry.RemoveReservation(ctx, network, subnet) })
}

func (o *Registry) WatchNetworks(ctx context.Context, after uint64) (s registry.NetworkSet, i uint64, err error) {
	err = o.Call(ctx, "WatchNetworks", func(ctx context.Context) (err error) {
		s, i, err = o.Registry.WatchNetworks(ctx, after)
		return err
	})
	return s, i, err
}

// WatchLeases returns at once after it has failed, as the contract of registry.Registry demands.
func (o *Registry) WatchLeases(ctx context.Context, n registry.Network, after uint64) (s registry.LeaseSet, i uint64, err error) {
	if o.failed.Swap(false) {
		after = 0
	}
	defer func() {
		if err != nil {
			o.failed.Store(true)
		}
	}()
	err = o.Call(ctx, "WatchLeases", func(ctx context.Context) (err error) { s, i, err = o.Registry.WatchLeases(ctx, n, after); return err })
	return s, i, err
}

func (o *Registry) WatchLease(ctx context.Context, n registry.Network, p netip.Prefix, after uint64) (
	l registry.Lease, i uint64, err error) {
	err = o.Call(ctx, "WatchLease", func(ctx context.Context) (err error) { l, i, err = o.Registry.WatchLease(ctx, n, p, after); return err })
	return l, i, err
}

// SetBefore makes the store call f before each call that is not made to fail, with its name such as "Renew"; nil for
// nothing.
func (f *faults) SetBefore(before func(call string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

// Times returns when each kind of call was made, such as "Renew".
func (f *faults) Times() map[string][]time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string][]time.Time{}
	for call, times := range f.times {
		out[call] = slices.Clone(times)
	}
	return out
}

// Users returns the users that were taken over, as "name:password". It leaves out the empty name.
func (f *faults) Users() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.users)
}

// SetReload makes PrepareToken return err.
func (f *faults) SetReload(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reload = err
}

// SetReading makes PrepareToken wait until reading is closed; nil makes it return at once.
func (f *faults) SetReading(reading chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reading = reading
}

// Logins returns the logins that were taken over.
func (f *faults) Logins() []registry.Login {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.logins)
}

// Tokens returns the tokens and token files that were taken over.
func (f *faults) Tokens() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tokens)
}

// Settle returns the time that was set last with SetSettle.
func (f *faults) Settle() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.settle
}
