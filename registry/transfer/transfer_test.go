package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// network returns a network with the slots 1 to 15.
func network(t *testing.T, name, prefix string) registry.Network {
	t.Helper()
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix(prefix)}}.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	backend, err := registry.NewBackend("vxlan", []byte(`{"vni":1}`))
	if err != nil {
		t.Fatal(err)
	}
	return registry.Network{Name: name, Plan: plan, Backend: backend}
}

// claim returns the claim of host i on slot i.
func claim(n registry.Network, i int) registry.Claim {
	mac := fmt.Sprintf(`{"vtep_mac":"0a:58:00:00:00:%02x"}`, i)
	backend, _ := registry.NewBackend("vxlan", []byte(mac)) // only invalid JSON is an error
	return registry.Claim{
		Node:      fmt.Sprintf("host-%d", i),
		NodeID:    fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})},
		MTU:       1450,
		Backend:   backend,
		Prefer:    n.Plan.Subnets(uint64(i))[0],
		TTL:       time.Minute,
		Hold:      time.Hour,
	}
}

// A world has two stores, with the network default of hosts 1 to 3 in the first.
type world struct {
	*testing.T
	from, to *memory.Store
	network  registry.Network
	foreign  []string               // nodes in from that run flannel or for which flannel has reserved a subnet
	leases   map[int]registry.Lease // in the source, by host
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, from: memory.New(), to: memory.New(), leases: map[int]registry.Lease{}}
	w.network = w.define(w.from, network(t, "default", "10.5.0.0/20"))
	for i := 1; i <= 3; i++ {
		w.leases[i] = w.acquire(w.from, claim(w.network, i))
	}
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) define(s *memory.Store, n registry.Network, kept ...registry.Reservation) registry.Network {
	w.Helper()
	w.must(s.Client().PutNetwork(w.Context(), n, kept...))
	n, err := s.Client().Network(w.Context(), n.Name)
	w.must(err)
	return n
}

func (w *world) acquire(s *memory.Store, c registry.Claim) registry.Lease {
	w.Helper()
	n, err := s.Client().Network(w.Context(), "default")
	w.must(err)
	l, err := s.Client().Acquire(w.Context(), n, c)
	w.must(err)
	return l
}

func (w *world) reserve(s *memory.Store, slot uint64, node string) {
	w.Helper()
	n, err := s.Client().Network(w.Context(), "default")
	w.must(err)
	r := registry.Reservation{Network: n.Name, Subnet: n.Plan.Subnets(slot)[0], Node: node}
	w.must(s.Client().AddReservation(w.Context(), n, r, true))
}

func (w *world) copy(change ...func(*Options)) Report {
	w.Helper()
	report, err := w.try(w.to.Client(), change...)
	w.must(err)
	return report
}

func (w *world) try(to registry.Registry, change ...func(*Options)) (Report, error) {
	o := Options{Hold: 24 * time.Hour}
	for _, f := range change {
		f(&o)
	}
	return Copy(w.Context(), foreignHosts{w.from.Client(), w.foreign}, to, o)
}

// foreignHosts is a registry in which some hosts run flannel, or have a reservation in flannel.
type foreignHosts struct {
	registry.Registry
	nodes []string
}

func (r foreignHosts) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	set, index, err := r.Registry.WatchLeases(ctx, n, after)
	set.Leases = slices.Clone(set.Leases)
	for i, l := range set.Leases {
		set.Leases[i].Foreign = slices.Contains(r.nodes, l.Node)
	}
	return set, index, err
}

func (r foreignHosts) WatchReservations(ctx context.Context, n registry.Network, after uint64) (
	registry.ReservationSet, uint64, error) {
	set, index, err := r.Registry.WatchReservations(ctx, n, after)
	set.Reservations = slices.Clone(set.Reservations)
	for i, reserved := range set.Reservations {
		if slices.Contains(r.nodes, reserved.Node) {
			set.Reservations[i].Address = netip.MustParseAddr("192.0.2.22")
		}
	}
	return set, index, err
}

// lapse ends the sessions of all leases in a store.
func (w *world) lapse(s *memory.Store) {
	w.Helper()
	for _, l := range w.read(s) {
		s.EndSession(l.Session)
	}
}

func (w *world) read(s *memory.Store) []registry.Lease {
	w.Helper()
	n, err := s.Client().Network(w.Context(), "default")
	w.must(err)
	set, _, err := s.Client().WatchLeases(w.Context(), n, 0)
	w.must(err)
	return set.Leases
}

