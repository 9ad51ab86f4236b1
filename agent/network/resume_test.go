package network

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestResumableDuringSwitch: an earlier process that ended during a switch has left the devices of both backends. If
// packets over either of them wait for a process, its datapath is resumed at once.
func TestResumableDuringSwitch(t *testing.T) {
	subnet, pool := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("10.5.0.0/22")
	waits := datapath.KernelState{Routes: 2, Refuses: true, Device: true, Up: true, Addrs: []netip.Addr{subnet.Addr()}}
	flows, down := waits, waits
	flows.Carrier, down.Up = true, false
	for _, tt := range []struct {
		name, options   string
		kernel          map[string]datapath.KernelState // by device
		resumable, wait bool
	}{
		{"packets flow over both", `{"switch":{"to":{"type":"other"}}}`,
			map[string]datapath.KernelState{"leno-n": flows, "leno-n~b": flows}, true, false},
		{"packets wait for the current one", `{"switch":{"to":{"type":"other"}}}`,
			map[string]datapath.KernelState{"leno-n": waits, "leno-n~b": flows}, true, true},
		{"packets wait for the next one", `{"switch":{"to":{"type":"other"}}}`,
			map[string]datapath.KernelState{"leno-n": flows, "leno-n~b": waits}, true, true},
		{"packets wait for the next one, with the first device", `{"epoch":{"number":1},"switch":{"to":{"type":"other"}}}`,
			map[string]datapath.KernelState{"leno-n": waits, "leno-n~b": flows}, true, true},
		{"only the next one stands", `{"switch":{"to":{"type":"other"}}}`,
			map[string]datapath.KernelState{"leno-n": down, "leno-n~b": flows}, true, false},
		{"nothing stands", `{"switch":{"to":{"type":"other"}}}`,
			map[string]datapath.KernelState{"leno-n": down, "leno-n~b": down}, false, false},
		{"without a switch, the other device is none of the network's", `{}`,
			map[string]datapath.KernelState{"leno-n": flows, "leno-n~b": waits}, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			h.deps.ReadKernelState = func(_ context.Context, link string, _ []netip.Prefix) (datapath.KernelState, error) {
				return tt.kernel[link], nil
			}
			must(t, state.Save(h.config.DataDir, state.Network{
				Version:  registry.Version,
				Network:  "n",
				Subnets:  []netip.Prefix{subnet},
				Pools:    []netip.Prefix{pool},
				Carriage: agenttest.Carriage(t, "recorder", tt.options),
				Renewed:  time.Now(),
			}))
			found, wait := h.runner().findResumable(t.Context())
			if (found != nil) != tt.resumable || wait != tt.wait {
				t.Errorf("resumable %t, and packets wait %t; want %t and %t", found != nil, wait, tt.resumable, tt.wait)
			}
		})
	}
}
