package network

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/backend"
)

// A fakeKernel makes backends that record the states applied to them. It outlives processes.
type fakeKernel struct {
	mu    sync.Mutex
	lines []string // one for each Apply, without repetitions, such as "recorder {} [10.5.0.0/22]: 10.5.1.0/24 <- "
	built int
	open  int

	tried  []time.Time         // when Apply was called, including when it failed
	hook   func(backend.State) // called after each Apply, if not nil
	passes []backend.State     // of each Apply that succeeded
	fail   error
	report backend.Report
}

// A kernelBackend is one backend of a fakeKernel.
type kernelBackend struct {
	*fakeKernel
	name   string
	config backend.Config
	close  func()
}

func (k *fakeKernel) kind(name string) backend.Type {
	return backend.Type{
		Name:      name,
		Device:    true,
		Normalize: func(o json.RawMessage) (json.RawMessage, error) { return o, nil },
		New: func(c backend.Config) (backend.Backend, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.built++
			k.open++
			return kernelBackend{k, name, c, sync.OnceFunc(func() { k.open-- })}, nil
		},
	}
}

func (b kernelBackend) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	return backend.Advertisement{MTU: u.MTU - 50, Attributes: json.RawMessage(`{}`)}, nil
}

func (b kernelBackend) Apply(_ context.Context, s backend.State) (backend.Report, error) {
	b.mu.Lock()
	hook := b.hook
	report, err := b.record(s)
	b.mu.Unlock()
	if hook != nil {
		hook(s)
	}
	return report, err
}

// record returns the result of applying a state. The caller holds mu.
func (b kernelBackend) record(s backend.State) (backend.Report, error) {
	b.tried = append(b.tried, time.Now())
	if b.fail != nil {
		return backend.Report{}, b.fail
	}
	b.passes = append(b.passes, s)
	line := fmt.Sprintf("%s %s %v: %s", b.name, b.config.Options, b.config.Pools, stateText(s))
	if len(b.config.Except) > 0 {
		line = fmt.Sprintf("%s %s %v except %v: %s", b.name, b.config.Options, b.config.Pools, b.config.Except, stateText(s))
	}
	if len(b.lines) == 0 || b.lines[len(b.lines)-1] != line {
		b.lines = append(b.lines, line)
	}
	report := b.report
	report.Peers = len(s.Peers)
	return report, nil
}

func (kernelBackend) Abilities() backend.Abilities { return backend.Abilities{} }

func (b kernelBackend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close()
	return nil
}

// story returns the successful applies in order, with repetitions merged.
func (k *fakeKernel) story() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string{}, k.lines...)
}

// states returns the applied states in order, without the backends that applied them.
func (k *fakeKernel) states() (out []string) {
	for _, line := range k.story() {
		if _, state, _ := strings.Cut(line, ": "); len(out) == 0 || out[len(out)-1] != state {
			out = append(out, state)
		}
	}
	return out
}

// last returns the state applied last, such as "10.5.1.0/24 <- b@10.5.2.0/24".
func (k *fakeKernel) last() string {
	if all := k.states(); len(all) > 0 {
		return all[len(all)-1]
	}
	return "nothing"
}

// backends returns how many backends were built, and how many of them are open.
func (k *fakeKernel) backends() (built, open int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.built, k.open
}

// tries returns how often Apply was called.
func (k *fakeKernel) tries() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.tried)
}

// setHook makes the backends call f after each Apply.
func (k *fakeKernel) setHook(f func(backend.State)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hook = f
}

// applied returns the state of every Apply that succeeded.
func (k *fakeKernel) applied() []backend.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.passes)
}

// setFail makes Apply fail, or succeed again with nil.
func (k *fakeKernel) setFail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// setReport makes Apply report this.
func (k *fakeKernel) setReport(report backend.Report) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report = report
}

func stateText(s backend.State) string {
	if s.Zero() {
		return "zero"
	}
	var peers []string
	for _, p := range s.Peers {
		peers = append(peers, fmt.Sprintf("%s@%s", p.Node, p.Subnets[0]))
	}
	return fmt.Sprintf("%s <- %s", s.Subnets[0], strings.Join(peers, ", "))
}