// want compares a report, one line for each object, with lines in which each * stands for any text.
func (w *world) want(r Report, lines ...string) {
	w.Helper()
	var got []string
	add := func(format string, args ...any) { got = append(got, strings.TrimSpace(fmt.Sprintf(format, args...))) }
	for _, n := range r.Networks {
		add("%s %s %s", n.Name, n.Result, n.Reason)
		for _, each := range n.Reservations {
			add("%s %s %s %s", each.Subnet, each.Host, each.Result, each.Reason)
		}
		for _, each := range n.Leases {
			add("%s %s %s %s", each.Subnet, each.Node, each.Result, each.Reason)
		}
	}
	for _, record := range r.Records {
		add("%s %s %s %s", record.Network, record.Key, record.Result, record.Reason)
	}
	matches := func(line, pattern string) bool {
		before, after, any := strings.Cut(pattern, "*")
		return line == pattern || any && strings.HasPrefix(line, before) && strings.HasSuffix(line, after)
	}
	if !slices.EqualFunc(got, lines, matches) {
		w.Errorf("report (-want +got):\n%s", cmp.Diff(lines, got))
	}
}

// everything returns all records of a store, without its indexes.
func everything(s *memory.Store) map[string]string {
	out := map[string]string{}
	for _, key := range s.Keys("") {
		value, _, _ := s.Get(key)
		out[key] = string(value)
	}
	return out
}

func TestCopy(t *testing.T) {
	w := newWorld(t)
	w.reserve(w.from, 3, "host-3")
	w.reserve(w.from, 9, "host-9")
	blue := w.define(w.from, network(t, "blue", "10.9.0.0/20"))
	before := everything(w.from)

	w.want(w.copy(func(o *Options) { o.DryRun = true }), "blue to-copy", "default to-copy",
		`10.5.3.0/24 node "host-3" to-copy`, `10.5.9.0/24 node "host-9" to-copy`,
		"10.5.1.0/24 host-1 to-copy", "10.5.2.0/24 host-2 to-copy", "10.5.3.0/24 host-3 to-copy")
	if keys := w.to.Keys(""); len(keys) > 0 {
		t.Fatalf("the dry run wrote %q", keys)
	}
	w.want(w.copy(), "blue copied", "default copied",
		`10.5.3.0/24 node "host-3" copied`, `10.5.9.0/24 node "host-9" copied`,
		"10.5.1.0/24 host-1 copied", "10.5.2.0/24 host-2 copied", "10.5.3.0/24 host-3 copied")
	if diff := cmp.Diff(before, everything(w.from)); diff != "" {
		t.Errorf("the source was changed:\n%s", diff)
	}
	if diff := cmp.Diff(before, everything(w.to)); diff != "" {
		t.Errorf("the destination differs from the source:\n%s", diff)
	}
	if n, err := w.to.Client().Network(t.Context(), "blue"); err != nil || !n.Backend.Equal(blue.Backend) {
		t.Errorf("%+v, %v", n, err)
	}

	// While the copies have not lapsed, and when the hosts hold them, there is nothing left to do.
	present := []string{"blue present", "default present",
		`10.5.3.0/24 node "host-3" present`, `10.5.9.0/24 node "host-9" present`,
		"10.5.1.0/24 host-1 present", "10.5.2.0/24 host-2 present", "10.5.3.0/24 host-3 present"}
	held := w.read(w.to)
	w.want(w.copy(), present...)
	if diff := cmp.Diff(held, w.read(w.to), cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})); diff != "" {
		t.Errorf("the second call has changed:\n%s", diff)
	}
	w.lapse(w.to)
	c := claim(w.network, 2)
	c.Prefer = netip.Prefix{}
	own := w.acquire(w.to, c)
	if own.Slot != 2 {
		t.Fatalf("host-2 got %+v", own)
	}
	// A lapsed copy is kept for another hold, and the lease of a host that has changed to the destination stays.
	again := slices.Clone(present)
	again[4], again[6] = "10.5.1.0/24 host-1 copied", "10.5.3.0/24 host-3 copied"
	w.want(w.copy(), again...)
	if now := w.read(w.to)[1]; now.Session != own.Session || now.ModifyIndex != own.ModifyIndex {
		t.Errorf("the lease of host-2 was %+v, is %+v", own, now)
	}
	if diff := cmp.Diff(before, everything(w.to)); diff != "" {
		t.Errorf("the destination differs from the source:\n%s", diff)
	}
}

