package cni

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/command/cli"
)

func TestRecord(t *testing.T) {
	d := delegation{Plugin: "bridge", Network: "default", Config: json.RawMessage(`{"name":"default"}`)}
	want := newRecord("leno", types.GCAttachment{ContainerID: "c1", IfName: "eth0"}, "/run/netns/c1", d)
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseRecord(text)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if diff := cmp.Diff(got.delegation(), d, cmp.AllowUnexported(delegation{})); diff != "" {
		t.Error(diff)
	}
	for _, broken := range []string{"", "{", "null", "{}", strings.Replace(string(text), `"version":1`, `"version":2`, 1),
		strings.Replace(string(text), `"bridge"`, `"../bridge"`, 1), strings.Replace(string(text), `"c1"`, `""`, 1)} {
		if r, err := parseRecord([]byte(broken)); err == nil {
			t.Errorf("%q: %+v", broken, r)
		}
	}
}

// Files of attachments are not confused, and not too long for a file system.
func TestRecordFile(t *testing.T) {
	if got := recordFileName("c1", "eth0"); got != "c1:eth0" {
		t.Error(got)
	}
	long := strings.Repeat("a", 300)
	one, other := recordFileName(long, "eth0"), recordFileName(long, "eth1")
	if len(one) > maxFile || one == other {
		t.Errorf("%s, %s", one, other)
	}
}

// TestGarbage: records and addresses of attachments that are not valid, and addresses without an
// owner. An unreadable record still has an owner, by the name of its file.
func TestGarbage(t *testing.T) {
	long := strings.Repeat("l", 300)
	var all []recordFile
	for _, file := range []string{"x/a:eth0", "x/a:eth1", "x/b:eth0", "y/b:eth1", "y/" + recordFileName(long, "eth0")} {
		name, file, _ := strings.Cut(file, "/")
		all = append(all, newRecordFile(name, file, []byte("{")))
	}
	refused := record{Name: "x", ContainerID: "c", IfName: "eth0", Refused: true}
	all = append(all, refused.inFile())
	valid := []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}, {ContainerID: "d", IfName: "eth0"}}
	if got := findGarbage(all, "x", valid); len(got) != 3 || got[0].File != "a:eth1" || got[1].File != "b:eth0" || got[2].File != "c:eth0" {
		t.Errorf("%+v", got)
	}
	if a, ok := all[1].key(); !ok || a.ContainerID != "a" || a.IfName != "eth1" {
		t.Errorf("%+v", a)
	}
	if a, ok := all[4].key(); ok {
		t.Errorf("out of a hash: %+v", a)
	}
	var store []reservedAddress
	for path, text := range map[string]string{
		"s/10.5.34.2": "a\r\neth0", "s/10.5.34.3": "b\r\neth1", "s/fd00::4": "c\r\neth0\n", "s/10.5.34.5": "d\r\neth0", "s/10.5.34.9": long + "\r\neth0",
		"s/lock": "", "s/last_reserved_ip.0": "10.5.34.2", "s/10.5.34.6": "e", "s/10.5.34.7": "", "s/10.5.34.8": "\r\neth0",
	} {
		if r, ok := parseReserved(path, []byte(text)); ok {
			store = append(store, r)
		}
	}
	if len(store) != 5 {
		t.Errorf("%+v", store)
	}
	if got := findOrphans(store, all, valid); len(got) != 1 || got[0].Path != "s/fd00::4" || got[0].Owner.ContainerID != "c" {
		t.Errorf("%+v", got)
	}
}

// TestFind: the record under the configuration's name wins. Another configuration's record counts
// after a rename, but not if its ADD was refused.
func TestFind(t *testing.T) {
	d := delegation{Plugin: "bridge", Network: "default", Config: json.RawMessage(`{}`)}
	kept := func(name, id string, refused bool) recordFile {
		r := newRecord(name, types.GCAttachment{ContainerID: id, IfName: "eth0"}, "", d)
		r.Refused = refused
		return r.inFile()
	}
	all := []recordFile{kept("a", "c1", false), kept("b", "c1", true), kept("b", "c2", true), newRecordFile("a", "c3:eth0", nil)}
	for _, tt := range []struct{ name, id, want string }{
		{"a", "c1", "a"}, {"b", "c1", "b"}, {"new", "c1", "a"}, {"new", "c2", ""}, {"new", "c3", "a"}, {"a", "c4", ""},
	} {
		var got string
		for _, k := range findRecords(all, tt.name, types.GCAttachment{ContainerID: tt.id, IfName: "eth0"}) {
			got += k.Name
		}
		if got != tt.want {
			t.Errorf("%s of %s: %q", tt.id, tt.name, got)
		}
	}
	text, err := json.Marshal(all[0].Record)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, file string
		want       bool
	}{{"a", "c1:eth0", true}, {"b", "c1:eth0", false}, {"a", "c2:eth0", false}} {
		if got := newRecordFile(tt.name, tt.file, text); (got.phase != phaseUnreadable) != tt.want {
			t.Errorf("%s/%s: %+v", tt.name, tt.file, got)
		}
	}
}

