package network

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// A member is a host whose runner can be started and stopped, as an agent does. It lives in simulated time.
type member struct {
	*host
	kernel *fakeKernel
	run    *Runner
	stop   func() // ends the runner and keeps the datapath, as the end of a process does
	ended  <-chan error

	mu       sync.Mutex
	guarded  string // the last call of Guard, such as "[10.5.0.0/22] true"
	place    []netip.Addr
	placeErr error
	refusals map[string]bool      // the destinations of the routes of guards in the kernel
	rules    map[string]bool      // the destinations of routing rules in the kernel
	device   int                  // the index of the underlay's interface
	looks    int                  // how often the underlay was selected
	narrow   map[netip.Addr]int   // the MTU of the path, by address of the peer
	remains  datapath.KernelState // what the next process finds of the datapath
}

// newMember returns a member of network n that is not started yet.
func newMember(t testing.TB, store *memory.Store, name string) *member {
	t.Helper()
	m := &member{host: newHost(t, store, name), kernel: &fakeKernel{}, device: 2,
		refusals: map[string]bool{}, rules: map[string]bool{}}
	m.config.Lease.TTL, m.config.Lease.RenewMargin = 10*time.Second, 9900*time.Millisecond // renewed every 100 ms
	m.place = m.addrs
	m.prepare()
	return m
}

// prepare gives the host the fakes of a member.
func (m *member) prepare() {
	m.deps.Datapaths.Backends = map[string]backend.Type{"recorder": m.kernel.kind("recorder"), "other": m.kernel.kind("other"), "alloc": m.kernel.kind("alloc")}
	m.deps.Datapaths.SelectUnderlay = func(_ config.Underlay, _ []netip.Prefix, peers []netip.Addr) (underlay.Choice, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.looks++
		mtu := 1500
		for _, peer := range peers {
			mtu = min(mtu, cmp.Or(m.narrow[peer], mtu))
		}
		return underlay.Choice{
			Interface: "eth0", Index: m.device, MTU: mtu, Addrs: m.place, Devices: []string{"eth0"},
		}, m.placeErr
	}
	m.deps.Datapaths.Guard = func(_ context.Context, owner kernel.Owner, wanted bool) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.guarded = fmt.Sprint(owner.Parts(), " ", wanted)
		replace(m.refusals, owner, wanted)
		return nil
	}
	m.deps.Datapaths.PreferMain = func(_ context.Context, owner kernel.Owner, priority int, _ bool) ([]backend.Repair, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		replace(m.rules, owner, priority != 0)
		return nil, nil
	}
	m.deps.ReadKernelState = func(context.Context, string, []netip.Prefix) (datapath.KernelState, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.remains, nil
	}
}

// replace replaces an owner's destinations in a table of the kernel.
func replace(table map[string]bool, owner kernel.Owner, wanted bool) {
	maps.DeleteFunc(table, func(dst string, _ bool) bool {
		return owner.Owns(kernel.RouteKey{Dst: netip.MustParsePrefix(dst)}, kernel.Route{})
	})
	for _, part := range owner.Parts() {
		if wanted {
			table[part.String()] = true
		}
	}
}

// start runs the host's runner until stop is called or the test ends. After a stop, nothing is known but what the former
// process left in files, the store and the kernel.
func (m *member) start() *member {
	m.t.Helper()
	if m.run != nil {
		m.renew()
		m.prepare()
	}
	return m.startAgain()
}

// startAgain is start with what the host's networks share.
func (m *member) startAgain() *member {
	m.t.Helper()
	keeper := m.deps.Rules.Keeper
	keeper.Remember(m.deps.Datapaths.Backends, m.config.DataDir, func(string) (config.Network, bool) { return m.config.Networks[0], true })
	ctx, cancel := context.WithCancel(context.Background())
	run := m.runner()
	m.run = run
	ended := make(chan error, 1)
	m.ended = ended
	var all sync.WaitGroup
	all.Go(func() { _ = keeper.Run(ctx) })
	all.Go(func() { m.follow(ctx) })
	all.Go(func() { _ = m.deps.Store.Outage.Run(ctx) })
	all.Go(func() {
		err := run.Run(ctx)
		if ended <- err; err != nil && m.config.Lease.OnLost != config.OnLostExit {
			m.t.Error(err)
		}
	})
	m.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	m.t.Cleanup(m.stop)
	return m
}

