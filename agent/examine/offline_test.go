package examine

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/registry"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// offline returns a host of which the configuration defines the network "n".
func offline(t *testing.T, s *store) Offline {
	t.Helper()
	c := config.Defaults()
	dir := t.TempDir()
	c.NodeName = "a"
	c.DataDir = filepath.Join(dir, "data")
	c.HTTP.Address, c.HTTP.Socket = "unix://"+filepath.Join(dir, "leno.sock"), ""
	c.Files = []string{filepath.Join(dir, "leno.hcl")}
	c.Networks = []config.Network{{
		Name:    "n",
		Pools:   []config.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24}},
		Backend: &config.Backend{Type: "host-gw"},
	}}
	return Offline{
		Address:  "http://127.0.0.1:5366",
		Err:      errors.New("connection refused"),
		Config:   c,
		Backends: backends(),
		Open:     func(config.Config, hclog.Logger) (Registry, string, error) { return s, "a fake", nil },
		Logger:   hclog.NewNullLogger(),
		Now:      time.Now,
	}
}

// TestExamineOffline: the host is examined as far as its files and the store tell.
func TestExamineOffline(t *testing.T) {
	n := newNetwork(t)
	s := &store{definition: n.Definition}
	out := ExamineOffline(t.Context(), offline(t, s), api.DoctorOptions{})
	got := found(out)
	if out.Agent || out.Active || out.Node != "a" {
		t.Errorf("%+v", out)
	}
	if !slices.Contains(got, "fault agent") || !slices.Contains(got, "fault acl") {
		t.Errorf("findings %q", got)
	}
	if want := []string{"n"}; !slices.Equal(s.wanted.Networks, want) || len(s.wanted.Defines) != 0 {
		t.Errorf("rights for %+v", s.wanted)
	}
	for name, change := range map[string]func(*Offline){
		"no configuration":      func(o *Offline) { o.Config.Files = nil },
		"invalid configuration": func(o *Offline) { o.ConfigErr = errors.New("line 3") },
	} {
		s.wanted = registry.RequiredRights{}
		o := offline(t, s)
		change(&o)
		if out := ExamineOffline(t.Context(), o, api.DoctorOptions{}); len(out.Findings) == 0 || s.wanted.Node != "" {
			t.Errorf("%s: asked for %+v, findings %q", name, s.wanted, found(out))
		}
	}
}

// TestDefinition: the store's definition counts, then that of the configuration.
func TestDefinition(t *testing.T) {
	n := newNetwork(t)
	for _, tt := range []struct {
		name     string
		network  string
		storeErr error
		backend  string
		wantErr  string
	}{
		{"defined", "n", nil, "host-gw", ""},
		{"not defined yet", "m", nil, "host-gw", ""},
		{"the store is away", "n", registry.ErrUnavailable, "host-gw", ""},
		{"in the store alone, which is away", "other", registry.ErrUnavailable, "", "in Consul alone"},
		{"nowhere", "other", nil, "", registry.ErrNetworkNotFound.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &store{definition: n.Definition}
			o := offline(t, s)
			second := o.Config.Networks[0]
			second.Name = "m"
			o.Config.Networks = append(o.Config.Networks, second)
			e := &offlineExaminer{o: o, registry: s, storeErr: tt.storeErr}
			got, _, err := e.definition(t.Context(), tt.network)
			if got.Backend.Type != tt.backend || (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%+v, %v", got, err)
			}
			if tt.backend != "" && (len(got.Plan) != 1 || got.Plan[0].Prefix.String() != "10.5.0.0/16") {
				t.Errorf("plan %v", got.Plan)
			}
		})
	}
}

// TestStateOfNetwork: the last agent's state file tells the subnet, and the store who has it now.
func TestStateOfNetwork(t *testing.T) {
	n := newNetwork(t)
	own := n.Lease
	for _, tt := range []struct {
		name   string
		record registry.Lease
		err    error
	}{
		{"still ours", own, nil},
		{"of another host", lease("thief", "10.5.1.0/24", "192.0.2.9"), registry.ErrHeld},
		{"gone", lease("thief", "10.5.9.0/24", "192.0.2.9"), registry.ErrLeaseNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &store{definition: n.Definition, leases: []registry.Lease{tt.record}}
			o := offline(t, s)
			must(t, state.Save(o.Config.DataDir, state.Network{Network: "n", NodeID: own.NodeID, Subnets: own.Subnets}))
			must(t, state.Save(o.Config.DataDir, state.Network{Network: "left"}))
			e := &offlineExaminer{o: o, registry: s}
			if got := e.networkNames(); !slices.Equal(got, []string{"left", "n"}) {
				t.Errorf("networks %q", got)
			}
			facts, p := e.networkFacts(t.Context(), "n")
			want := doctor.Lease{}
			want.SetRecord(tt.record, tt.err)
			got := facts.Lease
			if !errors.Is(got.RecordErr, want.RecordErr) || (got.Record == nil) != (want.Record == nil) {
				t.Errorf("%+v, want %+v", got, want)
			}
			if !slices.Equal(facts.Subnets, own.Subnets) || p == nil || p.overlay.Network.Name != "n" {
				t.Errorf("subnets %v, paths %+v", facts.Subnets, p)
			}
		})
	}
}

// TestFindRivals: another agent, or another program, may have what an agent needs for itself.
func TestFindRivals(t *testing.T) {
	c := config.Defaults()
	c.DataDir = filepath.Join(t.TempDir(), "data")
	c.HTTP.Address = "127.0.0.1:5366"
	ns := nstest.New(t)
	ns.Sh("ip link set lo up")
	is := func(wantOwner, wantTaken string) {
		t.Helper()
		var owner, taken string
		ns.Do(func() { owner, taken = findRivals(c) })
		if !strings.Contains(owner, wantOwner) || !strings.Contains(taken, wantTaken) ||
			(owner == "") != (wantOwner == "") || (taken == "") != (wantTaken == "") {
			t.Errorf("owner %q, taken %q, want %q and %q", owner, taken, wantOwner, wantTaken)
		}
	}
	is("", "")
	unlock, err := state.LockDataDir(c.DataDir)
	must(t, err)
	is("another agent has the state directory "+c.DataDir, "")
	must(t, unlock())
	is("", "")
	var host func() error
	var l net.Listener
	ns.Do(func() {
		host, err = state.LockHost()
		must(t, err)
		l, err = net.Listen("tcp", c.HTTP.Address)
	})
	must(t, err)
	is("an agent runs on this host, pid ", "address already in use")
	must(t, host())
	must(t, l.Close())
	is("", "")
}
