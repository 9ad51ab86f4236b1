package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// swept is a store that knows only the records of one host.
type swept struct {
	registry.Registry
	left     registry.HostRecords
	err      error
	services map[string]registry.Service
	asked    registry.Host
	done     []string
}

func (s *swept) Abilities() registry.Abilities {
	name := func(context.Context) (string, error) { return "host-a", s.err }
	return registry.Abilities{NodeName: name, Records: s, Catalog: s}
}

func (s *swept) HostRecords(_ context.Context, _ string, h registry.Host) (registry.HostRecords, error) {
	s.asked = h
	return s.left, s.err
}

func (s *swept) EndSession(_ context.Context, id string) error {
	s.done = append(s.done, "end "+id)
	return nil
}

func (s *swept) RegisteredService(_ context.Context, id string) (registry.Service, bool, error) {
	service, ok := s.services[id]
	return service, ok, nil
}

func (s *swept) Announce(context.Context, registry.Service, registry.Verdict) error { return nil }

func (s *swept) Duplicates(context.Context, registry.Service, string) ([]registry.Service, error) {
	return nil, nil
}

func (s *swept) Withdraw(_ context.Context, service registry.Service) error {
	s.done = append(s.done, "withdraw "+service.ID)
	return nil
}

func (s *swept) Release(_ context.Context, l registry.Lease) error {
	s.done = append(s.done, "release "+l.Network+" "+l.Subnet().String())
	return nil
}

// cleaned runs Run in a network namespace of its own.
func cleaned(t *testing.T, dir string, store *swept, o Options) (Report, error) {
	t.Helper()
	return cleanedIn(t, nstest.New(t), dir, store, o)
}

func cleanedIn(t *testing.T, ns *nstest.NS, dir string, store *swept, o Options) (report Report, err error) {
	t.Helper()
	c := config.Defaults()
	c.DataDir = filepath.Join(dir, "data")
	o.WireGuardDir, o.CNIDir = filepath.Join(dir, "wireguard"), filepath.Join(dir, "cni")
	if o.RunDir == "" {
		o.RunDir = filepath.Join(dir, "volatile")
	}
	c.HTTP.Address, c.HTTP.Socket = "unix://"+filepath.Join(dir, "leno.sock"), ""
	c.Networks = []config.Network{{Name: "blue", SubnetFile: filepath.Join(dir, "blue.env")}}
	o.Open = func(config.Config, hclog.Logger) (Registry, error) { return store, nil }
	o.SelectUnderlay = func(config.Underlay) (underlay.Choice, error) {
		return underlay.Choice{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.11")}}, nil
	}
	ns.Do(func() { report, err = Run(t.Context(), c, o) })
	return report, err
}

// names returns what a part of a report lists, with files relative to dir.
func names(dir string, list []Leftover) (out []string) {
	for _, r := range list {
		text := r.Kind + " " + strings.TrimPrefix(r.Name, dir+"/")
		if r.Network != "" {
			text += " of " + r.Network
		}
		out = append(out, text)
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// tree returns the paths below dir.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(path, dir))
		return err
	}))
	return out[1:]
}

const nodeUUID = "6f1c9d1e-5c3e-4d0b-8a55-0f6f5a6f3d2a"

