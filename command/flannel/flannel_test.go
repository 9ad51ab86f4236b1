package flannel

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/registry"
)

const (
	plainConfig = `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`
	lease52     = `{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`
	lease53     = `{"PublicIP":"192.168.64.4","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}}`
	prefix      = "/coreos.com/network"
)

// now is the time of every import.
var now = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

// v3 returns the output of etcdctl with -w json.
func v3(pairs ...string) string {
	var kvs []string
	for i := 0; i < len(pairs); i += 2 {
		kvs = append(kvs, fmt.Sprintf(`{"key":%q,"create_revision":2,"mod_revision":3,"version":2,"value":%q,"lease":7587862094414926096}`,
			base64.StdEncoding.EncodeToString([]byte(pairs[i])), base64.StdEncoding.EncodeToString([]byte(pairs[i+1]))))
	}
	return fmt.Sprintf(`{"header":{"cluster_id":14841639068965178418,"member_id":10276657743932975437,"revision":9,"raft_term":2},"kvs":[%s],"count":%d}`,
		strings.Join(kvs, ","), len(kvs))
}

// v2 returns the response of etcd's version 2 to a recursive GET.
func v2(expiration string) string {
	return fmt.Sprintf(`{"action":"get","node":{"key":"/coreos.com/network","dir":true,"nodes":[
		{"key":"/coreos.com/network/config","value":%q,"modifiedIndex":5,"createdIndex":5},
		{"key":"/coreos.com/network/subnets","dir":true,"nodes":[
			{"key":"/coreos.com/network/subnets/10.5.52.0-24","value":%q,"expiration":%q,"ttl":86000,"modifiedIndex":7,"createdIndex":7},
			{"key":"/coreos.com/network/subnets/10.5.53.0-24","value":%q,"modifiedIndex":8,"createdIndex":8}],"modifiedIndex":6,"createdIndex":6}],
		"modifiedIndex":5,"createdIndex":5}}`, plainConfig, lease52, expiration, lease53)
}

// names returns hosts for every address in the tests.
func names() Nodes {
	n := Nodes{}
	for i := range 20 {
		n.add(netip.AddrFrom4([4]byte{192, 168, 64, byte(i)}), fmt.Sprintf("host-%d", i))
	}
	n.add(netip.MustParseAddr("fd00::3"), "host-3")
	return n
}

// tell returns an import as text, one line for each item.
func tell(in Import) (out []string) {
	for _, p := range in.Network.Plan {
		out = append(out, fmt.Sprintf("pool %s /%d %s-%s", p.Prefix, p.SubnetLen, p.Min, p.Max))
	}
	out = append(out, "backend "+string(in.Network.Backend.Object))
	for _, r := range in.Reservations {
		out = append(out, fmt.Sprintf("keep %s for %s, %s", r.Subnet, r.Node, r.PublicIP))
	}
	for _, s := range in.Skipped {
		out = append(out, fmt.Sprintf("skip %s: %s", s.Key, s.Reason))
	}
	for _, n := range in.Notes {
		out = append(out, "note "+n)
	}
	return out
}

// do imports files.
func do(o Options, keys string, files ...string) (Import, error) {
	var records []Record
	for i, f := range files {
		more, err := Read(fmt.Sprintf("file%d", i+1), []byte(f))
		if err != nil {
			return Import{}, err
		}
		records = append(records, more...)
	}
	s, err := Collect(records, keys)
	if err != nil {
		return Import{}, err
	}
	o.Now = now
	if o.Name == "" {
		o.Name = "default"
	}
	if o.Nodes == nil {
		o.Nodes = names()
	}
	return Translate(s, o)
}

const (
	usualPool    = "pool 10.5.0.0/16 /24 10.5.1.0-10.5.255.0"
	usualBackend = `backend {"type":"vxlan","vni":2}`
	vniNote      = "note vxlan vni is 2, flannel's is 1: a host has a VNI on a port once, and so both can run"
)