// move gives the host other addresses on the underlay, or makes selecting the underlay fail with err.
func (m *member) move(addrs []netip.Addr, err error) {
	m.mu.Lock()
	m.place, m.placeErr = addrs, err
	m.mu.Unlock()
	m.deps.Datapaths.Kernel.Set(struct{}{})
}

// logs returns how many lines say that a fault of a check has begun, and how many say that it has ended.
func (m *member) logs(check string) (begun, ended int) {
	return len(m.said.With("operation failed on this host", "check="+check)), len(m.said.With("operation works again", "check="+check))
}

// kick tells the host that the kernel changed.
func (m *member) kick() { m.deps.Datapaths.Kernel.Set(struct{}{}) }

// follows gives the host another address and waits until its datapath has it.
func (m *member) follows(addr string) {
	m.t.Helper()
	want := []netip.Addr{netip.MustParseAddr(addr)}
	m.move(want, nil)
	agenttest.Eventually(m.t, func() error {
		passes := m.kernel.applied()
		if got := passes[len(passes)-1].Underlay.Addrs; !slices.Equal(got, want) {
			return fmt.Errorf("the datapath stands on %v", got)
		}
		return nil
	})
}

// more waits until a count is greater than before.
func (m *member) more(what string, than int, count func() int) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		if n := count(); n <= than {
			return fmt.Errorf("%s: no more %s than %d", m.name, what, n)
		}
		return nil
	})
}

// with returns the state that m applies with the others as its peers, such as "10.5.1.0/24 <- b@10.5.2.0/24".
func (m *member) with(others ...*member) string {
	slices.SortFunc(others, func(a, b *member) int { return a.subnet().Addr().Compare(b.subnet().Addr()) })
	var peers []string
	for _, o := range others {
		peers = append(peers, fmt.Sprintf("%s@%s", o.name, o.subnet()))
	}
	return fmt.Sprintf("%s <- %s", m.subnet(), strings.Join(peers, ", "))
}

// free returns a subnet of network n that none of the members has.
func free(members ...*member) netip.Prefix {
	for _, p := range []string{"10.5.1.0/24", "10.5.2.0/24", "10.5.3.0/24"} {
		p := netip.MustParsePrefix(p)
		if !slices.ContainsFunc(members, func(m *member) bool { return m.subnet() == p }) {
			return p
		}
	}
	return netip.Prefix{}
}

// status returns the status of the host's health report.
func (m *member) status() string {
	report, _ := m.deps.Reports.Health.Report()
	return report.Status
}

// ready waits until the network is ready.
func (m *member) ready() {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		if report, _ := m.deps.Reports.Health.Report(); len(report.Networks) != 1 || !report.Networks[0].Ready {
			return fmt.Errorf("%s is not ready: %+v", m.name, report)
		}
		return nil
	})
}

// subnet waits until the host has a lease, and returns its subnet.
func (m *member) subnet() (out netip.Prefix) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		lease, held := m.run.Lease()
		if !held {
			return fmt.Errorf("%s: no lease: %s", m.name, m.run.Status().Local.State)
		}
		out = lease.Subnet()
		return nil
	})
	return out
}

// applies waits until the state applied last is want, such as "10.5.1.0/24 <- b@10.5.2.0/24".
func (m *member) applies(want string) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		if got := m.kernel.last(); got != want {
			return fmt.Errorf("%s applied %q, want %q", m.name, got, want)
		}
		return nil
	})
}

// guards waits until the last call of Guard is want, such as "[10.5.0.0/22] true".
func (m *member) guards(want string) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.guarded != want {
			return fmt.Errorf("%s guards %q, want %q", m.name, m.guarded, want)
		}
		return nil
	})
}

// check waits until a check of network n has the status, and a reason with all words.
func (m *member) check(name, status string, words ...string) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		report, _ := m.deps.Reports.Health.Report()
		for _, n := range report.Networks {
			for _, c := range n.Checks {
				if c.Name == name && c.Status == status && containsAll(c.Reason, words) {
					return nil
				}
			}
		}
		return fmt.Errorf("%s: no check %s is %s and says %q: %+v", m.name, name, status, words, report)
	})
}

func containsAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// simulated runs a test in simulated time, beside other tests.
func simulated(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

// leaseKey returns the key of a lease of network n in the store.
func leaseKey(subnet netip.Prefix) string {
	return memory.Prefix + "/leases/n/" + registry.SubnetKey(subnet)
}