// littered returns a directory that contains a state directory and other files.
func littered(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range map[string]string{
		"data/node-id": nodeUUID + "\n", "data/node-id.bad": "x", "data/.node-id.123": "6f1c", "data/lock": "",
		"data/former-subnets": `{"version":1,"networks":{"default":{"subnet":"10.5.35.0/24"},"old":{"subnet":"10.7.1.0/24"}}}`, "data/.former-subnets.9": "{",
		"data/default.json": fmt.Sprintf(`{"version":1,"network":"default","subnets":["10.5.34.0/24"],"session":"s1","subnet_file":%q,"pools":["10.5.0.0/16"],"backend":{"type":"vxlan"}}`,
			dir+"/custom.env"),
		"data/blue.json": `{"version":1,"netw`, "data/.blue.json.99": "{", "data/blue.json.bad": "?",
		"data/later.json":         `{"version":7,"network":"later","what":"a later version wrote"}`,
		"data/notes.json":         `{"some":"thing"}`,
		"data/..json":             `{`,
		"data/.blue.json.swp":     "an editor's",
		"data/default/secret.key": "an operator's",
		"data/peers/default.json": `{"version":1,"network":"default"}`,
		"data/peers/gone.json":    "", "data/peers/.gone.json.7": "",
		"data/deleted/ended.json": `{"version":1,"network":"ended","deleted":"2026-11-22T21:40:00Z"}`, "data/deleted/.ended.json.7": "",
		"volatile/dev/lock": "", "volatile/dev/dev.json": "{}",
		"custom.env":        "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nFLANNEL_SUBNET=10.5.34.1/24\n",
		".custom.env.31415": "LENO_NET",
		"blue.env":          "FLANNEL_NETWORK=10.6.0.0/16\nFLANNEL_SUBNET=10.6.1.1/24\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644))
	}
	must(t, os.Mkdir(dir+"/data/blue", 0o755))
	must(t, os.Symlink("blue.json", dir+"/data/gone.json"))
	return dir
}

func TestFiles(t *testing.T) {
	dir := littered(t)
	all := tree(t, dir)
	for _, o := range []Options{{DryRun: true}, {KeepLease: true, DryRun: true}, {Network: "default", DryRun: true}} {
		if _, err := cleaned(t, dir, &swept{}, o); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(all, tree(t, dir)); diff != "" {
			t.Fatalf("a dry run changed files:\n%s", diff)
		}
	}

	must(t, os.Mkdir(dir+"/wireguard", 0o755)) // which a killed agent has left
	wireguard, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/wireguard/leno-default~b.sock", Net: "unix"})
	must(t, err)
	wireguard.SetUnlinkOnClose(false)
	must(t, wireguard.Close())
	report, err := cleaned(t, dir, &swept{}, Options{Network: "default"})
	must(t, err)
	must(t, os.Remove(dir+"/wireguard"))
	if diff := cmp.Diff([]string{"file data/default.json of default", "file data/peers/default.json of default",
		"file wireguard/leno-default~b.sock of default", "file custom.env of default", "file .custom.env.31415 of default", "file data/former-subnets of default"}, names(dir, report.Removed)); diff != "" {
		t.Errorf("one network (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"file data/default of default"}, names(dir, report.Foreign)); diff != "" {
		t.Errorf("foreign of one network (-want +got):\n%s", diff)
	}

	if former := state.NewFormerSubnets(dir + "/data"); former.Subnet("default").IsValid() || !former.Subnet("old").IsValid() {
		t.Error("former subnets of one network: not that one is gone")
	}

	report, err = cleaned(t, dir, &swept{}, Options{})
	must(t, err)
	if diff := cmp.Diff([]string{"file blue.env of blue", "file data/gone.json of gone", "file data/notes.json of notes", "file data"}, names(dir, report.Foreign)); diff != "" {
		t.Errorf("foreign (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/blue.env", "/data", "/data/..json", "/data/.blue.json.swp", "/data/default", "/data/default/secret.key", "/data/gone.json", "/data/notes.json"}, tree(t, dir)); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
	report, err = cleaned(t, dir, &swept{}, Options{})
	must(t, err)
	if len(report.Removed)+len(report.Left) != 0 {
		t.Errorf("the second time: %+v", report)
	}
	text, err := json.Marshal(report)
	if must(t, err); strings.Contains(string(text), "null") {
		t.Errorf("null in %s", text)
	}
}

// TestSharedSubnetFile: a subnet file that is another network's by
// now stays.
func TestSharedSubnetFile(t *testing.T) {
	dir := littered(t)
	must(t, os.Symlink(".", dir+"/link"))
	must(t, os.WriteFile(dir+"/data/second.json", []byte(`{"version":1,"network":"second","subnet_file":"`+dir+`/link/custom.env"}`), 0o600))
	report, err := cleaned(t, dir, &swept{}, Options{Network: "default"})
	must(t, err)
	if diff := cmp.Diff([]string{"file data/default.json of default", "file data/peers/default.json of default", "file data/former-subnets of default"}, names(dir, report.Removed)); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if !exists(dir + "/custom.env") {
		t.Error("the subnet file is gone")
	}
}

// TestForeignDirectory: nothing is removed from a data_dir that was configured by mistake.
func TestForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"data/settings.json":      "{ // with comments\n}",
		"data/notes.json.bad":     "precious",
		"data/peers/friends.json": "no JSON",
		"data/lock":               "another program's",
		"data/node-id":            "not one",
		"data/default.json":       fmt.Sprintf(`{"version":1,"network":"default","subnet_file":%q}`, dir+"/data/environment"),
		"data/environment":        "LENO_TOKEN=secret\nLENO_ADDRESS=http://127.0.0.1:1\n",
		"data/mine.json":          "{\n  \"version\": 1,\n  \"network\": \"mine\",\n  \"sub",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644))
	}
	report, err := cleaned(t, dir, &swept{}, Options{})
	must(t, err)
	if diff := cmp.Diff([]string{"file data/default.json of default", "file data/mine.json of mine"}, names(dir, report.Removed)); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
}

