package flannel

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	format "github.com/lenonet/leno/registry/flannel"
)

// Options are the user's settings besides the files.
type Options struct {
	Name  string // of leno's network
	Nodes Nodes
	Now   time.Time
	// There is the existing network of that name in leno, nil for none. Its plan and backend stay,
	// and subnets are reserved in it.
	Existing *registry.Network
	// RenumberIPv6 allows hosts to get another IPv6 subnet than in flannel.
	RenumberIPv6 bool
}

// Import is a network of flannel in leno's terms.
type Import struct {
	Network      registry.Network
	Reservations []Reservation // sorted by subnet
	Skipped      []api.Skipped // records that cannot be carried over, and why
	Notes        []string      // differences from flannel
}

// Reservation reserves a host's subnet.
type Reservation struct {
	registry.Reservation
	Key      string     // of the lease
	PublicIP netip.Addr // address by which the host is identified
}

// Translate converts a store's content into leno's terms. It returns an error if the configuration
// is missing or unusable.
func Translate(s Store, o Options) (Import, error) {
	t := translation{store: s, options: o}
	t.store.InUse = maps.Clone(s.InUse)
	t.out.Skipped = slices.Clone(s.Skipped)
	t.out.Notes = slices.Clone(s.Notes)
	if err := t.network(); err != nil {
		return Import{}, err
	}
	t.leases()
	return t.out, nil
}

type translation struct {
	store   Store
	options Options
	out     Import
	moved   []string // hosts that get another IPv6 subnet
}

func (t *translation) note(format string, args ...any) {
	t.out.Notes = append(t.out.Notes, fmt.Sprintf(format, args...))
}

func (t *translation) skip(l Lease, format string, args ...any) {
	t.out.Skipped = append(t.out.Skipped, api.Skipped{Key: l.Key, Reason: fmt.Sprintf(format, args...)})
}

// network sets the network of the import: the existing one, or the configuration's.
func (t *translation) network() error {
	var c format.Config
	var notes []string
	var err error
	if t.store.Config != nil {
		if c, notes, err = parseConfig(t.store.Config.Value); err != nil {
			return fmt.Errorf("%s in %s: %w", t.store.Config.Key, t.store.Config.File, err)
		}
	}
	if t.options.Existing != nil {
		t.out.Network = *t.options.Existing
		t.compare(c)
		return nil
	}
	if t.store.Config == nil {
		return errors.New("no network configuration, flannel's key config: export it too, or put the network into Consul first with `leno network apply`")
	}
	at := func(err error) error {
		return fmt.Errorf("%s in %s: %w", t.store.Config.Key, t.store.Config.File, err)
	}
	n := registry.Network{Name: t.options.Name}
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return err
	}
	if n.Plan, err = c.Plan(); err != nil {
		return at(err)
	}
	var more []string
	if n.Backend, more, err = backendOf(c); err != nil {
		var lacks *format.UnsupportedError
		if errors.As(err, &lacks) {
			err = fmt.Errorf("%w; put network %s into Consul with a backend of your choice (`leno network apply`) and import again: a network that exists keeps its backend", err, n.Name)
		}
		return at(err)
	}
	t.out.Network = n
	t.out.Notes = slices.Concat(t.out.Notes, notes, more)
	return nil
}

// compare adds notes on where the existing network differs from flannel's.
func (t *translation) compare(c format.Config) {
	plan, err := c.Plan()
	if t.store.Config == nil || err != nil {
		return
	}
	for _, want := range plan {
		if !slices.Contains(t.out.Network.Plan, want) {
			t.note("network %s exists and stays as it is; it has no pool %s with /%d subnets from %s to %s, as flannel has",
				t.out.Network.Name, want.Prefix, want.SubnetLen, want.Min, want.Max)
		}
	}
}

// leases makes a reservation for each lease.
func (t *translation) leases() {
	n := t.out.Network
	hosts := map[string][]int{} // reservations by host
	for _, l := range t.current() {
		node, addr, err := t.options.Nodes.find(l.PublicIPs)
		if err != nil {
			t.skip(l, "%v", err)
			continue
		}
		r, err := t.reservation(n, l, node)
		if err != nil {
			t.skip(l, "%v", err)
			continue
		}
		if !l.Expires.IsZero() && l.Expires.Before(t.options.Now) {
			t.note("the lease on %s ran out on %s, so this export is old; it is imported anyway", l.Subnets[0],
				l.Expires.UTC().Format(time.RFC3339))
		}
		hosts[node] = append(hosts[node], len(t.out.Reservations))
		t.out.Reservations = append(t.out.Reservations, Reservation{Reservation: r, Key: l.Key, PublicIP: addr})
	}
	t.onceEach(hosts)
	if len(t.moved) > 0 {
		t.note("these hosts get another IPv6 subnet, the one at the position of their IPv4 subnet: %s",
			strings.Join(t.moved, ", "))
	}
	t.unknownEnvs()
}