// TestInterrupted stops after each write, and finishes with a second call.
func TestInterrupted(t *testing.T) {
	for writes := range 6 {
		t.Run(fmt.Sprint(writes), func(t *testing.T) {
			w := newWorld(t)
			w.reserve(w.from, 9, "host-9")
			w.reserve(w.from, 2, "host-8") // in spite of the lease of host-2
			_, err := w.try(&failing{Registry: w.to.Client(), left: writes})
			if (writes < 5) != errors.Is(err, registry.ErrUnavailable) {
				t.Fatalf("error %v", err)
			}
			if writes > 0 {
				w.lapse(w.to)
			}
			r := w.copy()
			if r.Failures() > 0 {
				t.Errorf("%+v", r)
			}
			if diff := cmp.Diff(everything(w.from), everything(w.to)); diff != "" {
				t.Errorf("the destination differs from the source:\n%s", diff)
			}
		})
	}
}

// failing is a store that cannot be reached any more after a number of writes.
type failing struct {
	registry.Registry
	left int
}

func (f *failing) write() error {
	if f.left--; f.left < 0 {
		return registry.ErrUnavailable
	}
	return nil
}

func (f *failing) PutNetwork(ctx context.Context, n registry.Network, kept ...registry.Reservation) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.Registry.PutNetwork(ctx, n, kept...)
}

func (f *failing) Acquire(ctx context.Context, n registry.Network, c registry.Claim) (registry.Lease, error) {
	if err := f.write(); err != nil {
		return registry.Lease{}, err
	}
	return f.Registry.Acquire(ctx, n, c)
}

func (f *failing) AddReservation(ctx context.Context, n registry.Network, r registry.Reservation, force bool) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.Registry.AddReservation(ctx, n, r, force)
}