// TestKeepLease: the records in the store stay, and so does the node id that finds them again.
func TestKeepLease(t *testing.T) {
	dir := littered(t)
	store := &swept{err: errors.New("the store must not be asked")}
	report, err := cleaned(t, dir, store, Options{KeepLease: true})
	must(t, err)
	if len(report.Left) != 0 || store.asked.Node != "" {
		t.Errorf("left %+v, asked for %+v", report.Left, store.asked)
	}
	if id, err := state.LoadNodeID(filepath.Join(dir, "data"), hclog.NewNullLogger()); err != nil || id != nodeUUID {
		t.Errorf("node id %q, %v", id, err)
	}
}

func TestStore(t *testing.T) {
	lease := func(network, subnet, node, id, session, at string) registry.Lease {
		l := registry.Lease{Network: network, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}, Node: node, NodeID: id, Session: session}
		if at != "" {
			l.PublicIPs = []netip.Addr{netip.MustParseAddr(at)}
		}
		return l
	}
	leases := []registry.Lease{
		lease("default", "10.5.34.0/24", "host-a", nodeUUID, "s1", "192.0.2.11"),
		lease("old", "10.7.1.0/24", "former-name", nodeUUID, "", "203.0.113.1"),
		lease("default", "10.5.35.0/24", "host-a", nodeUUID, "s9", "203.0.113.1"), // a copy of this host
		lease("default", "10.5.36.0/24", "host-a", "other", "s8", "192.0.2.11"),
		lease("default", "10.5.37.0/24", "", "", "s1", ""),                       // overwritten by another program
		lease("default", "10.5.38.0/24", "host-a", nodeUUID, "s7", "192.0.2.11"), // a copy of this host, behind the same NAT
	}
	leases[5].Backend.Object = json.RawMessage(`{"type":"wireguard","local_ips":["198.51.100.9"]}`)
	services := map[string]registry.Service{"leno-host-a": {ID: "leno-host-a", Meta: map[string]string{"node_id": nodeUUID}}}
	for _, tt := range []struct {
		name    string
		lost    bool // the node id
		o       Options
		err     error
		service string // node id of
		done    []string
		left    []string
		foreign []string
	}{
		{name: "all", done: []string{"release default 10.5.34.0/24", "release old 10.7.1.0/24", "release default 10.5.37.0/24", "end s2", "withdraw leno-host-a"},
			foreign: []string{"lease 10.5.35.0/24 of default", "lease 10.5.36.0/24 of default", "lease 10.5.38.0/24 of default"}},
		{name: "listed only", o: Options{DryRun: true}, foreign: []string{"lease 10.5.35.0/24 of default", "lease 10.5.36.0/24 of default", "lease 10.5.38.0/24 of default"}},
		{name: "one network keeps the service", o: Options{Network: "default"},
			done:    []string{"release default 10.5.34.0/24", "release old 10.7.1.0/24", "release default 10.5.37.0/24", "end s2"},
			foreign: []string{"lease 10.5.35.0/24 of default", "lease 10.5.36.0/24 of default", "lease 10.5.38.0/24 of default"}},
		{name: "node id lost", lost: true,
			done:    []string{"release default 10.5.34.0/24", "release default 10.5.36.0/24", "release default 10.5.37.0/24", "end s2", "withdraw leno-host-a"},
			foreign: []string{"lease 10.7.1.0/24 of old", "lease 10.5.35.0/24 of default", "lease 10.5.38.0/24 of default"}},
		{name: "another agent's service", service: "other", done: []string{"release default 10.5.34.0/24", "release old 10.7.1.0/24", "release default 10.5.37.0/24", "end s2"},
			foreign: []string{"lease 10.5.35.0/24 of default", "lease 10.5.36.0/24 of default", "lease 10.5.38.0/24 of default", "service leno-host-a"}},
		{name: "away", err: registry.ErrUnavailable, left: []string{"lease 10.5.34.0/24 of default"}},
		{name: "away, of a network without state", o: Options{Network: "blue"}, err: registry.ErrUnavailable, left: []string{"lease any of blue"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := littered(t)
			if tt.lost {
				must(t, os.Remove(dir+"/data/node-id"))
			}
			store := &swept{Registry: memory.New().Client(), left: registry.HostRecords{Leases: leases, Sessions: []string{"s2"}}, err: tt.err, services: services}
			if tt.service != "" {
				store.services = map[string]registry.Service{"leno-host-a": {ID: "leno-host-a", Meta: map[string]string{"node_id": tt.service}}}
			}
			report, err := cleaned(t, dir, store, tt.o)
			must(t, err)
			of := func(list []Leftover) []string {
				return names(dir, slices.DeleteFunc(slices.Clone(list), func(r Leftover) bool { return r.Kind == File }))
			}
			for what, diff := range map[string]string{
				"done": cmp.Diff(tt.done, store.done), "left": cmp.Diff(tt.left, of(report.Left)), "foreign": cmp.Diff(tt.foreign, of(report.Foreign)),
			} {
				if diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
			if tt.err == nil && !slices.Contains(store.asked.Sessions, "s1") {
				t.Errorf("asked for %+v", store.asked)
			}
			if tt.err != nil && tt.o.Network == "" && exists(dir+"/data/default.json") {
				t.Error("files wait for the store")
			}
		})
	}
}

