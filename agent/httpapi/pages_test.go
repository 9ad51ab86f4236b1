package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fmt"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// TestStatusPage requests the page as browsers and other programs do.
func TestStatusPage(t *testing.T) {
	h := newHost(t, nil)
	h.agent.events.Set([]api.Event{{Index: 1, Time: time.Now(), Network: "n", Kind: api.EventLease, Severity: api.Info,
		Message: "this host holds 10.5.1.0/24"}})
	handler := h.prepare().routes()
	own, other := h.n.status.Lease.Subnet(), h.n.peers.Peers[0].Subnets[0]
	ask := func(method, path string, header http.Header) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		r.Header = header
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	browser := http.Header{"Accept": {"text/html,application/xhtml+xml"}}
	page := ask("GET", "/ui", browser).Body.String()
	asset := regexp.MustCompile(`ui/assets/live\.js\?v=\w+`).FindString(page)
	for _, tt := range []struct {
		name, method, path string
		header             http.Header
		code               int
		location           string
		words              []string
	}{
		{"page", "GET", "/ui", browser, 200, "", []string{"a: healthy", own.String(), other.String(), "this host holds"}},
		{"page of a network", "GET", "/ui/network/n", browser, 200, "", []string{"Find a host", other.String()}},
		{"one host", "GET", "/ui/network/n?q=B", browser, 200, "", []string{"1 to 1 of 1", other.String()}},
		// One read that waits for each page: browsers have six connections to an agent.
		{"what it waits for", "GET", "/ui/network/n", browser, 200, "", []string{`data-watch="v1/network/n/leases"`}},
		{"rows from anywhere", "GET", "/ui/network/n?from=-7x", browser, 200, "", []string{"1 to 2 of 2"}},
		{"script", "GET", "/" + asset, nil, 200, "", []string{`"use strict"`}},
		{"no such network", "GET", "/ui/network/%3Cb%3E", browser, 404, "", []string{"&lt;b&gt;", "n."}},
		{"no such page", "GET", "/ui/nothing/here", browser, 404, "", []string{"no such page", `"../../ui"`}},
		{"no such asset", "GET", "/ui/assets/..%2fpage.go", browser, 404, "", []string{"no such page"}},
		{"with a slash", "GET", "/ui/", browser, 301, "../ui", nil},
		{"root, for people", "GET", "/", browser, 302, "ui", nil},
		{"root, for programs", "GET", "/", http.Header{"Accept": {"*/*"}}, 404, "", []string{`"error":"no such endpoint: GET /"`}},
		{"head only", "HEAD", "/ui", browser, 200, "", nil},
		{"nothing can be posted", "POST", "/ui", browser, 405, "", []string{"GET, HEAD, not POST"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := ask(tt.method, tt.path, tt.header)
			if w.Code != tt.code || w.Header().Get("Location") != tt.location {
				t.Errorf("%d to %q", w.Code, w.Header().Get("Location"))
			}
			for _, word := range tt.words {
				if !strings.Contains(w.Body.String(), word) {
					t.Errorf("does not say %q:\n%s", word, w.Body)
				}
			}
			if tt.method == "HEAD" && w.Body.Len() > 0 {
				t.Error("HEAD has a body")
			}
			if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/") {
				return
			}
			csp := w.Header().Get("Content-Security-Policy")
			for _, rule := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
				if !strings.Contains(csp, rule) {
					t.Errorf("policy %q lacks %s", csp, rule)
				}
			}
			if h := w.Header(); strings.Contains(csp, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("headers %v", w.Header())
			}
		})
	}

	w := ask("GET", "/"+asset, nil)
	if cache := w.Header().Get("Cache-Control"); !strings.Contains(cache, "immutable") {
		t.Errorf("the script is kept for %q", cache)
	}
	if cache := ask("GET", "/ui/assets/live.js?v=old", nil).Header().Get("Cache-Control"); cache != "no-cache" {
		t.Errorf("under another version it is kept for %q", cache)
	}
	again := ask("GET", "/"+asset, http.Header{"If-None-Match": {w.Header().Get("ETag")}})
	if again.Code != http.StatusNotModified || again.Body.Len() > 0 {
		t.Errorf("asked for again: %d, %d bytes", again.Code, again.Body.Len())
	}
}

// hangingStore is a registry that does not answer.
type hangingStore struct{ registry.Registry }

func (hangingStore) WatchLeases(ctx context.Context, _ registry.Network, _ uint64) (registry.LeaseSet, uint64, error) {
	<-ctx.Done()
	return registry.LeaseSet{}, 0, ctx.Err()
}

func (hangingStore) Network(ctx context.Context, _ string) (registry.Network, error) {
	<-ctx.Done()
	return registry.Network{}, ctx.Err()
}

