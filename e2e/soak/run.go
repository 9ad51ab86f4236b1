package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// Options of a run.
type Options struct {
	Name   string // begins the lab's id
	Leno   string // path of the binary
	Consul string // path of the binary; default: as the lab finds it

	// Seed decides on the faults: the same one, with the same other options,
	// makes the same ones at the same times.
	Seed uint64
	// For is how long faults go on. Laying out and the last settling add to it.
	For time.Duration
	// Agents is how many hosts there are, each with an agent and a Consul client
	// agent; Carriers how many of them carry packets, over VXLAN. The others
	// lease only.
	Agents, Carriers int
	Rules            Rules
	// Every is how often agents and store are looked at.
	Every time.Duration
	// Log gets a line for each fault.
	Log io.Writer
	// Keep is a directory for the logs of all programs, made when a rule was
	// broken or the run failed. "" keeps nothing.
	Keep string
}

// Defaults are the options of a long run.
func Defaults() Options {
	return Options{
		Name: "soak", For: 10 * time.Minute, Agents: 30, Carriers: 3, Every: time.Second, Log: io.Discard,
		Rules: Rules{TTL: 10 * time.Second, Hold: 30 * time.Second, Settle: 10 * time.Second},
	}
}

// run is a run in progress.
type run struct {
	Options
	*lab.Lab
	*recorder
	machines []*machine
	pings    *pings
	snapshot []byte
}

// Run lays out a lab, makes faults in it, and checks what was seen. An error
// means that the run itself could not be done; violations are in the report.
// Nothing is left of the lab however it ends.
func Run(ctx context.Context, o Options) (report Report, err error) {
	begin := time.Now()
	r := &run{Options: o, recorder: newRecorder(o.Rules)}
	r.Lab, err = lab.New(ctx, lab.Options{
		Name: o.Name, Hosts: o.Agents, Servers: 3, Leno: o.Leno, Consul: o.Consul,
		ConsulConfig: serverConfig, ConsulClientConfig: clientConfig,
	})
	if err != nil {
		return report, err
	}
	defer func() {
		if r.Keep != "" && (err != nil || len(report.Violations) > 0) {
			err = errors.Join(err, r.keepLogs())
		}
		err = errors.Join(err, r.Close())
	}()
	if err := r.setUp(ctx); err != nil {
		return report, err
	}
	r.say("ready after %s: %d agents, %d of them carrying", time.Since(begin).Round(time.Second), o.Agents, o.Carriers)

	steps := schedule(o.plan())
	if err := r.observed(ctx, func(ctx context.Context) error { return r.faults(ctx, steps) }); err != nil {
		return report, err
	}
	return r.report(steps, time.Since(begin)), nil
}

// pace is how long faults are apart, whatever is allowed for settling.
const pace = 10 * time.Second

func (o Options) plan() plan {
	p := plan{Seed: o.Seed, For: o.For, Agents: o.Agents, Carries: o.carries, Rules: o.Rules}
	p.Rules.Settle = pace
	return p
}

func (o Options) carries(host int) bool { return host < o.Carriers }

// observed runs f while everything is looked at, and for the settling time after.
func (r *run) observed(ctx context.Context, f func(context.Context) error) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	g, watching := errgroup.WithContext(watching)
	for _, m := range r.machines {
		g.Go(func() error { return r.watchAgent(watching, m) })
		if m.carries {
			g.Go(func() error { return r.watchRoutes(watching, m) })
		}
	}
	g.Go(func() error { return r.watchStore(watching) })
	g.Go(func() error { return r.pings.watch(watching) })
	g.Go(func() error {
		defer stop()
		if err := f(watching); err != nil {
			return err
		}
		// Long enough for a calm look at everyone.
		return sleep(watching, r.Rules.Settle+4*r.Every)
	})
	err := g.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, r.pings.stop(context.WithoutCancel(ctx)))
}

// faults carries out a schedule: what is on hosts at its time, what is on the
// store one after another.
func (r *run) faults(ctx context.Context, steps []Step) error {
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	var store []Step
	for _, s := range steps {
		if s.Host < 0 {
			store = append(store, s)
			continue
		}
		g.Go(func() error {
			if err := sleep(ctx, s.At-time.Since(start)); err != nil {
				return err
			}
			return r.onHost(ctx, s)
		})
	}
	g.Go(func() error {
		var healed time.Time // of the last fault on servers
		for _, s := range store {
			wait := s.At - time.Since(start)
			if onServers(s.Kind) && !healed.IsZero() {
				wait = max(wait, serverPause-time.Since(healed))
			}
			if err := sleep(ctx, wait); err != nil {
				return err
			}
			if err := r.onStore(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s.Kind, err)
			}
			if onServers(s.Kind) {
				healed = time.Now()
			}
		}
		return nil
	})
	return g.Wait()
}

// keepLogs saves what the lab would take away.
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
	r.say("all logs are in %s; the run began at %s", r.Keep, r.start.UTC().Format(time.RFC3339Nano))
	return nil
}

// say tells of one thing, with the time of the run.
func (r *run) say(format string, args ...any) {
	r.saying.Lock()
	defer r.saying.Unlock()
	fmt.Fprintf(r.Log, "%8.3f  %s\n", r.now().Seconds(), fmt.Sprintf(format, args...))
}

// recorder writes the history. Safe for concurrent use.
type recorder struct {
	start  time.Time
	saying sync.Mutex

	mu sync.Mutex
	h  History
}

func newRecorder(rules Rules) *recorder {
	return &recorder{start: time.Now(), h: History{Rules: rules}}
}

func (r *recorder) now() time.Duration { return time.Since(r.start) }

func (r *recorder) record(f func(*History)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.h)
}

// silence begins one; the function it returns ends it.
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

// storm begins one; the function it returns ends it.
func (r *recorder) storm(why Kind) (end func()) {
	i := 0
	r.record(func(h *History) {
		i = len(h.Storms)
		h.Storms = append(h.Storms, Storm{Span{r.now(), forever}, why})
	})
	return func() { r.record(func(h *History) { h.Storms[i].To = r.now() }) }
}

// rewind begins one; the function it returns ends it.
func (r *recorder) rewind(why Kind) (end func()) {
	i := 0
	r.record(func(h *History) {
		i = len(h.Rewinds)
		h.Rewinds = append(h.Rewinds, Rewind{Span{r.now(), forever}, why})
	})
	return func() { r.record(func(h *History) { h.Rewinds[i].To = r.now() }) }
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