// TestBridges: a bridge that leno-cni made is removed unless a container uses it. One of another program stays, and is
// reported while it has an address of the network.
func TestBridges(t *testing.T) {
	for _, tt := range []struct {
		name           string
		links          string
		record         string // of the device that has the gateway
		o              Options
		removed, left  []string
		remains, files bool // whether the bridge and its record exist afterwards
	}{
		{"nothing uses it", "ip link add cni-zzz type bridge; ip addr add 10.77.5.1/24 dev cni-zzz", "cni-zzz", Options{},
			[]string{"bridge cni-zzz of zzz"}, nil, false, false},
		{"of the network", "ip link add cni-zzz type bridge", "cni-zzz", Options{Network: "zzz"}, []string{"bridge cni-zzz of zzz"}, nil, false, false},
		{"of another network", "ip link add cni-zzz type bridge", "cni-zzz", Options{Network: "blue"}, nil, nil, true, true},
		{"a dry run", "ip link add cni-zzz type bridge", "cni-zzz", Options{DryRun: true}, []string{"bridge cni-zzz of zzz"}, nil, true, true},
		{"a container uses it", "ip link add cni-zzz type bridge; ip link add veth1 master cni-zzz type veth peer name veth2", "cni-zzz", Options{},
			nil, []string{"bridge cni-zzz of zzz"}, true, true},
		{"no bridge", "ip link add cni-zzz type veth peer name veth2", "cni-zzz", Options{}, nil, nil, true, true},
		{"without a record", "ip link add cni-zzz type bridge", "cni-other", Options{}, nil, nil, true, true},
		{"an operator's", "ip link add cni-zzz type bridge; ip link add br0 type bridge; ip addr add 10.77.5.1/24 dev br0", "br0", Options{},
			nil, []string{"bridge br0 of zzz"}, true, true},
		{"an operator's, without the address", "ip link add cni-zzz type bridge; ip link add br0 type bridge", "br0", Options{}, nil, nil, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns, dir := nstest.New(t), t.TempDir()
			ns.Sh(tt.links)
			record := filepath.Join(dir, "cni/bridges/zzz", tt.record)
			must(t, os.MkdirAll(filepath.Dir(record), 0o755))
			must(t, os.WriteFile(record, []byte("/run/leno/zzz.env\n10.77.5.1/24\n"), 0o644))
			report, err := cleanedIn(t, ns, dir, &swept{Registry: memory.New().Client()}, tt.o)
			must(t, err)
			if diff := cmp.Diff(tt.removed, names(dir, report.Removed)); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.left, names(dir, report.Left)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if _, err := ns.Try("ip link show cni-zzz"); (err == nil) != tt.remains || exists(record) != tt.files {
				t.Errorf("the bridge: %v, the record: %t", err, exists(record))
			}
		})
	}
}

