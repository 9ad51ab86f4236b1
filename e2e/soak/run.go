package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// Options are the options of a run.
type Options struct {
	Name string // first part of the lab's id
	Leno string // path of the binary
	// Store is the store: lab.StoreConsul, the default, or lab.StoreEtcd.
	Store string
	// Consul and Etcd are the paths of the binaries; default: those that the lab finds.
	Consul, Etcd string

	// Seed determines the faults: the same seed with the same other options makes the same faults
	// at the same times.
	Seed uint64
	// For is how long the suite makes faults. Setting up and the last settling time are added to
	// it.
	For time.Duration
	// Agents is the number of hosts, each with an agent and, if the store is Consul, a Consul client agent. Carriers is how
	// many of them carry packets. The others only lease.
	Agents, Carriers int
	Rules            Rules
	// Rounds are the kinds of faults on the store and on networks; default: all.
	Rounds []Kind
	// Every is the interval between two looks at agents and store.
	Every time.Duration
	// Log receives a line for each fault.
	Log io.Writer
	// Keep is a directory for the logs of all programs and the history. It is created if a rule was
	// broken or the run ended early. "" keeps nothing.
	Keep string
}

// Defaults returns the options of a long run.
func Defaults() Options {
	return Options{
		Name: "soak", Store: lab.StoreConsul, For: 10 * time.Minute, Agents: 30, Carriers: 3, Every: time.Second, Log: io.Discard,
		Rules: Rules{TTL: 10 * time.Second, Hold: 30 * time.Second, Settle: 10 * time.Second},
	}
}

// A run is a run in progress.
type run struct {
	Options
	*lab.Lab
	*recorder
	store    store
	machines []*machine
	operator operator
	pings    *pings
	snapshot snapshot // the state to which RestoreStore goes back
	oldest   snapshot // of a store without any network
}

// overtime is how long a run may continue after the last planned fault. Faults take longer on a
// busy machine.
const overtime = 10 * time.Minute

// Run lays out a lab, makes faults in it, and checks the history. Even with an error it returns a
// report of what was seen until the end. An error means that the run ended early: ctx ended, the
// lab could not be laid out, or the store could not be repaired. Violations are in the report. Nothing
// is left of the lab in any case.
func Run(ctx context.Context, o Options) (report Report, err error) {
	r := &run{Options: o, recorder: newRecorder(o.Rules), operator: operator{defined: map[string]bool{}, variant: map[string]int{}}}
	r.Lab, err = lab.New(ctx, lab.Options{
		Name: o.Name, Hosts: o.Agents, Servers: 3, Leno: o.Leno, Store: o.Store, Consul: o.Consul, Etcd: o.Etcd,
		ConsulConfig: serverConfig, ConsulClientConfig: clientConfig,
	})
	if err == nil {
		err = r.Lab.LengthenQueues()
	}
	if err == nil {
		r.store = r.newStore()
		err = guarded(func() error { return r.inLab(ctx) })
	}
	err = errors.Join(err, guarded(func() error {
		report = r.report(err)
		return nil
	}))
	if r.Lab != nil {
		if r.Keep != "" && (err != nil || len(report.Violations) > 0) {
			err = errors.Join(err, r.keepLogs())
		}
		err = errors.Join(err, r.close())
	}
	return report, err
}

// close removes the lab. On a busy machine that may take more than one attempt.
func (r *run) close() (err error) {
	for range 3 {
		if err = r.Close(); err == nil {
			return nil
		}
	}
	return err
}

// inLab sets everything up and makes the faults.
func (r *run) inLab(ctx context.Context) error {
	if err := r.setUp(ctx); err != nil {
		return err
	}
	r.say("ready: %d agents, %d of them carrying", r.Agents, r.Carriers)
	steps := schedule(r.plan())
	r.record(func(*History) { r.planned = len(steps) })
	return r.observed(ctx, func(ctx context.Context) error { return r.faults(ctx, steps) })
}

// pace is the minimum time between faults, whatever the settling time.
const pace = 10 * time.Second

func (o Options) plan() plan {
	p := plan{Seed: o.Seed, Store: o.Store, Rounds: o.Rounds, For: o.For, Agents: o.Agents, Carries: o.carries, Rules: o.Rules}
	p.Rules.Settle = pace
	return p
}

func (o Options) carries(host int) bool { return host < o.Carriers }

// observed runs f while everything is observed, and continues to observe for the settling time
// after. The history is complete even if ctx ends first.
func (r *run) observed(ctx context.Context, f func(context.Context) error) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var watchers sync.WaitGroup
	watch := func(look func(context.Context)) {
		watchers.Go(func() {
			for watching.Err() == nil {
				err := guarded(func() error {
					look(watching)
					return nil
				})
				if err == nil {
					return
				}
				r.trouble("%v", err)
				_ = sleep(watching, r.Every)
			}
		})
	}
	for _, m := range r.machines {
		watch(func(ctx context.Context) { r.watchAgent(ctx, m) })
		if m.carries {
			watch(func(ctx context.Context) { r.watchKernel(ctx, m) })
			watch(func(ctx context.Context) { r.watchFirewall(ctx, m) })
		}
	}
	watch(r.watchStore)
	watch(r.pings.watch)
	watch(r.deleteAgain)
	err := guarded(func() error { return f(watching) })
	if err == nil {
		r.awaitSwitched(watching, 2*switchLimit)
		// Long enough for a look at every agent while it is calm.
		err = sleep(watching, r.Rules.Settle+4*r.Every)
	}
	stop()
	watchers.Wait()
	if stopped := r.pings.stop(context.WithoutCancel(ctx)); stopped != nil {
		r.trouble("pings: %v", stopped)
	}
	return err
}

