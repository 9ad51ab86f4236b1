package dockeropts

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// options returns a daemon with an option of each type.
func options() Daemon {
	return Daemon{Environment: []string{"X=1"}, Options: []Option{
		{"bip", "10.5.34.1/24", "DOCKER_OPT_BIP"},
		{"ip-masq", false, "DOCKER_OPT_IPMASQ"},
		{"mtu", 1450, "DOCKER_OPT_MTU"},
	}}
}

func TestVariables(t *testing.T) {
	want := []string{"X=1", `DOCKER_OPT_BIP="--bip=10.5.34.1/24"`, `DOCKER_OPT_IPMASQ="--ip-masq=false"`, `DOCKER_OPT_MTU="--mtu=1450"`,
		`ALL="--bip=10.5.34.1/24 --ip-masq=false --mtu=1450"`}
	if diff := cmp.Diff(want, options().Variables("ALL")); diff != "" {
		t.Error(diff)
	}
}

// TestMerge: leno's options that are not set now are removed, and everything else stays, large numbers too.
func TestMerge(t *testing.T) {
	const own = `"bip":"10.5.34.1/24","ip-masq":false,"mtu":1450`
	with := func(more string) string { return `{` + strings.Replace(own, `"ip-masq"`, more+`"ip-masq"`, 1) + `}` }
	n := Network{Name: "default", Pools: gateways("10.5.0.0/16", "fd00:5::/48")}
	for _, tt := range []struct{ name, text, version, want, err string }{
		{name: "no file", want: `{` + own + `}`},
		{name: "white space", text: " \n", want: `{` + own + `}`},
		{name: "others", text: `{"max":12345678901234567890,"mtu":1}`, want: strings.Replace(`{`+own+`}`, `"mtu"`, `"max":12345678901234567890,"mtu"`, 1)},
		{name: "direct routing, of an unknown version", text: `{"allow-direct-routing":true}`, want: strings.Replace(with(``), `{`, `{"allow-direct-routing":true,`, 1)},
		{name: "direct routing, which the version does not have", text: `{"allow-direct-routing":true}`, version: "28.1.1", want: with(``)},
		{name: "IPv6 of leno", text: `{"ipv6":true,"bip6":"fd00:5:0:22::1/64","fixed-cidr-v6":"fd00:5:0:22::/64"}`, want: with(``)},
		{name: "IPv6 of the user", text: `{"ipv6":true,"fixed-cidr-v6":"2001:db8:1::/64"}`, version: "28.3.2",
			want: strings.Replace(with(`"fixed-cidr-v6":"2001:db8:1::/64",`), `"mtu"`, `"ipv6":true,"mtu"`, 1)},
		{name: "IPv6 with Docker's subnets", text: `{"ipv6":true}`, want: strings.Replace(with(``), `"mtu"`, `"ipv6":true,"mtu"`, 1)},
		{name: "an array", text: "[]", err: "is not a JSON object, but of type array"},
		{name: "a number", text: "7", err: "is not a JSON object, but of type number"},
		{name: "null", text: "null", err: "is not a JSON object, but null"},
		{name: "a trailing comma", text: "{\n\"ipv6\": true,\n}", err: "line 3: invalid character '}'"},
		{name: "a comment", text: "{\n\"ipv6\": true // own\n}", err: "comments and trailing commas are not allowed"},
		{name: "a byte order mark", text: "\ufeff{}", err: "begins with a byte order mark"},
		{name: "twice", text: `{"mtu":1400,"debug":true,"mtu":1300}`, want: strings.Replace(`{`+own+`}`, `"ip-masq"`, `"debug":true,"ip-masq"`, 1)},
		{name: "more", text: "{} {}", err: "has more after its JSON object"},
	} {
		before, err := ParseConfig([]byte(tt.text))
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.err)
			}
			continue
		}
		text, marshalErr := json.Marshal(options().Merge(before, Engine{Version: version(t, tt.version)}, n))
		if err != nil || marshalErr != nil || string(text) != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.name, text, err, tt.want)
		}
	}
}
