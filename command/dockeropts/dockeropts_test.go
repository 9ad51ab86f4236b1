package dockeropts

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func gateways(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func version(t *testing.T, text string) Version {
	t.Helper()
	if text == "" {
		return Version{}
	}
	v, err := ParseVersion(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var both = []string{"10.5.34.1/24", "fd00:5:0:22::1/64"}

func TestForDocker0(t *testing.T) {
	const v4 = "--bip=10.5.34.1/24"
	const rest = "--ip-masq=false --mtu=1450"
	for _, tt := range []struct {
		name, version string
		gateways      []string
		masqByDocker  bool
		nftables      bool
		flags         string
		env           string
		notes         []string // text that each note must contain
	}{
		{name: "unknown version", gateways: both[:1], flags: v4 + " " + rest, notes: []string{"-docker-version"}},
		{name: "unknown version, both families", gateways: both, flags: v4 + " --ipv6 --fixed-cidr-v6=fd00:5:0:22::/64 " + rest, notes: []string{"--allow-direct-routing"}},
		{name: "1.13", version: "1.13.1", gateways: both[:1], flags: v4 + " " + rest},
		{name: "before the drops", version: "27.5.1", gateways: both, flags: v4 + " --ipv6 --fixed-cidr-v6=fd00:5:0:22::/64 " + rest},
		{name: "drops without an option", version: "28.0.1", gateways: both[:1], flags: v4 + " " + rest, notes: []string{"upgrade to 28.2"}},
		{name: "drops with a variable", version: "28.0.2", gateways: both, flags: v4 + " --ipv6 --bip6=fd00:5:0:22::1/64 " + rest,
			env: "DOCKER_INSECURE_NO_IPTABLES_RAW=1", notes: []string{"environment of dockerd"}},
		{name: "the last with the variable", version: "28.1.1", gateways: both[:1], flags: v4 + " " + rest,
			env: "DOCKER_INSECURE_NO_IPTABLES_RAW=1", notes: []string{"environment of dockerd"}},
		{name: "an option", version: "28.2.0", gateways: both, flags: v4 + " --ipv6 --bip6=fd00:5:0:22::1/64 " + rest + " --allow-direct-routing"},
		{name: "IPv6 alone", version: "28.3.2", gateways: both[1:], flags: "--ipv6 --bip6=fd00:5:0:22::1/64 " + rest + " --allow-direct-routing", notes: []string{"cannot reach IPv4 addresses outside of this host: from Docker 28 on, -create"}},
		{name: "nftables", version: "29.1.0", gateways: both[:1], nftables: true, flags: v4 + " " + rest + " --allow-direct-routing", notes: []string{"only published ports"}},
		{name: "Docker masquerades", version: "28.3.2", gateways: both[:1], masqByDocker: true,
			flags: v4 + " --ip-masq --mtu=1450 --allow-direct-routing", notes: []string{"ip_masq = true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := ForDocker0(Engine{version(t, tt.version), tt.nftables}, Network{Name: "default", Gateways: gateways(tt.gateways...), MTU: 1450, IPMasq: !tt.masqByDocker})
			if diff := cmp.Diff(tt.flags, strings.Join(d.Flags(), " ")); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
			if got := strings.Join(d.Environment, " "); got != tt.env {
				t.Errorf("environment %q, want %q", got, tt.env)
			}
			say(t, d.Notes, tt.notes)
			variables := map[string]bool{}
			for _, o := range d.Options {
				if variables[o.Variable] || !strings.HasPrefix(o.Variable, "DOCKER_OPT_") {
					t.Errorf("option %+v", o)
				}
				variables[o.Variable] = true
			}
		})
	}
}

func say(t *testing.T, notes, want []string) {
	t.Helper()
	if len(notes) != len(want) {
		t.Fatalf("notes %q, want %d", notes, len(want))
	}
	for i := range want {
		if !strings.Contains(notes[i], want[i]) {
			t.Errorf("note %q lacks %q", notes[i], want[i])
		}
	}
}

func TestCreate(t *testing.T) {
	const masq = "--opt=com.docker.network.bridge.enable_ip_masquerade=false"
	const v4 = "--driver=bridge --subnet=10.5.34.0/24 --gateway=10.5.34.1"
	const v6 = " --ipv6 --subnet=fd00:5:0:22::/64 --gateway=fd00:5:0:22::1"
	const named = " --opt=com.docker.network.bridge.name=br-blue --opt=com.docker.network.driver.mtu=1450 "
	const unprotected = " --opt=com.docker.network.bridge.gateway_mode_ipv4=nat-unprotected"
	for _, tt := range []struct {
		name, version string
		network       string
		gateways      []string
		nftables      bool
		interfaces    []string
		args          string
		notes         []string
	}{
		{name: "unknown version", gateways: both[:1], args: v4 + named + masq, notes: []string{"trusted_host_interfaces=leno-blue"}},
		{name: "before the drops", version: "24.0.7", gateways: both, args: v4 + v6 + named + masq},
		{name: "drops without trust", version: "28.1.1", gateways: both, args: v4 + v6 + named + masq + unprotected +
			strings.ReplaceAll(unprotected, "ipv4", "ipv6"), notes: []string{"nat-unprotected"}},
		{name: "trust", version: "28.2.0", gateways: both, args: v4 + v6 + named + masq + " --opt=com.docker.network.bridge.trusted_host_interfaces=leno-blue"},
		{name: "IPv6 alone", version: "28.2.0", gateways: both[1:],
			args: "--driver=bridge --ipv4=false" + v6 + named + masq + " --opt=com.docker.network.bridge.trusted_host_interfaces=leno-blue"},
		{name: "IPv6 alone, of an old version", version: "27.5.1", gateways: both[1:], args: "--driver=bridge" + v6 + named + masq,
			notes: []string{"leno-blue gets an IPv4 subnet of Docker's own, which neither leno nor Docker masquerades"}},
		{name: "trust in two", version: "28.3.0", gateways: both[:1], interfaces: []string{"leno-blue", "eth0", "a:b"},
			args: v4 + named + masq + " --opt=com.docker.network.bridge.trusted_host_interfaces=leno-blue:eth0"},
		{name: "no trusted interface that can be named", version: "28.3.0", gateways: both[:1], interfaces: []string{"a:b"},
			args: v4 + named + masq + unprotected, notes: []string{"nat-unprotected"}},
		{name: "nftables", version: "29.0.0", gateways: both[:1], nftables: true, args: v4 + named + masq + unprotected, notes: []string{"nat-unprotected"}},
		{name: "a long name", version: "20.10", gateways: both[:1], network: "a-long-network", args: v4 + " --opt=com.docker.network.driver.mtu=1450 " + masq},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := Network{Name: "blue", Gateways: gateways(tt.gateways...), MTU: 1450, IPMasq: true, Interfaces: []string{"leno-blue"}}
			if tt.network != "" {
				n.Name = tt.network
			}
			if tt.interfaces != nil {
				n.Interfaces = tt.interfaces
			}
			args, notes := Create(Engine{version(t, tt.version), tt.nftables}, n)
			if diff := cmp.Diff(tt.args+" leno-"+n.Name, strings.Join(args, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			say(t, notes, tt.notes)
		})
	}
	args, notes := Create(Engine{}, Network{Name: "blue", Gateways: gateways(both...), MTU: 1450})
	if !slices.Contains(args, strings.Replace(masq, "false", "true", 1)) || len(notes) != 2 {
		t.Errorf("without ip_masq: %q, %q", args, notes)
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]Version{
		"28.3.2": {28, 3, 2}, "v28.2.0-rc.1": {28, 2, 0}, "20.10.24+dfsg1": {20, 10, 24}, "17.05.0-ce": {17, 5, 0}, "29.0": {29, 0, 0},
		"1.13.1": {1, 13, 1}, "24.0.7~3-0~debian": {24, 0, 7},
	} {
		if got, err := ParseVersion(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "28", "latest", "4.3.1", "0.9.1", "28.x", "28.3.2.1", " 28.3.2", "28.3.2\n", "99999.0.0", "dev"} {
		if got, err := ParseVersion(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func TestParseSubnetFile(t *testing.T) {
	const flannel = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.35.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=false\n"
	const leno = "# ours\r\n\nLENO_SUBNET=10.5.34.1/24\r\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\nLENO_IPMASQ=true\nOTHER=x\nnonsense\n"
	ours := Network{Name: "default", Gateways: gateways(both...), MTU: 1450, IPMasq: true}
	ofRange := ours
	ofRange.Pools = gateways("10.5.0.0/16")
	for _, tt := range []struct {
		name, text string
		want       Network
		err        string
	}{
		{name: "ours", text: leno, want: ours},
		{name: "ours wins, before", text: leno + flannel, want: ofRange},
		{name: "ours wins, behind", text: flannel + leno, want: ofRange},
		{name: "flannel's", text: flannel, want: Network{Name: "default", Gateways: gateways("10.5.35.1/24"), Pools: gateways("10.5.0.0/16"), MTU: 1400}},
		{name: "without ip_masq", text: "LENO_SUBNET=10.5.34.1/24\nLENO_MTU=1450\n", want: Network{Name: "default", Gateways: gateways(both[0]), MTU: 1450}},
		{name: "empty", err: "no LENO_SUBNET"},
		{name: "not a subnet", text: "LENO_SUBNET=10.5.34.1\nLENO_MTU=1450", err: `LENO_SUBNET`},
		{name: "families exchanged", text: "LENO_SUBNET=fd00::1/64\nLENO_MTU=1450", err: "address of a bridge"},
		{name: "no MTU", text: "LENO_SUBNET=10.5.34.1/24", err: `LENO_MTU=""`},
		{name: "an MTU of nothing", text: "LENO_SUBNET=10.5.34.1/24\nLENO_MTU=0", err: `LENO_MTU="0"`},
		{name: "no host's address", text: "LENO_SUBNET=10.5.34.0/24\nLENO_MTU=1450", err: "not the address of a bridge"},
		{name: "IPv4 in IPv6", text: "LENO_IPV6_SUBNET=::ffff:10.5.34.1/120\nLENO_MTU=1450", err: "not the address of a bridge"},
		{name: "perhaps", text: "LENO_SUBNET=10.5.34.1/24\nLENO_MTU=1450\nLENO_IPMASQ=perhaps", err: "neither true nor false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseSubnetFile("default", tt.text)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func FuzzParseSubnetFile(f *testing.F) {
	f.Add("LENO_SUBNET=10.5.34.1/24\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\nLENO_IPMASQ=true\n", "28.2.0")
	f.Fuzz(func(t *testing.T, text, v string) {
		n, err := ParseSubnetFile("default", text)
		if err != nil {
			return
		}
		engine := Engine{}
		engine.Version, _ = ParseVersion(v)
		args, _ := Create(engine, n)
		for _, word := range append(ForDocker0(engine, n).Flags(), args...) {
			if strings.ContainsAny(word, " \t\n\"'$`\\;&|<>()") {
				t.Errorf("%q is more than a word", word)
			}
		}
	})
}

func TestLines(t *testing.T) {
	got := Lines("cmd", []string{"--aaaa", "--bbbb", "--a-very-long-argument-indeed", "x"}, 20)
	if diff := cmp.Diff("cmd --aaaa --bbbb \\\n  --a-very-long-argument-indeed \\\n  x\n", got); diff != "" {
		t.Error(diff)
	}
}