func TestSituations(t *testing.T) {
	const one, two, three = "10.5.1.0/24 host-1 copied", "10.5.2.0/24 host-2 copied", "10.5.3.0/24 host-3 copied"
	for _, tt := range []struct {
		name    string
		set     func(*world)
		options func(*Options)
		want    []string
		fails   int
	}{
		{name: "only one network", set: func(w *world) { w.define(w.from, network(w.T, "blue", "10.9.0.0/20")) },
			options: func(o *Options) { o.Networks = []string{"blue"} }, want: []string{"blue copied"}},
		{name: "another definition", set: func(w *world) {
			n := network(w.T, "default", "10.6.0.0/20")
			n.Backend.Object = []byte(`{"type":"vxlan","vni":2}`)
			n.Epoch.Number = 1
			w.reserve(w.from, 9, "host-9")
			w.define(w.to, n)
		}, fails: 1, want: []string{"default failed the destination has another definition: " +
			"backend.vni is 1 in the source and 2 there; ipv4.max is 10.5.15.0 in the source and 10.6.15.0 there; " +
			"ipv4.min is 10.5.1.0 in the source and 10.6.1.0 there; " +
			"ipv4.prefix is 10.5.0.0/20 in the source and 10.6.0.0/20 there; " +
			"the switch to another backend or to new keys is in another state in the source than there",
			`10.5.9.0/24 node "host-9" skipped the network is not copied`,
			"10.5.1.0/24 host-1 skipped the network is not copied", "10.5.2.0/24 host-2 skipped the network is not copied",
			"10.5.3.0/24 host-3 skipped the network is not copied"}},
		{name: "defaults", set: func(w *world) {
			n := network(w.T, "default", "10.5.0.0/20")
			n.Backend.Object = []byte(`{"type":"vxlan"}`)
			w.define(w.to, n)
		}, options: func(o *Options) {
			o.Normalize = func(b registry.Backend) registry.Backend {
				b.Object = []byte(strings.ReplaceAll(string(b.Object), `,"vni":1`, ""))
				return b
			}
		}, want: []string{"default present", one, two, three}},
		{name: "the destination's record is unusable",
			set: func(w *world) { w.to.Put("leno/networks/default", []byte("x")) }, fails: 1,
			want: []string{"default failed destination: *", "10.5.1.0/24 host-1 skipped the network is not copied",
				"10.5.2.0/24 host-2 skipped the network is not copied", "10.5.3.0/24 host-3 skipped the network is not copied"}},
		{name: "deleted and unusable records", set: func(w *world) {
			w.define(w.from, network(w.T, "old", "10.9.0.0/20"))
			w.must(w.from.Client().DeleteNetwork(w.Context(), "old"))
			w.from.Put("leno/networks/bad", []byte("x"))
			w.from.Put("leno/leases/default/10.5.7.0-24", []byte("x"))
			w.from.Put("leno/reservations/default/10.5.8.0-24", []byte("x"))
		}, fails: 3, want: []string{"default copied", one, two, three, "old  skipped the network was deleted at *",
			"bad leno/networks/bad failed *", "default leno/leases/default/10.5.7.0-24 failed *",
			"default leno/reservations/default/10.5.8.0-24 failed *"}},
		{name: "a slot of another host", set: func(w *world) {
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			c := claim(w.network, 7)
			c.Prefer = w.leases[2].Subnet()
			w.acquire(w.to, c)
		}, fails: 1, want: []string{"default present", one,
			`10.5.2.0/24 host-2 failed held by another host: "host-7" (192.0.2.7, node id *) holds 10.5.2.0/24`, three}},
		{name: "a lapsed lease of another host", set: func(w *world) {
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			c := claim(w.network, 7)
			c.Prefer = w.leases[2].Subnet()
			w.acquire(w.to, c)
			w.lapse(w.to)
		}, fails: 1, want: []string{"default present", one,
			`10.5.2.0/24 host-2 failed held by another host: the lapsed lease of "host-7" *`, three}},
		{name: "the host has another slot there", set: func(w *world) {
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			c := claim(w.network, 2)
			c.Prefer = w.network.Plan.Subnets(6)[0]
			w.acquire(w.to, c)
		}, fails: 1, want: []string{"default present", one,
			"10.5.2.0/24 host-2 failed the host holds 10.5.6.0/24 in the destination", three}},
		{name: "the host had another slot there", set: func(w *world) {
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			for _, i := range []int{1, 2} { // crosswise
				c := claim(w.network, i)
				c.Prefer = w.leases[3-i].Subnet()
				w.acquire(w.to, c)
			}
			w.lapse(w.to)
		}, want: []string{"default present", one, two, three}},
		{name: "a silent host", set: func(w *world) { w.from.EndSession(w.leases[2].Session) },
			want: []string{"default copied", one, two, three}},
		{name: "a silent host that has changed to the destination", set: func(w *world) {
			w.copy()
			w.lapse(w.to)
			w.from.EndSession(w.leases[2].Session)
		}, want: []string{"default present", one, "10.5.2.0/24 host-2 present", three}},
		{name: "a silent host that has another slot there", set: func(w *world) {
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			c := claim(w.network, 2)
			c.Prefer = w.network.Plan.Subnets(6)[0]
			w.acquire(w.to, c)
			w.from.EndSession(w.leases[2].Session)
		}, want: []string{"default present", one,
			"10.5.2.0/24 host-2 skipped its host has 10.5.6.0/24 in the destination", three}},
		{name: "an earlier lease of a host", set: func(w *world) {
			w.from.EndSession(w.leases[2].Session)
			c := claim(w.network, 4)
			c.PublicIPs = claim(w.network, 2).PublicIPs
			w.acquire(w.from, c)
		}, want: []string{"default copied", one, "10.5.2.0/24 host-2 skipped its host has 10.5.4.0/24 now", three,
			"10.5.4.0/24 host-4 copied"}},
		{name: "reserved for another host in spite of the lease", set: func(w *world) { w.reserve(w.from, 2, "host-8") },
			want: []string{"default copied", `10.5.2.0/24 node "host-8" copied`, one, two, three}},
		{name: "reserved for another host there", set: func(w *world) {
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			w.reserve(w.to, 2, "host-8")
		}, fails: 1, want: []string{"default present", one, "10.5.2.0/24 host-2 failed reserved for another host: *", three}},
		{name: "another slot is reserved for the host", set: func(w *world) { w.reserve(w.from, 9, "host-2") },
			want: []string{"default copied", `10.5.9.0/24 node "host-2" copied`, one, two, three}},
		{name: "the same reservation for another host", set: func(w *world) {
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			w.reserve(w.to, 9, "host-8")
			w.reserve(w.from, 9, "host-9")
		}, fails: 1, want: []string{"default present",
			`10.5.9.0/24 node "host-9" failed reserved for another host: 10.5.9.0/24 is kept for node "host-8"`,
			one, two, three}},
		{name: "foreign hosts are left out", set: func(w *world) { w.foreign = []string{"host-2"} },
			options: func(o *Options) { o.WithoutForeign = true }, want: []string{"default copied", one, "10.5.2.0/24 host-2 skipped its host does not run leno", three}},
		{name: "a reservation in flannel", set: func(w *world) {
			w.foreign = []string{"flannel-192.0.2.22"}
			w.reserve(w.from, 9, "flannel-192.0.2.22")
		}, fails: 1, want: []string{"default copied", `10.5.9.0/24 node "flannel-192.0.2.22" failed it is for the host with ` +
			"the address 192.0.2.22: reserve it there with `leno reservation add -node=NAME default 10.5.9.0/24`", one, two, three}},
		{name: "a reservation in flannel for a host that has it there", set: func(w *world) {
			w.foreign = []string{"flannel-192.0.2.22"}
			w.reserve(w.from, 9, "flannel-192.0.2.22")
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			w.reserve(w.to, 9, "host-9")
		}, want: []string{"default present", `10.5.9.0/24 node "flannel-192.0.2.22" present`, one, two, three}},
		{name: "leases of a deleted network", set: func(w *world) {
			w.define(w.to, network(w.T, "default", "10.5.0.0/20"))
			w.acquire(w.to, claim(w.network, 1))
			w.lapse(w.to)
			w.must(w.to.Client().DeleteNetwork(w.Context(), "default"))
		}, want: []string{"default copied", one, two, three}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if tt.set != nil {
				tt.set(w)
			}
			options := func(o *Options) {
				if tt.options != nil {
					tt.options(o)
				}
			}
			source := everything(w.from)
			planned := w.copy(options, func(o *Options) { o.DryRun = true })
			done := w.copy(options)
			w.want(done, tt.want...)
			if done.Failures() != tt.fails {
				t.Errorf("%d failures, want %d", done.Failures(), tt.fails)
			}
			var foreseen []string
			for _, line := range tt.want {
				for _, word := range []string{"default", "blue", `"`, "/24 host-1", "/24 host-2", "/24 host-3", "/24 host-4"} {
					line = strings.Replace(line, word+" copied", word+" to-copy", 1)
				}
				foreseen = append(foreseen, line)
			}
			w.want(planned, foreseen...)
			if diff := cmp.Diff(source, everything(w.from)); diff != "" {
				t.Errorf("the source was changed:\n%s", diff)
			}
		})
	}
}