// current returns the leases without outdated ones: if an address has several and a subnet.env
// names the subnet in use, it keeps only that one.
func (t *translation) current() []Lease {
	used := map[netip.Addr]netip.Prefix{}
	for _, l := range t.store.Leases {
		for _, s := range l.Subnets {
			if _, ok := t.store.InUse[s]; ok {
				used[l.PublicIPs[0]] = l.Subnets[0]
			}
		}
	}
	var out []Lease
	for _, l := range t.store.Leases {
		if in, ok := used[l.PublicIPs[0]]; ok && in != l.Subnets[0] {
			t.note("%s is left out: %s uses %s, says its subnet.env", l.Subnets[0], l.PublicIPs[0], in)
			continue
		}
		out = append(out, l)
	}
	return out
}

// reservation returns the reservation for a lease in the network.
func (t *translation) reservation(n registry.Network, l Lease, node string) (registry.Reservation, error) {
	r, err := registry.CheckNewReservation(n, registry.Reservation{Subnet: l.Subnets[0], Node: node})
	if err != nil {
		return r, err
	}
	got := n.Plan.Subnets(r.Slot)
	for i, s := range l.Subnets {
		switch {
		case slices.Contains(got, s):
		case !slices.ContainsFunc(got, func(g netip.Prefix) bool { return g.Addr().Is4() == s.Addr().Is4() }):
			t.note("%s of %s is not carried over: network %s has no such family", s, node, n.Name)
		case i > 0 && t.options.RenumberIPv6:
			t.moved = append(t.moved, fmt.Sprintf("%s %s instead of %s", node, got[len(got)-1], s))
		case i > 0:
			return r, fmt.Errorf("leno gives a host the subnets at one position of all families, with %s that is %s, and not %s; -renumber-ipv6 lets the host have it",
				l.Subnets[0], got[len(got)-1], s)
		default:
			return r, fmt.Errorf("%s is not a subnet of network %s, where a host has %s", s, n.Name, got[0])
		}
	}
	return r, nil
}

// onceEach removes the reservations of hosts that have several, because it is unknown which one
// the host uses.
func (t *translation) onceEach(hosts map[string][]int) {
	var out []Reservation
	for i, r := range t.out.Reservations {
		if all := hosts[r.Node]; len(all) > 1 {
			var others []string
			for _, j := range all {
				if j != i {
					others = append(others, t.out.Reservations[j].Subnet.String())
				}
			}
			t.skip(Lease{Key: r.Key}, "host %s has %s too; name its subnet.env as a further file, which says the one it uses",
				r.Node, strings.Join(others, ", "))
			continue
		}
		out = append(out, r)
	}
	t.out.Reservations = out
}

// unknownEnvs reports subnets that a host uses without a lease.
func (t *translation) unknownEnvs() {
	for _, l := range t.store.Leases {
		for _, s := range l.Subnets {
			delete(t.store.InUse, s)
		}
	}
	for s, file := range t.store.InUse {
		t.out.Skipped = append(t.out.Skipped, api.Skipped{Key: file,
			Reason: fmt.Sprintf("no lease tells which host uses %s; reserve it with `leno reservation add`", s)})
	}
	slices.SortFunc(t.out.Skipped, func(a, b api.Skipped) int { return strings.Compare(a.Key, b.Key) })
}

// find returns the only host that has one of the addresses.
func (n Nodes) find(addrs []netip.Addr) (string, netip.Addr, error) {
	for _, a := range addrs {
		switch names := n[a]; len(names) {
		case 0:
		case 1:
			return names[0], a, nil
		default:
			return "", a, fmt.Errorf("%s is of several hosts, %s: say which with -node=%s=NAME", a,
				strings.Join(names, " and "), a)
		}
	}
	return "", netip.Addr{}, fmt.Errorf("no host is known by %s: name it with -node=%s=NAME or in the file of -nodes",
		addrs[0], addrs[0])
}
