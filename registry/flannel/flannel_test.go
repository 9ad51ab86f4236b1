package flannel

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		want        string // pools as PREFIX/LEN MIN MAX
		err         string
	}{
		{name: "all defaults", value: `{"Network":"10.5.0.0/16"}`, want: "10.5.0.0/16 /24 10.5.1.0 10.5.255.0"},
		{name: "any case, host bits", value: `{"network":"10.5.3.4/16","subnetlen":26}`,
			want: "10.5.0.0/16 /26 10.5.0.64 10.5.255.192"},
		{name: "unspecified bounds", value: `{"Network":"10.5.0.0/16","SubnetMin":"0.0.0.0","SubnetMax":"10.5.9.0"}`,
			want: "10.5.0.0/16 /24 10.5.1.0 10.5.9.0"},
		{name: "both", value: `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`,
			want: "10.5.0.0/16 /24 10.5.1.0 10.5.255.0; fd00:5::/48 /64 fd00:5:0:1:: fd00:5:0:ffff::"},
		{name: "IPv6 alone", value: `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Network":"10.5.0.0/16"}`,
			want: "fd00:5::/48 /64 fd00:5:0:1:: fd00:5:0:ffff::"},
		{name: "IPv6 not enabled", value: `{"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48"}`,
			want: "10.5.0.0/16 /24 10.5.1.0 10.5.255.0"},
		{name: "unknown members", value: `{"Network":"10.5.0.0/16","Zone":1,"Area":2}`,
			want: "10.5.0.0/16 /24 10.5.1.0 10.5.255.0"},
		{name: "leno's member", value: `{"Network":"10.5.0.0/16","leno":{"version":1}}`,
			want: "10.5.0.0/16 /24 10.5.1.0 10.5.255.0"},
		{name: "a member twice", value: `{"Network":"10.5.0.0/16","NETWORK":"10.6.0.0/16"}`,
			err: `member "NETWORK" is there twice`},
		{name: "neither family", value: `{"EnableIPv4":false,"Network":"10.5.0.0/16"}`, err: "neither IPv4 nor IPv6 is enabled"},
		{name: "no network", value: `{}`, err: "no Network is set"},
		{name: "no IPv6 network", value: `{"Network":"10.5.0.0/16","EnableIPv6":true}`, err: "no IPv6Network is set"},
		{name: "subnets as large as the network", value: `{"Network":"10.5.0.0/24","SubnetLen":24}`, err: "10.5.0.0/24"},
		{name: "subnets out of range", value: `{"Network":"10.5.0.0/16","SubnetLen":33}`, err: "33"},
		{name: "garbage", value: `hello`, err: "not a network configuration"},
		{name: "cut short", value: `{"Network":"10.5.0`, err: "not a network configuration"},
		{name: "another type", value: `{"Network":5}`, err: "not a network configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := ParseConfig([]byte(tt.value))
			var got []string
			if err == nil {
				plan, planned := c.Plan()
				for _, p := range plan {
					got = append(got, fmt.Sprintf("%s /%d %s %s", p.Prefix, p.SubnetLen, p.Min, p.Max))
				}
				err = planned
			}
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || strings.Join(got, "; ") != tt.want {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestIsConfig(t *testing.T) {
	for value, want := range map[string]bool{
		`{"Network":"10.5.0.0/16"}`:          true,
		`{"ipv6network":"fd00::/48"}`:        true,
		`{"config":{},"10.5.52.0-24":{}}`:    false,
		`{"/coreos.com/network/config":"x"}`: false,
	} {
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(value), &members); err != nil {
			t.Fatal(err)
		}
		if got := IsConfig(members); got != want {
			t.Errorf("%s: %t", value, got)
		}
	}
}

// TestUnsupported: the import command tells this error from others.
func TestUnsupported(t *testing.T) {
	c, err := ParseConfig([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.TranslateBackend()
	var unsupported *UnsupportedError
	if !errors.As(err, &unsupported) || unsupported.Type != "ipip" {
		t.Errorf("got %v", err)
	}
}

func TestSubnetKey(t *testing.T) {
	for key, want := range map[string][]string{
		"10.5.52.0-24":                    {"10.5.52.0/24"},
		"10.5.52.0-24&fd00:5:0:34::-64":   {"10.5.52.0/24", "fd00:5:0:34::/64"},
		"0.0.0.0-0&fd00:5:0:34::-64":      {"fd00:5:0:34::/64"},
		"0.0.0.0-0":                       {"0.0.0.0/0"},
		"255.255.255.255-32&ffff::-128":   {"255.255.255.255/32", "ffff::/128"},
		"10.5.52.0-024":                   nil,
		"10.5.52.0-24&fd00:5:0:34:0::-64": nil,
		"0.0.0.0-00&::-0":                 nil,
		"10.5.52.0-24&fd00:5:0:34::-64&x": nil,
		"10.5.52.0":                       nil,
		"10.5.52.0-33":                    nil,
		"10.5.52.7-24":                    nil,
		"10.5.052.0-24":                   nil,
		"fd00:5:0:34::-64":                nil,
		"10.5.52.0-24&10.5.53.0-24":       nil,
		"::ffff:10.5.52.0-120":            nil,
		"":                                nil,
	} {
		subnets, err := ParseSubnetKey(key)
		var got []string
		for _, p := range subnets {
			got = append(got, p.String())
		}
		if (err == nil) != (want != nil) || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", key, got, err)
			continue
		}
		slices.Reverse(subnets)
		if err == nil && SubnetKey(subnets) != key {
			t.Errorf("%q comes back as %q", key, SubnetKey(subnets))
		}
	}
}

// FuzzParseSubnetKey: a key that is understood means the same after it was written again.
func FuzzParseSubnetKey(f *testing.F) {
	f.Add("10.5.52.0-24&fd00:5:0:34::-64")
	f.Fuzz(func(t *testing.T, key string) {
		subnets, err := ParseSubnetKey(key)
		if err != nil {
			return
		}
		again, err := ParseSubnetKey(SubnetKey(subnets))
		if err != nil || !slices.Equal(again, subnets) {
			t.Errorf("%q: %s, then %s, %v", key, subnets, again, err)
		}
	})
}

func TestAttributes(t *testing.T) {
	for _, tt := range []struct{ value, want, err string }{
		{value: `{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`,
			want: `192.168.64.3 vxlan {"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"} `},
		{value: `{"PublicIP":"192.0.2.1","PublicIPv6":"fd00::1","BackendType":"vxlan","BackendData":{"VNI":1},"BackendV6Data":{"VNI":2}}`,
			want: `192.0.2.1 fd00::1 vxlan {"VNI":1} {"VNI":2}`},
		{value: `{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::1","BackendType":"host-gw"}`, want: "fd00::1 host-gw  "},
		{value: `{"PublicIP":"192.0.2.1"}`, want: "192.0.2.1   "},
		{value: `{"BackendType":"vxlan"}`, err: "no PublicIP"},
		{value: `{"PublicIP":"0.0.0.0"}`, err: "no PublicIP"},
		{value: `{"PublicIP":"somewhere"}`, err: "not a lease"},
		{value: `hello`, err: "not a lease"},
		{value: ``, err: "not a lease"},
		{value: `[]`, err: "not a lease"},
	} {
		a, err := ParseAttributes([]byte(tt.value))
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: error %v, want %q", tt.value, err, tt.err)
			}
			continue
		}
		var words []string
		for _, ip := range a.PublicIPs() {
			words = append(words, ip.String())
		}
		got := fmt.Sprintf("%s %s %s %s", strings.Join(words, " "), a.BackendType, a.BackendData, a.BackendV6Data)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", tt.value, err, diff)
		}
	}
}