// faults executes a schedule: faults on hosts at their times, faults on the store one after
// another.
func (r *run) faults(ctx context.Context, steps []Step) error {
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, r.For+overtime)
	defer cancel()
	g, faulty := errgroup.WithContext(limited)
	var store []Step
	for _, s := range steps {
		if s.Host < 0 {
			store = append(store, s)
			continue
		}
		g.Go(func() error {
			if err := sleep(faulty, s.At-time.Since(start)); err != nil {
				return err
			}
			r.onHost(faulty, s)
			return faulty.Err()
		})
	}
	g.Go(func() error {
		var repaired time.Time // when the last fault on servers was repaired
		for _, s := range store {
			wait := s.At - time.Since(start)
			if onServers(s.Kind) && !repaired.IsZero() {
				wait = max(wait, serverPause-time.Since(repaired))
			}
			if err := sleep(faulty, wait); err != nil {
				return err
			}
			if err := r.onStore(faulty, s); err != nil {
				return fmt.Errorf("%s: %w", s.Kind, err)
			}
			if onServers(s.Kind) {
				repaired = time.Now()
			}
		}
		return nil
	})
	err := g.Wait()
	if limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("faults are not over %s after the end by plan: %s", overtime, strings.Join(r.unfinished(), ", "))
	}
	return err
}

// keepLogs saves the logs, which would be removed with the lab, and the history.
func (r *run) keepLogs() error {
	logs, err := filepath.Glob(filepath.Join(r.Dir, "*.log"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.Keep, 0o755); err != nil {
		return err
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.Keep, filepath.Base(path)), text, 0o644); err != nil {
			return err
		}
	}
	r.mu.Lock()
	err = r.h.save(filepath.Join(r.Keep, "history.gob.gz"))
	r.mu.Unlock()
	r.say("all logs are in %s; the run began at %s", r.Keep, r.start.UTC().Format(time.RFC3339Nano))
	return err
}

// say logs a line with the time since the start of the run.
func (r *run) say(format string, args ...any) {
	r.saying.Lock()
	defer r.saying.Unlock()
	fmt.Fprintf(r.Log, "%8.3f  %s\n", r.now().Seconds(), fmt.Sprintf(format, args...))
}

// A recorder writes the history. It may be used concurrently.
type recorder struct {
	start  time.Time
	saying sync.Mutex

	mu        sync.Mutex
	h         History
	planned   int // number of steps in the schedule
	begun     []Step
	incidents []Incident
}

func newRecorder(rules Rules) *recorder {
	r := &recorder{start: time.Now(), h: History{Rules: rules}}
	r.h.InProcess = []string{"udp"}
	if _, err := netlink.GenlFamilyGet("wireguard"); err != nil {
		r.h.InProcess = append(r.h.InProcess, "wireguard")
	}
	return r
}

// An Incident is a problem of the suite itself or of the store. It does not concern leno.
type Incident struct {
	At   time.Duration `json:"at"`
	Text string        `json:"text"`
}

// trouble records an incident.
func (r *run) trouble(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.record(func(*History) { r.incidents = append(r.incidents, Incident{r.now(), text}) })
	r.say("INCIDENT %s", text)
}

// begin records the beginning of a fault.
func (r *run) begin(s Step, format string, args ...any) {
	r.record(func(*History) { r.begun = append(r.begun, s) })
	r.say("round %d: %s", s.Round, fmt.Sprintf(format, args...))
}

// unfinished names the faults in progress.
func (r *run) unfinished() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.machines {
		node, _ := m.now()
		for _, s := range r.h.Silences {
			if s.Node == node && s.To == forever {
				out = append(out, fmt.Sprintf("%s on %s", s.Why, s.Node))
			}
		}
	}
	for _, s := range r.h.Storms {
		if s.To == forever {
			out = append(out, string(s.Why))
		}
	}
	return out
}

func (r *recorder) now() time.Duration { return time.Since(r.start) }

func (r *recorder) record(f func(*History)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.h)
}

// silence records the beginning of a silence; the returned function ends it.
func (r *recorder) silence(node string, why Kind) (end func()) {
	i := 0
	r.record(func(h *History) {
		i = len(h.Silences)
		h.Silences = append(h.Silences, Silence{node, Span{r.now(), forever}, why})
	})
	return func() { r.record(func(h *History) { h.Silences[i].To = r.now() }) }
}

func (r *recorder) silentNow(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.h.Silences {
		if s.Node == node && s.To == forever {
			return true
		}
	}
	return false
}

// storm records the beginning of a storm; the returned function ends it.
func (r *recorder) storm(why Kind) (end func()) {
	i := 0
	r.record(func(h *History) {
		i = len(h.Storms)
		h.Storms = append(h.Storms, Storm{Span{r.now(), forever}, why})
	})
	return func() { r.record(func(h *History) { h.Storms[i].To = r.now() }) }
}

// departure records the beginning of a departure; the returned function ends it.
func (r *recorder) departure(d Departure) (end func()) {
	i := 0
	r.record(func(h *History) {
		i = len(h.Departures)
		d.Span = Span{r.now(), forever}
		h.Departures = append(h.Departures, d)
	})
	return func() { r.record(func(h *History) { h.Departures[i].To = r.now() }) }
}

// rewind records the beginning of a rewind; the returned function ends it.
func (r *recorder) rewind(w Rewind) (end func()) {
	i := 0
	r.record(func(h *History) {
		i = len(h.Rewinds)
		w.Span = Span{r.now(), forever}
		h.Rewinds = append(h.Rewinds, w)
	})
	return func() { r.record(func(h *History) { h.Rewinds[i].To = r.now() }) }
}

// guarded calls f and turns a panic into an error, so that a mistake in the suite does not lose
// what a run has seen.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