// TestPageAsksNoStore: the page is drawn from the agent's memory, so it costs the store nothing and is there at once
// while the store hangs.
func TestPageAsksNoStore(t *testing.T) {
	h := newHost(t, nil)
	m := h.join(h.define("m", "10.6.0.0/22"), lease(1, "a", "s"))
	h.options.Health.Set("m", health.Lease, api.Passing, "held")
	h.options.Registry, h.agent.store = hangingStore{h.registry}, hangingStore{h.registry}
	handler := h.prepare().routes()
	for path, words := range map[string][]string{
		"/ui":           {"Network n", "Network m", "10.5.1.0/24"},
		"/ui/network/n": {"10.5.1.0/24"},
	} {
		begun := time.Now()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if took := time.Since(begun); took >= 2*time.Second {
			t.Errorf("%s took %s while the store hangs", path, took)
		}
		for _, word := range words {
			if !strings.Contains(w.Body.String(), word) {
				t.Errorf("%s does not say %q:\n%s", path, word, w.Body)
			}
		}
	}
	for name, part := range map[string]*fakeNetwork{"n": h.n, "m": m} {
		if n := part.refreshes.Load(); n != 0 {
			t.Errorf("the leases of network %s were read again %d times", name, n)
		}
	}
}

// TestPageOfAResumedNetwork: before the store has been read, the page shows what an earlier process knew.
func TestPageOfAResumedNetwork(t *testing.T) {
	h := newHost(t, nil)
	handler := h.prepare().routes()
	n := h.n.status.Definition
	other := lease(3, "c", "")
	other.Subnets = n.Plan.Subnets(other.Slot)
	h.n.resumed = &Resumed{Definition: n, Lease: h.n.status.Lease, Leases: []registry.Lease{other}}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/ui/network/n", nil))
	for _, word := range []string{"The store has not been read yet", "10.5.3.0/24"} {
		if !strings.Contains(w.Body.String(), word) {
			t.Errorf("the page does not say %q:\n%s", word, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), "<bdi>b</bdi>") {
		t.Errorf("the page shows leases that are not resumed:\n%s", w.Body)
	}
}

// TestRowsOfAPage covers what the map says of each slot.
func TestRowsOfAPage(t *testing.T) {
	n := registry.Network{Name: "n", Plan: registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/20"), SubnetLen: 24}}}
	var err error
	n.Plan, err = n.Plan.Normalize()
	must(t, err)
	lease := func(slot uint64, node string, addr byte, session string) registry.Lease {
		return registry.Lease{Slot: slot, Subnets: n.Plan.Subnets(slot), Node: node, NodeID: fmt.Sprint("id-", node, slot), Session: session,
			PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, addr})}}
	}
	own := lease(1, "own", 1, "s")
	lapsed := lease(3, "c", 3, "")
	lapsed.Lapsed = time.Hour
	set := registry.LeaseSet{
		Leases: []registry.Lease{own, lease(2, "b", 2, "s"), lapsed, lease(4, "d", 4, "s"), lease(5, "d", 5, "s"), lease(6, "f", 4, "s"), lease(7, "c", 3, "s"), lease(8, "h", 8, "s")},
		Bad:    []registry.BadRecord{{Key: "leno/leases/n/10.5.9.0-24", Reason: "no JSON"}, {Key: "leno/leases/n/x", Reason: "no subnet"}, {Key: "leno/leases/n/10.9.9.0-24", Reason: "elsewhere"}},
	}
	kept := []registry.Reservation{{Slot: 2, Node: "b"}, {Slot: 8, Node: "z"}, {Slot: 10, NodeID: "id-z"}}
	for i := range kept {
		kept[i].Subnet = n.Plan.Subnets(kept[i].Slot)[0]
	}
	var got []string
	for _, r := range rowsOf(n, set, kept, own, own.NodeID) {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%d %s %s %s", r.Slot, r.State, r.Node, r.Note)))
	}
	want := []string{
		"1 own own", "2 held b reserved", "3 lapsed c",
		"4 contradictory d has the same address 192.0.2.4 as the host on 10.5.6.0/24",
		"5 contradictory d has the same name d as the host on 10.5.4.0/24",
		"6 contradictory f has the same address 192.0.2.4 as the host on 10.5.4.0/24",
		"7 held c", "8 contradictory h reserved for z", "9 contradictory  no JSON", "10 reserved id-z",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	// What was read before the plan changed, or the network went, is not drawn.
	other := registry.Network{Plan: registry.Plan{{Prefix: netip.MustParsePrefix("10.5.8.0/21"), SubnetLen: 24}}}
	other.Plan, err = other.Plan.Normalize()
	must(t, err)
	for _, n := range []registry.Network{{}, other} {
		if rows := rowsOf(n, registry.LeaseSet{Leases: set.Leases}, kept, own, own.NodeID); len(rows) != 0 {
			t.Errorf("with another plan: %v", rows)
		}
	}
}
