package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// rootToken has all rights in the lab's Consul, which allows everything except to tokens whose
// policy forbids it.
const rootToken = "7f6a3c9e-0000-4000-8000-000000000001"

const consulConfig = `{"acl": {"enabled": true, "default_policy": "allow", "policy_ttl": "0s", "token_ttl": "0s", "tokens": {"initial_management": "` + rootToken + `"}}}`

// A ward is the lab in which all faults are caused. Each fault has its own hosts and networks, so
// that they can exist side by side.
type ward struct {
	*lab.Lab
	t    *testing.T
	ctx  context.Context
	next int // index of the next free host
	runs errgroup.Group

	mu       sync.Mutex
	measured []measurement
}

// A measurement is how long after its seed a fault was shown without being asked and named by doctor, and how long after its
// cure everything was passing; 0 for what was not measured.
type measurement struct {
	name                  string
	shown, named, passing time.Duration
}

// String returns the times that were measured.
func (m measurement) String() string {
	var out []string
	say := func(words string, d time.Duration) {
		if d > 0 {
			out = append(out, words+" "+d.Round(10*time.Millisecond).String())
		}
	}
	say("shown without being asked after", m.shown)
	say("named by doctor after", m.named)
	say("everything passing after the cure within", m.passing)
	return strings.Join(out, ", ")
}

// add logs and keeps a measurement.
func (w *ward) add(m measurement) {
	w.t.Logf("%s: %s", m.name, m)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.measured = append(w.measured, m)
}

// summarize logs the longest times of all measurements. Nothing depends on them: they are also those of the machine.
func (w *ward) summarize() {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := func(of func(measurement) time.Duration) string {
		m := slices.MaxFunc(append(w.measured, measurement{}), func(a, b measurement) int {
			return cmp.Compare(of(a), of(b))
		})
		return fmt.Sprintf("%s (%s)", of(m).Round(10*time.Millisecond), m.name)
	}
	w.t.Logf("%d faults; the longest times: shown without being asked after %s, named by doctor after %s, "+
		"everything passing after the cure within %s", len(w.measured),
		longest(func(m measurement) time.Duration { return m.shown }),
		longest(func(m measurement) time.Duration { return m.named }),
		longest(func(m measurement) time.Duration { return m.passing }))
}

// open lays out the lab.
func open(t *testing.T, hosts int) *ward {
	t.Helper()
	return openLab(t, lab.Options{Hosts: hosts, ConsulConfig: consulConfig})
}

func openLab(t *testing.T, o lab.Options) *ward {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	o.Leno = binary
	l, err := lab.New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // after the wait for other labs
	t.Cleanup(cancel)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return &ward{Lab: l, t: t, ctx: ctx}
}

// A patient is a few hosts that share a network. Doctor runs on the first one.
type patient struct {
	w       *ward
	network string
	pool    string   // "10.21": an IPv4 /16
	blocks  []string // of the network, the backend block first
	hosts   []*lab.Host
	policy  string // of the token that the first host uses
	secret  string // of that token
	remedy  string // that doctor on the first host gave last
}

// admit takes the next free hosts. backend is the backend block of their network, local the rest of
// its content.
func (w *ward) admit(hosts int, backend string, local ...string) *patient {
	first := w.next
	w.next += hosts
	p := &patient{w: w, network: fmt.Sprintf("n%d", w.next), pool: fmt.Sprintf("10.%d", 20+w.next), hosts: w.Hosts[first:w.next]}
	backend = strings.Replace(backend, `"vxlan" {}`, fmt.Sprintf(`"vxlan" { vni = %d }`, 200+w.next), 1)
	backend = strings.Replace(backend, `"udp" {}`, fmt.Sprintf(`"udp" { port = %d }`, 9000+w.next), 1)
	p.blocks = append([]string{fmt.Sprintf("ipv4 { prefix = \"%s.0.0/16\" }", p.pool), "backend " + backend}, local...)
	return p
}

// config returns a host's configuration with additional blocks.
func (p *patient) config(h *lab.Host, more ...string) string {
	return h.Config(append([]string{"lease {\n  ttl = \"10s\"\n}\n", h.Network(p.network, strings.Join(p.blocks, "\n"))}, more...)...)
}

// starts starts the agent of one host.
func (p *patient) starts(h *lab.Host, more ...string) error {
	if err := h.StartAgent(p.config(h, more...)); err != nil {
		return err
	}
	return h.WaitReady(p.w.ctx)
}

// start starts an agent on each host that has none, and waits until all are ready.
func (p *patient) start(more ...string) error {
	for _, h := range p.hosts {
		if h.Agent() == nil {
			if err := h.StartAgent(p.config(h, more...)); err != nil {
				return err
			}
		}
	}
	for _, h := range p.hosts {
		if err := h.WaitReady(p.w.ctx); err != nil {
			return err
		}
	}
	return p.w.well(p.hosts[0])
}

// visit runs do for a patient in parallel with others.
func (w *ward) visit(p *patient, do func() error) {
	w.runs.Go(func() error {
		if err := do(); err != nil {
			w.t.Errorf("%s: %v", p.network, err)
		}
		return nil
	})
}

// treat starts the agents and tests the faults, in parallel with other patients.
func (w *ward) treat(p *patient, faults ...fault) {
	w.visit(p, func() error {
		if err := p.start(); err != nil {
			return err
		}
		return p.treat(faults...)
	})
}