// TestRefused: nothing is written.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	w.foreign = []string{"host-2", "host-3"}
	report, err := w.try(w.to.Client())
	foreign := &ForeignError{}
	if !errors.As(err, &foreign) || !slices.Equal(foreign.Subnets, []string{"10.5.2.0/24", "10.5.3.0/24"}) {
		t.Errorf("error %v", err)
	}
	w.want(report, "default to-copy", "10.5.1.0/24 host-1 to-copy",
		"10.5.2.0/24 host-2 skipped its host does not run leno", "10.5.3.0/24 host-3 skipped its host does not run leno")
	_, err = w.try(w.to.Client(), func(o *Options) { o.Networks = []string{"default", "blue"} })
	if !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Copy(ctx, w.from.Client(), w.to.Client(), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if keys := w.to.Keys(""); len(keys) > 0 {
		t.Errorf("wrote %q", keys)
	}
}

// TestMoveAndReturn moves the hosts to the destination and back, beside their old lapsed leases.
func TestMoveAndReturn(t *testing.T) {
	w := newWorld(t)
	w.copy()
	w.lapse(w.to)
	for i := 1; i <= 3; i++ {
		c := claim(w.network, i)
		c.MTU = 1400 // as the host has it now
		c.Prefer, c.Session = w.leases[i].Subnet(), w.leases[i].Session
		if l := w.acquire(w.to, c); l.Slot != w.leases[i].Slot {
			t.Errorf("host %d got %+v", i, l)
		}
	}
	w.lapse(w.from)
	w.from, w.to = w.to, w.from
	w.want(w.copy(), "default present",
		"10.5.1.0/24 host-1 copied", "10.5.2.0/24 host-2 copied", "10.5.3.0/24 host-3 copied")
	if diff := cmp.Diff(everything(w.from), everything(w.to)); diff != "" {
		t.Errorf("the destination differs from the source:\n%s", diff)
	}
}
