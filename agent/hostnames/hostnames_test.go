package hostnames

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/agent/config"
)

// TestHostOfTheListener: the name in http.address is one of this host.
func TestHostOfTheListener(t *testing.T) {
	var c config.Config
	names := New(Options{Config: func() config.Config { return c }, NodeName: func() string { return "" }})
	c.HTTP.Address = "leno.example.net:5366"
	if !names.isAccepted("Leno.example.net:80") || names.isAccepted("example.net") || names.isAccepted("x.leno.example.net") {
		t.Error("not the name alone is accepted")
	}
	c.HTTP.Address, c.Telemetry.Address = ":5366", "metrics.example.net:9108"
	if !names.isAccepted("metrics.example.net:9108") {
		t.Error("the name in telemetry.address is refused")
	}
	if names.isAccepted("evil.example") {
		t.Error("no name accepts all")
	}
}

func TestLookUpNames(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		fails bool
	}{
		{"there are none", &net.DNSError{Err: "no such host", IsNotFound: true}, false},
		{"no answer", &net.DNSError{Err: "timeout", IsTimeout: true}, true},
	} {
		n := New(Options{
			NodeName: func() string { return "db2.example.org" },
			LookUp:   func(context.Context, string) (string, []netip.Addr, error) { return "", nil, tt.err },
		})
		if names, err := n.lookUp(t.Context()); len(names) != 0 || (err != nil) != tt.fails {
			t.Errorf("%s: %q, %v", tt.name, names, err)
		}
	}
	if _, err := config.Parse([]byte(`http { allowed_hosts = ["*"] }`), "a.hcl", config.Options{}); err == nil {
		t.Error("every name is allowed")
	}
}
