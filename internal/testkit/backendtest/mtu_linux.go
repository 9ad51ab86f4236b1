package backendtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
)

// testMTU checks that the option mtu limits the overlay's MTU on this host's routes, that a value beyond the underlay's
// has no effect but is named, and that a change deletes no route.
func testMTU(t *testing.T, s Suite) {
	h := newHost(t, s)
	two := h.peer(2, "node-2")
	most := h.advertise(h.b).MTU
	h.apply(h.state(two))
	plain := h.dump()
	for _, tt := range []struct {
		option, want int
		says         string
	}{
		{1400, 1400, "since option mtu is 1400"},
		{1300, 1300, "since option mtu is 1300"},
		{9000, most, "although option mtu is 9000"},
		{1280, 1280, "since option mtu is 1280"},
		{0, most, ""},
	} {
		h.change(tt.option)
		adv := h.advertise(h.b)
		if adv.MTU != tt.want || !strings.Contains(adv.Overhead, tt.says) {
			t.Errorf("option %d: MTU %d (%s), want %d (%s)", tt.option, adv.MTU, adv.Overhead, tt.want, tt.says)
		}
		state := h.state(two)
		for _, e := range h.events(func() { h.apply(state) }) {
			if isDeletedSubnet(e) {
				t.Errorf("option %d: a route was deleted: %s", tt.option, e)
			}
		}
		h.unchanged(state)
		for _, to := range []string{"10.5.2.1", "fd00:5:0:2::1"} {
			if got := h.routeMTU(to); got != fmt.Sprint(tt.want) && !(s.WiderPaths && tt.want == most) {
				t.Errorf("option %d: packets to %s may have %s bytes, want %d", tt.option, to, got, tt.want)
			}
		}
	}
	h.wantDump(plain)
}

// change changes the option mtu of the running network, as an agent does.
func (h *host) change(mtu int) {
	h.t.Helper()
	options := map[string]any{}
	if h.suite.Options != "" {
		if err := json.Unmarshal([]byte(h.suite.Options), &options); err != nil {
			h.t.Fatal(err)
		}
	}
	options[backend.OptionMTU] = mtu
	all, err := json.Marshal(options)
	if err != nil {
		h.t.Fatal(err)
	}
	h.suite.Options = string(all)
	change := h.b.Abilities().Change
	if change == nil {
		h.restart()
		return
	}
	if err := change(h.config(h.node)); err != nil {
		h.t.Fatalf("change to %s: %v", all, err)
	}
}

// isDeletedSubnet reports whether an event says that the route to a subnet was deleted. The family and the length of the
// destination begin its data.
func isDeletedSubnet(event string) bool {
	data, is := strings.CutPrefix(event, fmt.Sprintf("type %d: ", unix.RTM_DELROUTE))
	return is && (strings.HasPrefix(data, "0218") || strings.HasPrefix(data, "0a40"))
}

// routeMTU returns the MTU of the route to an address: its own, or that of its device.
func (h *host) routeMTU(to string) string {
	route := h.ns.Sh("ip route get " + to)
	if mtu := wordAfter(route, "mtu"); mtu != "" {
		return mtu
	}
	return wordAfter(h.ns.Sh("ip link show dev "+wordAfter(route, "dev")), "mtu")
}

// wordAfter returns the word after another one in a text, "" if there is none.
func wordAfter(text, word string) string {
	words := strings.Fields(text)
	i := slices.Index(words, word) + 1
	if i == 0 || i == len(words) {
		return ""
	}
	return words[i]
}
