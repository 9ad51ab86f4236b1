package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// TestPut checks when wishes are applied, and that every attempt has those of all networks.
func TestPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, r := t.Context(), &recorder{}
		k, _ := newKeeper(r)
		n := firewall.Network{Name: "n", Pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}
		masq := n
		masq.IPMasq = true
		broken := errors.New("no such table")
		later := func() { time.Sleep(time.Minute) } // pauses are over
		for _, step := range []struct {
			name string
			do   func() error
			err  error
			want []string // the networks of the attempts of this step
		}{
			{"first", func() error { return k.Put(ctx, n) }, nil, []string{"n"}},
			{"the same", func() error { return k.Put(ctx, n) }, nil, nil},
			{"configured otherwise", func() error { k.Configure(config.Firewall{Type: "nftables"}); return k.Put(ctx, n) }, nil, []string{"n"}},
			{"another wish", func() error { return k.Put(ctx, masq) }, nil, []string{"n"}},
			{"another network", func() error { return k.Put(ctx, firewall.Network{Name: "m"}) }, nil, []string{"m n"}},
			{"failing", func() error { r.fail(broken); return k.Put(ctx, n) }, broken, []string{"m n"}},
			{"and again, too soon", func() error { return k.Put(ctx, n) }, broken, nil},
			{"and again at its time", func() error { later(); return k.Put(ctx, n) }, broken, []string{"m n"}},
			{"mended", func() error { r.fail(nil); later(); return k.Put(ctx, n) }, nil, []string{"m n"}},
			{"failing half-way", func() error { r.fail(broken); return k.Put(ctx, masq) }, broken, []string{"m n"}},
			{"as before", func() error { r.fail(nil); return k.Put(ctx, n) }, nil, []string{"m n"}},
			{"one dropped", func() error { return k.Drop(ctx, "m") }, nil, []string{"n"}},
			{"never there", func() error { return k.Drop(ctx, "x") }, nil, nil},
			{"all dropped", func() error { return k.Drop(ctx, "n") }, nil, []string{""}},
		} {
			before := r.looks()
			if err := step.do(); !errors.Is(err, step.err) {
				t.Errorf("%s: %v", step.name, err)
			}
			var got []string
			got = append(got, r.names()[before:]...)
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Fatalf("%s: %s", step.name, diff)
			}
		}
	})
}

// TestPutFails checks which errors keep a network from being ready.
func TestPutFails(t *testing.T) {
	missing := fmt.Errorf("iptables: %w", firewall.ErrNotInstalled)
	const open = "; containers can reach the ports of tunnels, and packets with a forged source are not dropped: no nf_tables"
	for _, tt := range []struct {
		name      string
		masq      bool
		err       error
		unguarded error
		check     string
		harmless  bool
	}{
		{"not installed, not needed", false, missing, nil, "warning: iptables: program is not installed", true},
		{"not installed and needed", true, missing, nil, "critical: iptables: program is not installed", false},
		{"broken", false, errors.New("no such table"), nil, "critical: no such table", false},
		{"broken, without the guard", false, errors.New("no such table"), errors.New("no nf_tables"), "critical: no such table" + open, false},
		{"not seen for a while", true, firewall.ErrUnseen, nil, "warning: " + firewall.ErrUnseen.Error(), true},
		{"not seen for a while, without the guard", true, firewall.ErrUnseen, errors.New("no nf_tables"),
			"warning: " + firewall.ErrUnseen.Error() + open, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, board := newKeeper(&recorder{err: tt.err, report: firewall.Report{Unguarded: tt.unguarded}})
			err := k.Put(t.Context(), firewall.Network{Name: "n", Forward: true, IPMasq: tt.masq})
			if (err == nil) != tt.harmless || err != nil && !errors.Is(err, tt.err) {
				t.Errorf("got %v", err)
			}
			if got := check(board, "n", health.Firewall); got != tt.check {
				t.Errorf("check %q, want %q", got, tt.check)
			}
		})
	}
}

// TestDropOfAnEarlierProcess checks that rules that were not remembered are removed too, and that a host without a
// firewall is no error then.
func TestDropOfAnEarlierProcess(t *testing.T) {
	ctx, r := t.Context(), &recorder{}
	k, _ := newKeeper(r)
	must(t, k.Drop(ctx, "left"))
	must(t, k.Drop(ctx, "left"))
	if got := r.names(); len(got) != 1 || got[0] != "" {
		t.Errorf("applied %q, want the empty set once", got)
	}
	r.fail(firewall.ErrNotInstalled)
	k, _ = newKeeper(r)
	must(t, k.Drop(ctx, "left"))
	k, _ = newKeeper(r)
	if err := k.Put(ctx, wanted("mine")); !errors.Is(err, firewall.ErrNotInstalled) {
		t.Errorf("put: %v", err)
	}
	if err := k.Drop(ctx, "mine"); !errors.Is(err, firewall.ErrNotInstalled) {
		t.Errorf("rules there should be: %v", err)
	}
}