// TestFormats reads the same store in every form it is exported in.
func TestFormats(t *testing.T) {
	usual := []string{usualPool, usualBackend, "keep 10.5.52.0/24 for host-3, 192.168.64.3", "keep 10.5.53.0/24 for host-4, 192.168.64.4", vniNote}
	for name, files := range map[string][]string{
		"etcd v3":          {v3(prefix+"/config", plainConfig, prefix+"/subnets/10.5.52.0-24", lease52, prefix+"/subnets/10.5.53.0-24", lease53)},
		"two answers":      {v3(prefix+"/config", plainConfig) + "\n" + v3(prefix+"/subnets/10.5.52.0-24", lease52, prefix+"/subnets/10.5.53.0-24", lease53)},
		"etcd v2":          {v2("2026-01-03T15:04:05.12Z")},
		"plain etcdctl":    {prefix + "/config\n{\n  \"Network\": \"10.5.0.0/16\",\n  \"Backend\": {\"Type\": \"vxlan\"}\n}\n" + prefix + "/subnets/10.5.52.0-24\n" + lease52 + "\n" + prefix + "/subnets/10.5.53.0-24\n" + lease53 + "\n"},
		"keys and values":  {fmt.Sprintf(`{"/coreos.com/network/config":%s,"/coreos.com/network/subnets/10.5.52.0-24":%q,"/coreos.com/network/subnets/10.5.53.0-24":%s}`, plainConfig, lease52, lease53)},
		"short keys":       {fmt.Sprintf(`{"config":%q,"10.5.52.0-24":%s,"10.5.53.0-24":%s}`, plainConfig, lease52, lease53)},
		"directories":      {fmt.Sprintf(`{"config":%s,"subnets":{"10.5.52.0-24":%s,"10.5.53.0-24":%s}}`, plainConfig, lease52, lease53)},
		"config apart":     {plainConfig, fmt.Sprintf(`{"10.5.52.0-24":%s,"10.5.53.0-24":%s}`, lease52, lease53)},
		"the same twice":   {v2("2026-01-03T15:04:05Z"), v3(prefix+"/subnets/10.5.52.0-24", lease52)},
		"names in no case": {`{"network":"10.5.0.0/16","backend":{"type":"vxlan","vni":1}}`, fmt.Sprintf(`{"10.5.52.0-24":%s,"10.5.53.0-24":%s}`, lease52, lease53)},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := do(Options{}, "", files...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(usual, tell(in)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestUnreadable checks the errors for unusable files and their suggestions.
func TestUnreadable(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"empty":        {"\n", "is empty"},
		"no keys":      {`{"header":{"revision":4},"count":0}`, "no such keys"},
		"half":         {`{"kvs":[`, "not JSON near byte"},
		"comment":      {"\n// old\n" + plainConfig, ": line 2 has a comment, \"// old\", and JSON has no comments: remove it"},
		"comment in":   {"{\n \"Network\": \"10.5.0.0/16\", /* pool */\n}", ": line 2 has a comment, \"/* pool */\""},
		"hash":         {"# old\n" + plainConfig, ": line 1 has a comment, \"# old\""},
		"a list":       {`[1]`, "a JSON object is wanted"},
		"no base64":    {`{"kvs":[{"key":"*","value":"e30="}]}`, "not an answer of etcd"},
		"bad node":     {`{"node":7}`, "version 2"},
		"too deep":     {strings.Repeat(`{"x":`, 40) + "1" + strings.Repeat("}", 40), "deep"},
		"too deep, v2": {`{"node":` + strings.Repeat(`{"nodes":[`, 40) + "{}" + strings.Repeat("]}", 40) + "}", "deep"},
		"prose":        {"Error: context deadline exceeded", "neither JSON nor"},
	} {
		if _, err := Read("f.json", []byte(tt.text)); err == nil || !strings.HasPrefix(err.Error(), "f.json: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestConfigurations checks that every setting of flannel is carried over or explained.
func TestConfigurations(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		want         []string
		err          string
	}{
		{name: "range", config: `{"Network":"10.0.0.0/8","SubnetLen":20,"SubnetMin":"10.10.0.0","SubnetMax":"10.99.0.0","Backend":{"Type":"udp","Port":7890}}`,
			want: []string{"pool 10.0.0.0/8 /20 10.10.0.0-10.99.0.0", `backend {"type":"udp","port":7891}`,
				"note udp port is 7891, flannel's is 7890: a host has a port once, so let it pass between hosts, and so both can run"}},
		{name: "small", config: `{"Network":"10.5.0.0/24","SubnetMin":"0.0.0.0","Backend":{"Type":"host-gw"}}`,
			want: []string{"pool 10.5.0.0/24 /26 10.5.0.64-10.5.0.192", `backend {"type":"host-gw"}`}},
		{name: "no backend", config: `{"Network":"10.5.0.0/16"}`, want: []string{usualPool, `backend {"type":"udp","port":8286}`,
			"note the configuration names no backend, with which flannel runs udp",
			"note udp port is 8286, flannel's is 8285: a host has a port once, so let it pass between hosts, and so both can run"}},
		{name: "both families", config: `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","IPv6SubnetLen":64,"IPv6SubnetMin":"fd00:5:0:10::","IPv6SubnetMax":"fd00:5:0:20::","Backend":{"Type":"alloc"}}`,
			want: []string{usualPool, "pool fd00:5::/48 /64 fd00:5:0:10::-fd00:5:0:20::", `backend {"type":"alloc"}`}},
		{name: "IPv6 alone", config: `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"alloc"}}`,
			want: []string{"pool fd00:5::/48 /64 fd00:5:0:1::-fd00:5:0:ffff::", `backend {"type":"alloc"}`}},
		{name: "vxlan with everything", config: `{"Network":"10.5.0.0/16","EnableNFTables":true,"Extra":1,"Backend":{"Type":"vxlan","VNI":16777215,"Port":4789,"GBP":true,"DirectRouting":true,"Learning":true,"MTU":1400,"MacPrefix":"0E-2A","Name":"x","Colour":"red"}}`,
			want: []string{usualPool, `backend {"type":"vxlan","direct_routing":true,"gbp":true,"mtu":1350,"port":4789,"vni":16777214}`,
				"note Extra is no setting of flannel's that leno knows, and is left out",
				"note EnableNFTables is not carried over: each agent takes the kind of firewall its host has, see `leno status`",
				"note Backend.colour is not carried over: leno's vxlan has nothing like it",
				"note Backend.learning is not carried over: leno's devices never learn, every peer has an entry of its own",
				"note Backend.macprefix is not carried over: it is for Windows",
				"note Backend.name is not carried over: it is for Windows",
				"note vxlan vni is 16777214, flannel's is 16777215: a host has a VNI on a port once, and so both can run"}},
		{name: "defaults written out", config: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":0,"Port":0,"GBP":false}}`,
			want: []string{usualPool, `backend {"type":"vxlan","gbp":false,"vni":2}`, vniNote}},
		{name: "type in capitals", config: `{"Network":"10.5.0.0/16","Backend":{"Type":"Host-GW"}}`,
			want: []string{usualPool, `backend {"type":"host-gw"}`}},
		{name: "VNI that is no number", config: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":"x"}}`, err: `Backend.vni is "x", not a number`},
		{name: "wireguard", config: `{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}`, err: `config in file1: backend "wireguard": leno has none that understands flannel's; its own wireguard encrypts between hosts that run leno; put network default into Consul`},
		{name: "ipip", config: `{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}`, err: "vxlan does the same"},
		{name: "aws", config: `{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}`, err: "alloc"},
		{name: "odd backend", config: `{"Network":"10.5.0.0/16","Backend":{"Type":"pigeon"}}`, err: "none of that kind"},
		{name: "backend of no type", config: `{"Network":"10.5.0.0/16","Backend":{"Type":7}}`, err: "Backend.Type is 7"},
		{name: "no network", config: `{"IPv6Network":"fd00::/48"}`, err: "config in file1: no Network is set"},
		{name: "no IPv6 network", config: `{"Network":"10.5.0.0/16","EnableIPv6":true}`, err: "no IPv6Network is set"},
		{name: "nothing", config: `{"Network":"10.5.0.0/16","EnableIPv4":false}`, err: "there is no network"},
		{name: "bad range", config: `{"Network":"10.5.0.0/16","SubnetMin":"10.6.0.0"}`, err: "min 10.6.0.0 is outside"},
		{name: "comment in a value", config: `{"config":"{\"Network\":\"10.5.0.0/16\"} // ours"}`, err: `not a network configuration: line 1 has a comment, "// ours"`},
		{name: "not an address", config: `{"Network":"10.5.0.0/16","SubnetMin":"10.6"}`, err: "not a network configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, err := do(Options{}, "", tt.config)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, tell(in)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// with returns the usual configuration and leases, given as keys and values.
func with(pairs ...string) string {
	return v3(append([]string{prefix + "/config", plainConfig}, pairs...)...)
}

func key(subnet string) string { return prefix + "/subnets/" + subnet }

func of(ip string) string { return fmt.Sprintf(`{"PublicIP":%q}`, ip) }

// TestLeases checks that every lease that cannot be carried over is named, and that the others are
// carried over.
func TestLeases(t *testing.T) {
	dual := `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw"}}`
	dualPools := []string{usualPool, "pool fd00:5::/48 /64 fd00:5:0:1::-fd00:5:0:ffff::", `backend {"type":"host-gw"}`}
	good := "keep 10.5.53.0/24 for host-4, 192.168.64.4"
	for _, tt := range []struct {
		name    string
		files   []string
		options Options
		want    []string // without those about pools, the backend and the VNI
		whole   []string
	}{
		{name: "out of range", files: []string{with(key("10.5.0.0-24"), of("192.168.64.3"), key("10.5.53.0-24"), lease53, key("10.9.1.0-24"), of("192.168.64.5"))},
			want: []string{good, "skip /coreos.com/network/subnets/10.5.0.0-24: invalid: 10.5.0.0/24 is out of the network's range, 10.5.1.0/24 to 10.5.255.0/24",
				"skip /coreos.com/network/subnets/10.9.1.0-24: subnet 10.9.1.0/24: invalid: outside the network"}},
		{name: "another size", files: []string{with(key("10.5.52.0-25"), of("192.168.64.3"), key("10.5.53.0-24"), lease53)},
			want: []string{good, "skip /coreos.com/network/subnets/10.5.52.0-25: subnet 10.5.52.0/25: invalid: the network's subnets are /24"}},
		{name: "bad keys", files: []string{with(key("10.5.52.0"), lease52, key("10.5.52.7-24"), lease52, key("10.5.300.0-24"), lease52, key("10.5.52.0-33"), lease52, key("10.5.53.0-24"), lease53)},
			want: []string{good, `skip /coreos.com/network/subnets/10.5.300.0-24: 10.5.300.0-24 is not a subnet`,
				`skip /coreos.com/network/subnets/10.5.52.0: "10.5.52.0" is not a subnet such as 10.5.52.0-24`,
				`skip /coreos.com/network/subnets/10.5.52.0-33: 10.5.52.0-33 is not a subnet`,
				`skip /coreos.com/network/subnets/10.5.52.7-24: 10.5.52.7-24 has host bits set, did you mean 10.5.52.0/24?`}},
		{name: "bad values", files: []string{with(key("10.5.50.0-24"), "{", key("10.5.51.0-24"), "{}", key("10.5.52.0-24"), `{"PublicIP":"x"}`, key("10.5.53.0-24"), lease53)},
			want: []string{good, "skip /coreos.com/network/subnets/10.5.50.0-24: the value is not a lease: unexpected end of JSON input",
				"skip /coreos.com/network/subnets/10.5.51.0-24: the value has no PublicIP, so its host is unknown",
				`skip /coreos.com/network/subnets/10.5.52.0-24: the value is not a lease: ParseAddr("x"): unable to parse IP`}},
		{name: "unknown host", files: []string{with(key("10.5.52.0-24"), of("192.168.65.9"), key("10.5.53.0-24"), lease53)},
			want: []string{good, "skip /coreos.com/network/subnets/10.5.52.0-24: no host is known by 192.168.65.9: name it with -node=192.168.65.9=NAME or in the file of -nodes"}},
		{name: "an address of two hosts", files: []string{with(key("10.5.52.0-24"), lease52)},
			options: Options{Nodes: Nodes{netip.MustParseAddr("192.168.64.3"): {"a", "b"}}},
			want:    []string{"skip /coreos.com/network/subnets/10.5.52.0-24: 192.168.64.3 is of several hosts, a and b: say which with -node=192.168.64.3=NAME"}},
		{name: "two leases of a host", files: []string{with(key("10.5.52.0-24"), lease52, key("10.5.53.0-24"), lease53, key("10.5.54.0-24"), lease52)},
			want: []string{good, "skip /coreos.com/network/subnets/10.5.52.0-24: host host-3 has 10.5.54.0/24 too; name its subnet.env as a further file, which says the one it uses",
				"skip /coreos.com/network/subnets/10.5.54.0-24: host host-3 has 10.5.52.0/24 too; name its subnet.env as a further file, which says the one it uses"}},
		{name: "two leases of a host, and its file", files: []string{with(key("10.5.52.0-24"), lease52, key("10.5.53.0-24"), lease53, key("10.5.54.0-24"), lease52),
			"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.54.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"},
			want: []string{good, "keep 10.5.54.0/24 for host-3, 192.168.64.3", "note 10.5.52.0/24 is left out: 192.168.64.3 uses 10.5.54.0/24, says its subnet.env"}},
		{name: "a file of a host without lease", files: []string{with(key("10.5.53.0-24"), lease53), "FLANNEL_SUBNET=10.5.77.1/24\n", "FLANNEL_SUBNET=x\n"},
			want: []string{good, "skip file2: no lease tells which host uses 10.5.77.0/24; reserve it with `leno reservation add`", "skip file3: FLANNEL_SUBNET=x is not a subnet"}},
		{name: "said differently in two files", files: []string{with(key("10.5.53.0-24"), lease53), v3(key("10.5.53.0-24"), lease52)},
			want: []string{good, "skip /coreos.com/network/subnets/10.5.53.0-24: 10.5.53.0-24 in file2 says something else than in file1: keep the newer one"}},
		{name: "other keys", files: []string{with(key("10.5.53.0-24"), lease53, prefix+"/note", "hello"), `{"10.5.52.0-99":{},"host-a":{}}`},
			want: []string{good, "skip 10.5.52.0-99: neither config nor a subnet such as 10.5.52.0-24", "skip host-a: neither config nor a subnet such as 10.5.52.0-24", "note /coreos.com/network/note is no key of flannel's and is left out"}},
		{name: "run out", files: []string{v2("2025-12-31T00:00:00Z")},
			want: []string{"keep 10.5.52.0/24 for host-3, 192.168.64.3", good, "note the lease on 10.5.52.0/24 ran out on 2025-12-31T00:00:00Z, so this export is old; it is imported anyway"}},
		{name: "both families at one position", files: []string{v3(prefix+"/config", dual, key("10.5.52.0-24&fd00:5:0:34::-64"), `{"PublicIP":"192.168.64.9","PublicIPv6":"fd00::3"}`)},
			whole: append(dualPools[:3:3], "keep 10.5.52.0/24 for host-9, 192.168.64.9")},
		{name: "both families apart", files: []string{v3(prefix+"/config", dual, key("10.5.52.0-24&fd00:5:0:77::-64"), of("192.168.64.9"))},
			whole: append(dualPools[:3:3], "skip /coreos.com/network/subnets/10.5.52.0-24&fd00:5:0:77::-64: leno gives a host the subnets at one position of all families, with 10.5.52.0/24 that is fd00:5:0:34::/64, and not fd00:5:0:77::/64; -renumber-ipv6 lets the host have it")},
		{name: "both families apart, renumbered", options: Options{RenumberIPv6: true}, files: []string{v3(prefix+"/config", dual, key("10.5.52.0-24&fd00:5:0:77::-64"), of("192.168.64.9"))},
			whole: append(dualPools[:3:3], "keep 10.5.52.0/24 for host-9, 192.168.64.9",
				"note these hosts get another IPv6 subnet, the one at the position of their IPv4 subnet: host-9 fd00:5:0:34::/64 instead of fd00:5:0:77::/64")},
		{name: "IPv6 that the plan has not", files: []string{with(key("10.5.53.0-24&fd00:5:0:77::-64"), lease53)},
			want: []string{good, "note fd00:5:0:77::/64 of host-4 is not carried over: network default has no such family"}},
		{name: "IPv6 alone", files: []string{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"alloc"}}`,
			v3(key("0.0.0.0-0&fd00:5:0:77::-64"), `{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::3"}`)},
			whole: []string{dualPools[1], `backend {"type":"alloc"}`, "keep fd00:5:0:77::/64 for host-3, fd00::3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, err := do(tt.options, "", tt.files...)
			if err != nil {
				t.Fatal(err)
			}
			got, want := tell(in), tt.whole
			if want == nil {
				want = append([]string{usualPool, usualBackend}, tt.want...)
				got = append(got[:0:0], got...)
				got = deleteLine(got, vniNote)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func deleteLine(lines []string, line string) (out []string) {
	for _, l := range lines {
		if l != line {
			out = append(out, l)
		}
	}
	return out
}

// TestPrefixes checks that networks are kept apart.
func TestPrefixes(t *testing.T) {
	two := v3("/coreos.com/network/blue/config", plainConfig, "/coreos.com/network/blue/subnets/10.5.52.0-24", lease52,
		"/coreos.com/network/red/config", `{"Network":"10.6.0.0/16"}`, "/coreos.com/network/red/subnets/10.6.52.0-24", lease52)
	_, err := do(Options{}, "", two)
	if err == nil || !strings.Contains(err.Error(), "-prefix: /coreos.com/network/blue, /coreos.com/network/red") {
		t.Error(err)
	}
	_, err = do(Options{}, "/coreos.com/network", two)
	if err == nil || !strings.Contains(err.Error(), "there are keys below /coreos.com/network/blue, /coreos.com/network/red") {
		t.Error(err)
	}
	in, err := do(Options{}, "/coreos.com/network/blue/", two)
	if diff := cmp.Diff([]string{usualPool, usualBackend, "keep 10.5.52.0/24 for host-3, 192.168.64.3", vniNote}, tell(in)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// TestNetworkThatExists checks that reservations are made in an existing network, which stays as
// it is.
func TestNetworkThatExists(t *testing.T) {
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), Max: netip.MustParseAddr("10.5.52.0")}}.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	backend, err := registry.NewBackend("host-gw", nil)
	if err != nil {
		t.Fatal(err)
	}
	there := &registry.Network{Name: "default", Plan: plan, Backend: backend}
	wireguard := strings.Replace(plainConfig, "vxlan", "wireguard", 1)
	for name, tt := range map[string]struct {
		files []string
		note  []string
	}{
		"a backend leno lacks": {files: []string{v3(prefix+"/config", wireguard, key("10.5.52.0-24"), lease52, key("10.5.53.0-24"), lease53)},
			note: []string{"note network default exists and stays as it is; it has no pool 10.5.0.0/16 with /24 subnets from 10.5.1.0 to 10.5.255.0, as flannel has"}},
		"no configuration": {files: []string{v3(key("10.5.52.0-24"), lease52, key("10.5.53.0-24"), lease53)}},
	} {
		in, err := do(Options{Existing: there}, "", tt.files...)
		want := append([]string{"pool 10.5.0.0/16 /24 10.5.1.0-10.5.52.0", `backend {"type":"host-gw"}`, "keep 10.5.52.0/24 for host-3, 192.168.64.3",
			"skip /coreos.com/network/subnets/10.5.53.0-24: invalid: 10.5.53.0/24 is out of the network's range, 10.5.1.0/24 to 10.5.52.0/24"}, tt.note...)
		if diff := cmp.Diff(want, tell(in)); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
	}
	if _, err := do(Options{}, "", v3(key("10.5.52.0-24"), lease52)); err == nil || !strings.Contains(err.Error(), "leno network apply") {
		t.Errorf("without configuration and network: %v", err)
	}
	if _, err := do(Options{Name: "a b"}, "", plainConfig); err == nil {
		t.Error("a bad name is taken")
	}
}

// TestNodes reads the hosts' names from every supported form.
func TestNodes(t *testing.T) {
	want := Nodes{netip.MustParseAddr("192.0.2.11"): {"host-a"}, netip.MustParseAddr("192.0.2.12"): {"host-b", "esm"}}
	for name, text := range map[string]string{
		"consul catalog nodes": "Node    ID        Address     DC\nhost-a  2d4f8a1b  192.0.2.11  dc1\nhost-b  f00dcafe  192.0.2.12  dc1\nesm               192.0.2.12  dc1\n",
		"hosts":                "# hosts\n192.0.2.11 host-a host-a.example.com\n\n192.0.2.12\thost-b # the second\n::ffff:192.0.2.12 esm",
		"catalog": `[{"ID":"2d","Node":"host-a","Address":"192.0.2.11","Datacenter":"dc1","TaggedAddresses":{"lan":"192.0.2.11","lan_ipv4":"192.0.2.11"}},
			{"Node":"host-b","Address":"host-b.example.com","TaggedAddresses":{"wan":"192.0.2.12"}},{"Node":"esm","Address":"192.0.2.12","TaggedAddresses":null}]`,
	} {
		got, err := ReadNodes("nodes", []byte(text))
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	for text, words := range map[string]string{
		"host-a\n192.0.2.11\n": `nodes:1: "host-a" is no`, "\n192.0.2.11\n": `nodes:2: "192.0.2.11" is no`, "": "names no host", "[]": "names no host", "[7]": "not a list of nodes",
	} {
		if _, err := ReadNodes("nodes", []byte(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want %q", text, err, words)
		}
	}
	if err := want.Name("192.0.2.12=host-b"); err != nil || len(want[netip.MustParseAddr("192.0.2.12")]) != 1 {
		t.Error(err, want)
	}
	for _, text := range []string{"host-a", "192.0.2.11", "192.0.2.11=", "host-a=192.0.2.11"} {
		if want.Name(text) == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// FuzzImport reads anything: it must not panic, and every lease is either carried over or named.
func FuzzImport(f *testing.F) {
	for _, text := range []string{with(key("10.5.52.0-24"), lease52), v2("2026-01-03T15:04:05Z"), plainConfig, "FLANNEL_SUBNET=10.5.52.1/24", prefix + "/config\n" + plainConfig,
		fmt.Sprintf(`{"config":%s,"10.5.52.0-24":%s,"10.5.54.0-24":%s}`, plainConfig, lease52, lease52), `{"0.0.0.0-0&fd00::-64":{"PublicIPv6":"fd00::3"},"config":{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48"}}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = ReadNodes("n", []byte(text))
		records, err := Read("f", []byte(text))
		if err != nil {
			return
		}
		s, err := Collect(records, "")
		if err != nil {
			return
		}
		in, err := Translate(s, Options{Name: "default", Nodes: names(), Now: now})
		if err != nil {
			return
		}
		told := map[string]bool{}
		for _, r := range in.Reservations {
			told[r.Key] = true
		}
		for _, r := range in.Skipped {
			told[r.Key] = true
		}
		for _, l := range s.Leases {
			if !told[l.Key] && len(s.InUse) == 0 {
				t.Errorf("lease %s is lost", l.Key)
			}
		}
	})
}
