package definition

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/backend/wireguard"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

func TestDifferences(t *testing.T) {
	v4 := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
	dual := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22", "fd00:5::/48"), Backend: v4.Backend}
	narrow := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "other", "")}
	narrow.Plan[0].Max = netip.MustParseAddr("10.5.2.0")
	options := v4
	options.Backend = agenttest.Backend(t, "udp", `{"port":8285}`)
	secret := v4
	secret.Encryption = registry.EncryptionRequired
	for _, tt := range []struct {
		name       string
		want, have registry.Network
		says       []string
	}{
		{"none", v4, v4, nil},
		{"a family more", dual, v4, []string{"ipv6.max", "ipv6.min", "ipv6.prefix is fd00:5::/48, and not set in the store", "ipv6.subnet_len"}},
		{"a family less", v4, dual, []string{"ipv6.max", "ipv6.min", "ipv6.prefix is not set, and fd00:5::/48 in the store", "ipv6.subnet_len"}},
		{"encryption", secret, v4, []string{"encryption is required, and not set in the store"}},
		{"backend with options", options, v4, []string{"backend.type is udp, and recorder in the store"}},
		{"range and backend", narrow, v4, []string{"backend.type is other", "ipv4.max is 10.5.2.0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Differences(tt.want, tt.have)
			if len(got) != len(tt.says) {
				t.Fatalf("%q", got)
			}
			for i := range got {
				if !strings.Contains(got[i], tt.says[i]) {
					t.Errorf("%q does not say %q", got[i], tt.says[i])
				}
			}
		})
	}
	if _, err := FromBlock(config.Network{Name: "n", Pools: []config.Pool{{Prefix: v4.Plan[0].Prefix}}}); !errors.Is(err, registry.ErrInvalid) {
		t.Errorf("without a backend: %v", err)
	}
}

// TestDifferencesOfDefaults: an option that the store lacks has its default there.
func TestDifferencesOfDefaults(t *testing.T) {
	block := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "udp", `{"port":8285,"mtu":0}`)}
	stored := block
	stored.Backend = agenttest.Backend(t, "udp", `{"port":8285}`)
	if differs := DifferencesOfBlock(block, stored, backends()); len(differs) > 0 {
		t.Errorf("%q", differs)
	}
	block.Backend = agenttest.Backend(t, "udp", `{"port":8285,"mtu":1400}`)
	if differs := DifferencesOfBlock(block, stored, backends()); len(differs) != 1 {
		t.Errorf("with another MTU: %q", differs)
	}
}

func TestCheckEncryption(t *testing.T) {
	kinds := backends()
	kinds["wireguard"] = wireguard.Type()
	for name := range kinds {
		n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, name, "")}
		if err := CheckEncryption(n, kinds); err != nil {
			t.Errorf("%s without a requirement: %v", name, err)
		}
		n.Encryption = registry.EncryptionRequired
		if err := CheckEncryption(n, kinds); (err == nil) != (name == "wireguard") || err != nil && !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n := registry.Network{Encryption: registry.EncryptionRequired, Backend: agenttest.Backend(t, "pigeon", "")}
	err := CheckEncryption(n, kinds)
	if err == nil || err.Error() != "invalid: encryption is required, and backend pigeon does not encrypt; those that do: wireguard" {
		t.Error(err)
	}
	local := config.Network{Name: "n", Pools: []config.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/22")}},
		Backend: &config.Backend{Type: "wireguard"}, Encryption: config.EncryptionRequired}
	n, err = FromBlock(local)
	if err != nil || n.Encryption != registry.EncryptionRequired {
		t.Errorf("%+v, %v", n, err)
	}
	old := n
	old.Encryption, old.ModifyIndex = "", 7
	got := describe(Change{Old: old, New: n, Backends: kinds}.Plan())
	if diff := cmp.Diff([]string{"update", "c encryption  -> required"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestDropEncryption: only a forced change takes required encryption from a network, whether or not hosts have a lease.
func TestDropEncryption(t *testing.T) {
	old := switchable(t, "wireguard", `{}`)
	old.Encryption = registry.EncryptionRequired
	encrypted := switchable(t, "wireguard", `{}`)
	for name, tt := range map[string]struct {
		now     registry.Network
		refused bool
	}{
		"another backend": {switchable(t, "vxlan", `{}`), true},
		"no requirement":  {encrypted, true},
		"nothing":         {old, false},
		"another port": {func() registry.Network {
			n := switchable(t, "wireguard", `{"listen_port":7}`)
			n.Encryption = old.Encryption
			return n
		}(), false},
	} {
		for _, leases := range [][]registry.Lease{nil, {changed(old, "a", 10, true)}} {
			refused := (Change{Old: old, New: tt.now, Leases: leases, Backends: backends()}).Gradual().Plan().Refused
			if !tt.refused && len(refused) > 0 || tt.refused && (len(refused) != 1 || !refused[0].Force ||
				!strings.Contains(refused[0].Reason, "no longer require encryption")) {
				t.Errorf("%s, %d leases: %+v", name, len(leases), refused)
			}
		}
	}
}