// TestLeaseStaysWithTheDatapath: the lease of a network is not released while its device or a route stays.
func TestLeaseStaysWithTheDatapath(t *testing.T) {
	for _, tt := range []struct {
		name  string
		found *Leftover // cannot be removed
		left  *Leftover // is known not to be removable
		o     Options
		want  []string
	}{
		{"nothing stays", nil, nil, Options{}, []string{"release blue", "release green"}},
		{"a device", &Leftover{Kind: Device, Network: "blue"}, nil, Options{}, []string{"release green"}},
		{"a device that a process reads", nil, &Leftover{Kind: Device, Network: "blue"}, Options{}, []string{"release green"}},
		{"such a device, in a dry run", nil, &Leftover{Kind: Device, Network: "blue"}, Options{DryRun: true}, []string{"would release green"}},
		{"a route", &Leftover{Kind: Route, Network: "green"}, nil, Options{}, []string{"release blue"}},
		{"a route of an unknown network", &Leftover{Kind: Route}, nil, Options{}, nil},
		{"a file", &Leftover{Kind: File, Network: "blue"}, nil, Options{}, []string{"release blue", "release green"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newLeftovers("", tt.o.withDefaults())
			if tt.left != nil {
				c.addLeft(*tt.left, errors.New("a process reads it"))
			}
			if tt.found != nil {
				c.add(*tt.found, func(context.Context) error { return errors.New("device or resource busy") })
			}
			var done []string
			for _, network := range []string{"blue", "green"} {
				c.add(Leftover{Kind: Lease, Network: network}, func(context.Context) error {
					done = append(done, "release "+network)
					return nil
				})
			}
			c.removeAll(t.Context())
			if tt.o.DryRun {
				for _, l := range c.report.Removed {
					done = append(done, "would release "+l.Network)
				}
			}
			if diff := cmp.Diff(tt.want, done); diff != "" {
				t.Error(diff)
			}
			leases := slices.DeleteFunc(slices.Clone(c.report.Left), func(l Leftover) bool { return l.Kind != Lease })
			if len(leases)+len(tt.want) != 2 {
				t.Errorf("left %+v", c.report.Left)
			}
		})
	}
}