// TestRemember checks that the first network that is ready does not remove the rules of one that an earlier process
// had, and that only networks that this host still wants are remembered.
func TestRemember(t *testing.T) {
	dir := t.TempDir()
	subnets := []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}
	pools := []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:51821")}
	for _, saved := range []struct {
		name, backend string
		subnets       []netip.Prefix
	}{{"m", "udp", subnets}, {"unwanted", "udp", subnets}, {"without", "udp", nil}, {"bare", "alloc", subnets}} {
		must(t, state.Save(dir, state.Network{Version: registry.Version, Network: saved.name, Subnets: saved.subnets, Pools: pools,
			Devices: []string{"br0", "br1"}, Endpoints: endpoints, Carriage: registry.Carriage{Backend: registry.Backend{Type: saved.backend}}}))
	}
	r := &recorder{}
	k, _ := newKeeper(r)
	kinds := map[string]backend.Type{"udp": {Tunnels: true, Port: func(json.RawMessage) backend.Port { return backend.Port{Number: 8285} }}}
	k.Remember(kinds, dir, func(name string) (config.Network, bool) {
		_ = k.Status() // the keeper answers while this function runs
		return config.Network{Name: name, Forward: true}, name != "unwanted"
	})
	k.Resume("unwanted")
	must(t, k.Put(t.Context(), firewall.Network{Name: "n"}))
	if got := r.names(); len(got) != 1 || got[0] != "m n" {
		t.Fatalf("applied %q", got)
	}
	want := firewall.Network{Name: "m", Pools: pools, Subnets: subnets, Forward: true,
		Tunnels: []string{"leno-m", "leno-m~2", "leno-m~b"}, Ports: []uint16{8285}, Underlay: []string{"br0", "br1"}, Peers: endpoints, Sealed: true}
	if got := r.states[0].Networks[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestFormerPorts: the port of a tunnel that the network no longer has stays guarded for a while, because other hosts may
// still have that tunnel.
func TestFormerPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		k, _ := newKeeper(r)
		for _, tt := range []struct {
			after time.Duration
			ports []uint16
			want  string
		}{
			{0, []uint16{8472, 51820}, "[8472 51820]"},
			{time.Second, []uint16{51820}, "[8472 51820]"},
			{formerPorts / 2, []uint16{8285}, "[8285 8472 51820]"},
			{formerPorts / 2, []uint16{8285, 8472}, "[8285 8472 51820]"},
			{formerPorts, []uint16{8472}, "[8285 8472]"},
			{formerPorts, nil, "[8472]"},
		} {
			time.Sleep(tt.after)
			n := wanted("n")
			n.Ports = tt.ports
			must(t, k.Put(t.Context(), n))
			if got := fmt.Sprint(r.states[len(r.states)-1].Networks[0].Ports); got != tt.want {
				t.Errorf("%v: guards %s, want %s", tt.ports, got, tt.want)
			}
		}
		must(t, k.Drop(t.Context(), "n"))
		must(t, k.Put(t.Context(), wanted("n")))
		if got := r.states[len(r.states)-1].Networks[0].Ports; len(got) > 0 {
			t.Errorf("defined again: guards %v", got)
		}
	})
}

// TestHangingProgram checks that nothing waits for a program that hangs if it needs no other rules than those in
// force, or than those of the last attempt, which failed.
func TestHangingProgram(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
	}{{"after it worked", nil}, {"after it failed", errors.New("no such table")}} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{err: tt.err}
			k, _ := newKeeper(r)
			n := wanted("n")
			if err := k.Put(t.Context(), n); !errors.Is(err, tt.err) {
				t.Fatal(err)
			}
			began, hangs, looked := make(chan struct{}), make(chan struct{}), make(chan struct{})
			r.set(func(r *recorder) { r.began, r.hangs = began, hangs })
			go func() {
				defer close(looked)
				if tt.err != nil {
					k.desired.mu.Lock()
					k.desired.last.retryAt = time.Now()
					k.desired.mu.Unlock()
				}
				k.look(t.Context(), true)
			}()
			<-began
			asked := make(chan error, 1)
			go func() { // ends with the test at the latest
				k.Status()
				k.Resume("n")
				k.Configure(config.Defaults().Firewall)
				asked <- k.Put(t.Context(), n)
			}()
			select {
			case err := <-asked:
				if !errors.Is(err, tt.err) {
					t.Error(err)
				}
			case <-time.After(2 * time.Minute):
				t.Error("a caller waits for the program")
			}
			close(hangs)
			<-looked
		})
	}
}