// TestFull checks how many addresses a subnet has for containers.
func TestFull(t *testing.T) {
	for _, tt := range []struct {
		gateways, taken string
		want            bool
	}{
		{"10.5.34.1/30", "", false},
		{"10.5.34.1/30", "10.5.34.2", true},
		{"10.5.34.1/30", "10.5.35.2", false}, // in an earlier subnet
		{"10.5.34.1/29", "10.5.34.2 10.5.34.3 10.5.34.4 10.5.34.5", false},
		{"10.5.34.1/29", "10.5.34.2 10.5.34.3 10.5.34.4 10.5.34.5 10.5.34.6", true},
		{"fd00::1/126", "fd00::2", false},
		{"fd00::1/126", "fd00::2 fd00::3", true},
		{"fd00::1/64", "fd00::2", false},
		{"10.5.34.1/24 fd00::1/126", "fd00::2 fd00::3", true}, // each family gives a container one address
	} {
		var f facts
		for text := range strings.FieldsSeq(tt.gateways) {
			f.Gateways = append(f.Gateways, netip.MustParsePrefix(text))
		}
		var store []reservedAddress
		for text := range strings.FieldsSeq(tt.taken) {
			store = append(store, reservedAddress{Path: "s/" + text})
		}
		if got := isFull(f, store); got != tt.want {
			t.Errorf("%s with %q: %t", tt.gateways, tt.taken, got)
		}
	}
}

// TestStale checks what is removed from a bridge when the host has another subnet.
func TestStale(t *testing.T) {
	var have []netip.Prefix
	for _, text := range []string{"10.5.34.1/24", "10.5.33.1/24", "192.0.2.1/24", "fd00:5:0:22::1/64", "fd00:5:0:21::1/64", "fe80::1/64"} {
		have = append(have, netip.MustParsePrefix(text))
	}
	for _, tt := range []struct {
		own  bool
		want string
	}{
		{true, "10.5.33.1/24, 192.0.2.1/24, fd00:5:0:21::1/64"},
		{false, "10.5.33.1/24"}, // it was given; the others were not
	} {
		given := []netip.Prefix{netip.MustParsePrefix("10.5.33.1/24"), netip.MustParsePrefix("10.5.34.1/24")}
		if got := cli.Join(staleAddresses(delegation{Own: tt.own}, dual, have, given)); got != tt.want {
			t.Errorf("own %t: %s", tt.own, got)
		}
	}
}

// TestExplain: the error names the plugin, a code and what to do.
func TestExplain(t *testing.T) {
	d := delegation{Plugin: "bridge", Network: "default", subnets: dual.Subnets()}
	for _, tt := range []struct {
		err  error
		code uint
		want string
	}{
		{errors.New(`failed to find plugin "host-local" in path [/a /b]`), codeNoPlugin, "plugin host-local is not in CNI_PATH (/a:/b)"},
		{&types.Error{Code: 999, Msg: "failed to allocate for range 0: no IP addresses available in range set: 10.5.34.2-10.5.34.6"}, codeExhausted, "no address is left in this host's 10.5.34.0/24, fd00:5:0:22::/64"},
		{&types.Error{Code: 999, Msg: "failed to allocate all requested IPs: 10.0.0.1"}, types.ErrInvalidNetworkConfig, "10.0.0.1; ask for a free address"},
		{&types.Error{Code: 7, Msg: "no", Details: "because"}, 7, "plugin bridge: no"},
		{&types.Error{Msg: "netplugin failed with no error message: signal: killed"}, types.ErrInternal, "plugin bridge: netplugin failed"},
		{errors.New("boom"), types.ErrInternal, "plugin bridge: boom"},
	} {
		var e *types.Error
		if err := pluginErrorf(d, "/a:/b", tt.err); !errors.As(err, &e) || e.Code != tt.code || !strings.Contains(e.Msg, tt.want) {
			t.Errorf("%v: %#v", tt.err, err)
		}
	}
}

// FuzzParse: any configuration results in an error of the specification's kind, or in a delegation
// that is JSON and contains the subnet.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{` + head + `,"network":"default","wait":"3s","dataDir":"/run/x","address":"unix:///run/leno.sock"}`))
	f.Add([]byte(`{` + head + `,"delegate":{"bridge":"x","mtu":1400,"isDefaultGateway":false},"ipam":{"routes":[{"dst":"0.0.0.0/0"}]}}`))
	f.Add([]byte(`{` + head + `,"runtimeConfig":{"ips":["10.5.34.9/24"]},"cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"}]}`))
	f.Add([]byte(`{` + head + `,"delegate":null,"ipam":null,"args":null,"capabilities":{"mac":true}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConf(data)
		var d delegation
		if err == nil {
			d, err = newDelegation(c, dual)
		}
		var e *types.Error
		switch {
		case err == nil:
			var conf struct {
				Name string
				IPAM struct{ Ranges [][]struct{ Subnet string } }
			}
			if err := json.Unmarshal(d.Config, &conf); err != nil || conf.Name != "default" || len(conf.IPAM.Ranges) != 2 || conf.IPAM.Ranges[0][0].Subnet != "10.5.34.0/24" {
				t.Errorf("%v: %s", err, d.Config)
			}
		case !errors.As(err, &e) || e.Code == 0 || e.Msg == "":
			t.Errorf("%#v", err)
		}
	})
}