// TestRefuses: nothing is removed while an agent uses the data_dir.
func TestRefuses(t *testing.T) {
	dir := littered(t)
	unlock, err := state.LockDataDir(filepath.Join(dir, "data"))
	must(t, err)
	for _, o := range []Options{{}, {Network: "default"}} {
		if _, err := cleaned(t, dir, &swept{}, o); err == nil || !strings.Contains(err.Error(), "stop it first") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := cleaned(t, dir, &swept{}, Options{DryRun: true}); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	must(t, unlock())
	_, err = cleaned(t, dir, &swept{}, Options{})
	must(t, err)
}

func TestJudgeDevice(t *testing.T) {
	s := kernelFinder{host: &host{}}
	s.host.networks = []networkTraces{{name: "default", saved: state.Network{Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.34.0/24")}}}, {name: "a-long-network-name"}}
	base := []netip.Prefix{netip.MustParsePrefix("10.5.34.0/32")}
	attrs := func(name, alias string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name, Alias: alias} }
	local := []byte{192, 0, 2, 1}
	tun := func(name string) *netlink.Tuntap {
		return &netlink.Tuntap{LinkAttrs: attrs(name, ""), Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI}
	}
	for _, tt := range []struct {
		name    string
		link    netlink.Link
		addrs   []netip.Prefix
		network string
		ours    bool
		foreign bool
	}{
		{"ours", &netlink.Vxlan{LinkAttrs: attrs("leno-default", ""), SrcAddr: local}, nil, "default", true, false},
		{"an operator switched learning on", &netlink.Vxlan{LinkAttrs: attrs("leno-default", ""), SrcAddr: local, Learning: true}, nil, "default", true, false},
		{"of a network nothing is known of", &netlink.Vxlan{LinkAttrs: attrs("leno-x", ""), SrcAddr: local}, nil, "", true, false},
		{"such a one that learns", &netlink.Vxlan{LinkAttrs: attrs("leno-x", ""), SrcAddr: local, Learning: true}, nil, "", false, true},
		{"WireGuard with an alias", &netlink.Wireguard{LinkAttrs: attrs("leno-x", "leno network x")}, nil, "x", true, false},
		{"WireGuard of a known network", &netlink.Wireguard{LinkAttrs: attrs("leno-default~b", "")}, nil, "default", true, false},
		{"a user's WireGuard", &netlink.Wireguard{LinkAttrs: attrs("leno-x", "")}, nil, "", false, true},
		{"with a group", &netlink.Vxlan{LinkAttrs: attrs("leno-x", ""), SrcAddr: local, Group: []byte{239, 1, 1, 1}}, nil, "", false, true},
		{"external", &netlink.Vxlan{LinkAttrs: attrs("leno-default", ""), SrcAddr: local, FlowBased: true}, nil, "default", false, true},
		{"a bridge", &netlink.Bridge{LinkAttrs: attrs("leno-default", "")}, base, "default", false, true},
		{"a bridge with our alias", &netlink.Bridge{LinkAttrs: attrs("br0", "leno network default")}, nil, "default", false, false},
		{"renamed, by its alias", &netlink.Vxlan{LinkAttrs: attrs("eth7", "leno network gone"), SrcAddr: local}, nil, "gone", true, false},
		{"a second device", &netlink.Vxlan{
			LinkAttrs: attrs("leno-default~2", ""), SrcAddr: local,
		}, nil, "default", true, false},
		{"a second device with a short name, renamed", &netlink.Vxlan{
			LinkAttrs: attrs("eth7", "leno network a-long-network-name, second device"), SrcAddr: local,
		}, nil, "a-long-network-name", true, false},
		{"flannel's, with this host's address", &netlink.Vxlan{
			LinkAttrs: attrs("flannel.1", ""), SrcAddr: local,
		}, base, "", false, false},
		{"flannel's for IPv6", &netlink.Vxlan{
			LinkAttrs: attrs("flannel-v6.1", ""), SrcAddr: local,
		}, base, "", false, false},
		{"renamed, by its address", &netlink.Vxlan{LinkAttrs: attrs("eth7", ""), SrcAddr: local}, base, "default", true, false},
		{"a foreign vxlan", &netlink.Vxlan{LinkAttrs: attrs("eth7", ""), SrcAddr: local}, nil, "", false, false},
		{"one of several queues", &netlink.Tuntap{LinkAttrs: attrs("leno-default", ""), Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_MULTI_QUEUE}, nil, "default", true, false},
		{"an earlier version's", tun("leno-x"), nil, "", true, false},
		{"a short name", tun("leno-a-lo~pd5ab"), nil, "", true, false},
		{"a tap", &netlink.Tuntap{LinkAttrs: attrs("leno-x", ""), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI}, nil, "", false, true},
		{"a process's tun", &netlink.Tuntap{LinkAttrs: attrs("leno-x", ""), Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true}, nil, "", false, true},
		{"a foreign tun", tun("tun0"), nil, "", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, ours := s.judgeDevice(tt.link, tt.addrs)
			if ours != tt.ours || r.Network != tt.network || (r.Reason != "") != tt.foreign {
				t.Errorf("ours %t, %+v", ours, r)
			}
		})
	}
}

// TestRoutesOfANetwork: the routes and routing rules of one network are removed, by the best source of its pools, and no others.
func TestRoutesOfANetwork(t *testing.T) {
	both := func(pool string) string { // with the guard
		return fmt.Sprintf("unreachable %s metric 16777216 \nunreachable %s metric 16777217 \n", pool, pool)
	}
	green, blue := both("10.5.0.0/16"), both("10.6.0.0/16")
	for _, tt := range []struct {
		name    string
		network string
		defined bool   // blue, in the store
		routes  string // more of ours
		left    []string
		after   string
	}{
		{"by its state", "default", false, "", nil, blue},
		{"by the store", "blue", true, "", nil, green},
		{"nothing tells", "blue", false, "", []string{"route any of blue"}, green + blue},
		{"all of them", "", false, "ip -6 route add unreachable fd00:9::/48 proto 108", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			for _, pool := range []string{"10.5.0.0/16", "10.6.0.0/16"} {
				ns.Sh("ip route add unreachable " + pool + " proto 108 metric 16777216")
				ns.Sh("ip route add unreachable " + pool + " proto 108 metric 16777217") // a guard
				ns.Sh("ip rule add to " + pool + " lookup main pref 5200 protocol 108; ip rule add to " + pool + " lookup main pref 5199")
			}
			ns.Sh(tt.routes)
			ns.Sh("ip route add unreachable 10.6.9.0/24 proto static")
			store := &swept{Registry: memory.New().Client()}
			if tt.defined {
				plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.6.0.0/16")}}.Normalize()
				must(t, err)
				kind, err := registry.NewBackend("host-gw", []byte("{}"))
				must(t, err)
				must(t, store.PutNetwork(t.Context(), registry.Network{Name: "blue", Plan: plan, Backend: kind}))
			}
			report, err := cleanedIn(t, ns, littered(t), store, Options{Network: tt.network})
			must(t, err)
			if diff := cmp.Diff(tt.left, names("", report.Left)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.after, ns.Sh("ip route show proto 108; ip -6 route show proto 108")); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
			for _, pool := range []string{"10.5.0.0/16", "10.6.0.0/16"} {
				rules := ns.Sh("ip rule show to " + pool)
				if kept := strings.Contains(rules, "proto 108"); kept != strings.Contains(tt.after, pool) || !strings.Contains(rules, "5199:") {
					t.Errorf("rules %s", rules)
				}
			}
			if got := ns.Sh("ip route show proto static"); !strings.Contains(got, "10.6.9.0/24") {
				t.Errorf("a route of others went: %q", got)
			}
		})
	}
}

// TestAdviceOfStore: what to do about a lease that stays is told in the terms of the store.
func TestAdviceOfStore(t *testing.T) {
	l := registry.Lease{Network: "default", Node: "host-a", Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.34.0/24")}}
	for _, tt := range []struct {
		name              string
		c                 config.Config
		lapses, removedBy string
	}{
		{"Consul", config.Config{}, "leno lease revoke", "leno lease revoke default 10.5.34.0/24"},
		{"Kubernetes", config.Config{Kubernetes: config.Kubernetes{Network: "default"}},
			"until its Node is deleted", "kubectl annotate node host-a leno.lenonet.io/lease-"},
	} {
		finder := recordFinder{host: &host{config: tt.c}}
		if lapses, removedBy := finder.lapses(), finder.removedBy(l); !strings.Contains(lapses, tt.lapses) || removedBy != tt.removedBy {
			t.Errorf("%s: %q, %q", tt.name, lapses, removedBy)
		}
	}
}
