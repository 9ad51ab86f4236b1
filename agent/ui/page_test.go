package ui

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/lenonet/leno/agent/fleet"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// planOf returns a plan whose pool is normalized.
func planOf(t *testing.T, prefix string, subnetLen int) registry.Plan {
	t.Helper()
	p, err := registry.Plan{{Prefix: netip.MustParsePrefix(prefix), SubnetLen: subnetLen}}.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// pageOf returns a page with hosts on every third slot, including this one.
func pageOf(t *testing.T, hosts int, name string) Page {
	t.Helper()
	n := Network{Name: "default", Backend: "udp", Plan: planOf(t, "10.0.0.0/12", 24), Health: api.NetworkHealth{Network: "default", Status: api.Passing, Ready: true}}
	n.Local = api.Local{State: "running", Link: "leno-default", MTU: 1450, MTUReason: "1450 = 1500 - 50"}
	for i := range hosts {
		slot := uint64(1 + 3*i)
		n.Rows = append(n.Rows, Row{Slot: slot, Subnets: n.Plan.Subnets(slot), State: Held, Node: fmt.Sprintf("%s-%d", name, i), MTU: 1450, Backend: "udp",
			PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}, Counters: &api.Counters{RxBytes: 12345678, Drops: map[string]uint64{"no_peer": 3}}})
	}
	for i := range min(hosts, 60) {
		state := api.HostStates[i%len(api.HostStates)]
		h := api.Host{Node: name, State: state, Reason: name, Backend: name, Own: i == 0, Held: true, Subnets: n.Plan.Subnets(uint64(1 + 3*i))}
		if i%2 == 0 {
			h.PublicIPs, h.Seen, h.Path = []netip.Addr{netip.MustParseAddr("192.0.2.1")}, noon, &api.PeerPath{State: api.PathReached, RTT: 0.001}
			h.Summary = &api.HostSummary{Version: name, Peers: 8, Reached: 7}
		}
		n.Hosts = append(n.Hosts, h)
	}
	for i, s := range []State{Own, Lapsed, Reserved, Contradictory} {
		if i < hosts {
			n.Rows[i].State = s
		}
	}
	health := api.Health{Status: api.Warning, Ready: true, Checks: []api.Check{{Name: "consul", Status: api.Warning, Reason: name, Since: noon}},
		Networks: []api.NetworkHealth{{Network: "default", Status: api.Passing, Ready: true, Checks: []api.Check{{Name: "lease", Status: api.Passing, Reason: name, Since: noon}}}}}
	return Page{Node: name, Version: "1", Now: noon, Started: noon.Add(-48 * time.Hour), Health: health, Networks: []Network{n}, Known: []string{"default"},
		Others: []Other{{"other", "10.9.0.0/16", name}},
		Events: []api.Event{{Index: 2, Time: noon, Network: "default", Kind: api.EventPeer, Severity: api.Info, Message: name}, {Index: 1, Time: noon, Kind: api.EventAgent, Severity: api.Critical, Message: name}}}
}

func render(t *testing.T, p Page) (string, *html.Node) {
	t.Helper()
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	body, err := r.Render(p)
	if err != nil {
		t.Fatal(err)
	}
	node, err := html.Parse(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return string(body), node
}

func attr(n *html.Node, name string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

// within returns the elements with these names.
func within(n *html.Node, names ...string) (out []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && slices.Contains(names, d.Data) {
			out = append(out, d)
		}
	}
	return out
}

func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// TestPageIsWellMade checks what screen readers and browsers' rules require of the markup, also of pages without
// content.
func TestPageIsWellMade(t *testing.T) {
	only := pageOf(t, 1000, "host")
	only.Only = "default"
	searched := only
	searched.Query, searched.From = "host-99", 50
	two := pageOf(t, 3, "host")
	two.Networks = append(two.Networks, two.Networks[0])
	two.Networks[1].Name = "blue"
	for name, p := range map[string]Page{
		"nothing": {}, "three hosts": pageOf(t, 3, "host"), "a thousand hosts": pageOf(t, 1000, "host"), "one network": only, "search": searched, "two networks": two,
		"a table of paths": pageOfPaths(t, 60), "a table of some paths": pageOfPaths(t, 61),
		"a network without a plan": {Networks: []Network{{Name: "n"}}, Known: []string{"n"}},
	} {
		t.Run(name, func(t *testing.T) {
			body, doc := render(t, p)
			if len(body) > 140_000 {
				t.Errorf("%d bytes", len(body))
			}
			ids := map[string]bool{}
			for n := range doc.Descendants() {
				if n.Type != html.ElementNode {
					continue
				}
				if id, ok := attr(n, "id"); ok && ids[id] {
					t.Errorf("id %s is there twice", id)
				} else if ok {
					ids[id] = true
				}
				for _, a := range n.Attr {
					if a.Key == "style" || strings.HasPrefix(a.Key, "on") {
						t.Errorf("%s=%q is against the page's own rules", a.Key, a.Val)
					}
					if (a.Key == "src" || a.Key == "href") && (strings.Contains(a.Val, "//") || strings.HasPrefix(a.Val, "/")) {
						t.Errorf("%s %q leaves the place the page is at", a.Key, a.Val)
					}
				}
			}
			for n := range doc.Descendants() {
				for _, name := range []string{"aria-labelledby", "for"} {
					if id, ok := attr(n, name); ok && !ids[id] {
						t.Errorf("%s names %s, which is not there", name, id)
					}
				}
			}
			for _, table := range within(doc, "table") {
				if len(within(table, "caption")) != 1 {
					t.Error("a table without a caption")
				}
				for _, th := range within(table, "th") {
					if scope, _ := attr(th, "scope"); scope != "col" && scope != "row" {
						t.Errorf("th %q has no scope", text(th))
					}
				}
			}
			for _, s := range within(doc, "script") {
				if _, ok := attr(s, "src"); !ok || text(s) != "" {
					t.Error("a script in the page")
				}
			}
			if len(within(doc, "style")) > 0 || len(within(doc, "main")) != 1 || len(within(doc, "h1")) != 1 || len(within(doc, "title")) == 0 {
				t.Error("styles in the page, or not one main, h1 and title")
			}
			level := 1
			for _, h := range within(doc, "h1", "h2", "h3", "h4") {
				if now := int(h.Data[1] - '0'); now > level+1 {
					t.Errorf("heading %q leaves a level out", text(h))
				} else {
					level = now
				}
			}
			live := 0
			for n := range doc.Descendants() {
				if _, ok := attr(n, "aria-live"); ok {
					live++
				}
			}
			if live != 1 {
				t.Errorf("%d live regions", live)
			}
		})
	}
}

// tableOf returns the rows of the table of a class, with " | " between the cells, and the links in it.
func tableOf(doc *html.Node, class string) (rows, links []string) {
	for _, table := range within(doc, "table") {
		if got, _ := attr(table, "class"); got != class {
			continue
		}
		for _, row := range within(table, "tr") {
			var cells []string
			for _, cell := range within(row, "th", "td") {
				cells = append(cells, text(cell))
			}
			rows = append(rows, strings.Join(cells, " | "))
		}
		for _, a := range within(table, "a") {
			href, _ := attr(a, "href")
			links = append(links, href)
		}
	}
	return rows, links
}

// TestFleet: the pages show hosts with a problem first, and the overview fewer.
func TestFleet(t *testing.T) {
	_, doc := render(t, pageOf(t, 20, "x"))
	rows, _ := tableOf(doc, "fleet")
	if shown := text(doc); len(rows) != 11 || !strings.Contains(shown, "The first 10 of 20 hosts") || strings.Contains(shown, "Slots") {
		t.Errorf("overview: %s", shown)
	}
	p := pageOf(t, 9, "x")
	for i := range p.Networks[0].Hosts {
		p.Networks[0].Hosts[i].Node = fmt.Sprint("host-", i)
	}
	p.Only = "default"
	_, doc = render(t, p)
	rows, _ = tableOf(doc, "fleet")
	for i, want := range map[int]string{
		0: "Host | Health | Version | Backend | Public IP | MTU | Reaches | Path to it | Last seen",
		1: "host-0x | failed (consul) | x | x | 192.0.2.1 | - | 7 of 8 hosts | reached, 1.0 ms | this host",
		2: "host-1x | lost | - | x | - | - | - | - | -",
		3: "host-2x | critical | x | x | 192.0.2.1 | - | 7 of 8 hosts | reached, 1.0 ms | 12:00:00",
		9: "host-8x | passing | x | x | 192.0.2.1 | - | 7 of 8 hosts | reached, 1.0 ms | 12:00:00",
		8: "host-7x | - | - | x | - | - | - | - | -",
	} {
		if i >= len(rows) || rows[i] != want {
			t.Errorf("row %d of %q, want %q", i, rows, want)
		}
	}
}

// TestForeignTextStaysText checks that text from a record is shown and never interpreted.
func TestForeignTextStaysText(t *testing.T) {
	for _, evil := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `javascript:alert(1)`, `{{.Version}}`,
		`</title><script>`, `--><script>`, `]]><svg onload=alert(1)>`, "\u202egnp.exe", strings.Repeat("x", 10_000), `&lt;b&gt;`,
	} {
		p := pageOf(t, 3, evil)
		p.Query = evil
		for _, only := range []string{"", "default"} {
			p.Only = only
			p.Query = ""
			_, clean := render(t, pageOnly(pageOf(t, 3, "host"), only))
			_, doc := render(t, p)
			if a, b := shape(clean), shape(doc); a != b {
				t.Errorf("%.40q changes the page's elements:\n%s\n%s", evil, a, b)
			}
			if !strings.Contains(text(doc), strings.Join(strings.Fields(evil), " ")) {
				t.Errorf("%.40q is not shown", evil)
			}
		}
		p.Only, p.Query = "default", evil+"?"
		if _, doc := render(t, p); !strings.Contains(text(doc), "No host, address or state has") {
			t.Errorf("%.40q is found: %s", evil, text(doc))
		}
	}
}

// pageOfPaths returns a page of a network whose hosts say what they reach: the second one not the third, and the fourth one
// nothing.
func pageOfPaths(t *testing.T, hosts int) Page {
	t.Helper()
	p := pageOf(t, 3, "host")
	p.Only = "default"
	n := &p.Networks[0]
	n.Hosts = nil
	for i := range hosts {
		h := api.Host{Node: fmt.Sprintf("host-%02d", i), Subnets: n.Plan.Subnets(uint64(i + 1)), Held: true, Own: i == 0,
			Summary: &api.HostSummary{Peers: hosts - 1, Reached: hosts - 1, At: noon}}
		if i > 0 {
			h.Path = &api.PeerPath{State: api.PathReached, RTT: 0.0012, Tested: noon}
		}
		n.Hosts = append(n.Hosts, h)
	}
	for i := range n.Rows {
		n.Rows[i].Path = &api.PeerPath{State: api.PathLossy, Loss: 0.25, History: &api.PathHistory{StepSeconds: 120, Last: noon, Loss: []int8{0, 25}}}
	}
	n.Hosts[1].Summary.Lost, n.Hosts[1].Summary.Reached = []string{"host-02"}, hosts-2
	n.Hosts[3].Summary = nil
	return p
}

// TestPaths: the pages show which hosts reach which. A fault has a link to what it means, on the network's page.
func TestPaths(t *testing.T) {
	_, doc := render(t, pageOfPaths(t, 4))
	rows, links := tableOf(doc, "paths")
	want := []string{
		"From | host-00 | host-01 | host-02 | host-03", "host-00 | - | 1.2 ms | 1.2 ms | 1.2 ms", "host-01 | ✓ | - | lost | ✓",
		"host-02 | ✓ | ✓ | - | ✓", "host-03 | ? unknown: no summary received",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("%q", rows)
	}
	if len(links) != 4+3+1 || !slices.Contains(links, "?path=10.0.2.0-24_10.0.3.0-24#path-default") {
		t.Errorf("links %q", links)
	}
	p := pageOfPaths(t, 61)
	p.Path = "10.0.2.0-24_10.0.3.0-24"
	_, doc = render(t, p)
	rows, _ = tableOf(doc, "paths")
	want = []string{"From | host-01 | host-02 | Other hosts", "host-01 | - | lost | 59 of 59", "host-02 | ✓ | - | 59 of 59", "Other hosts | 58 of 58, 1 ? | 58 of 58, 1 ? | -"}
	if !slices.Equal(rows, want) {
		t.Errorf("of many hosts: %q", rows)
	}
	for _, want := range []string{"Hosts with a fault on their paths: 2. Other hosts: 58 healthy, 1 unknown, because they sent no summary.",
		"host-01 to host-02", "Seenlost", "Run nextleno doctor on host-01", "summary sent by host-01, 12:00:00 UTC"} {
		if !strings.Contains(text(doc), want) {
			t.Errorf("the page does not say %q: %s", want, text(doc))
		}
	}
	for path, isExplained := range map[string]bool{"10.0.2.0-24": true, "_10.0.2.0-24": true, "": false, "<b>": false} {
		p.Path = path
		if _, doc := render(t, p); strings.Contains(text(doc), "Run next") != isExplained {
			t.Errorf("path %q: %s", path, text(doc))
		}
	}
	sparks := within(doc, "svg")
	if !slices.ContainsFunc(sparks, func(n *html.Node) bool {
		label, _ := attr(n, "aria-label")
		return label == "Loss in the last 4 min: up to 25 % in 2 min, last at 12:00:00 UTC"
	}) {
		t.Error("no sparkline")
	}
	p.Only = ""
	_, doc = render(t, p)
	if rows, links := tableOf(doc, "paths"); !slices.Equal(rows, want) ||
		!slices.Contains(links, "./ui/network/default?path=10.0.2.0-24_10.0.3.0-24#path-default") {
		t.Errorf("the overview has %q and links %q", rows, links)
	}
}

func TestOtherPaths(t *testing.T) {
	for want, table := range map[string]fleet.PathTable{
		"": {Rows: make([]fleet.PathRow, 3)},
		"Hosts with a fault on their paths: 0. Other hosts: 61 healthy.":                                        {Fine: 61},
		"Hosts with a fault on their paths: 70, of which 60 are shown. Other hosts: 9 healthy, 5 not compared.": {Rows: make([]fleet.PathRow, 61), Faulty: 70, Fine: 9, Left: 5},
	} {
		if got := otherPaths(table); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func pageOnly(p Page, only string) Page {
	p.Only = only
	return p
}

// shape returns a page's elements and the names of their attributes.
func shape(doc *html.Node) string {
	var b strings.Builder
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		b.WriteString(n.Data)
		for _, a := range n.Attr {
			b.WriteString(" " + a.Key)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestVerdict(t *testing.T) {
	check := func(status string) []api.Check { return []api.Check{{Name: "x", Status: status}} }
	network := func(ready bool, status string) []api.NetworkHealth {
		return []api.NetworkHealth{{Network: "n", Ready: ready, Status: status, Checks: check(status)}}
	}
	for _, tt := range []struct {
		health        api.Health
		sentence, sub string
	}{
		{api.Health{Status: api.Passing, Ready: true}, "a: healthy", "It takes part in no network."},
		{api.Health{Status: api.Passing, Ready: true, Networks: network(true, api.Passing)}, "a: healthy", "Every network is ready for containers."},
		{api.Health{Status: api.Warning, Ready: true, Networks: network(true, api.Warning)}, "1 problem on a", "Every network is ready for containers."},
		{api.Health{Status: api.Critical, Checks: check(api.Warning), Networks: network(false, api.Critical)}, "2 problems on a", "Not every network is ready for containers."},
	} {
		if sentence, sub := verdict(Page{Node: "a", Health: tt.health}); sentence != tt.sentence || sub != tt.sub {
			t.Errorf("%q, %q; want %q, %q", sentence, sub, tt.sentence, tt.sub)
		}
	}
	beside := Page{Node: "a", Health: api.Health{Status: api.Passing, Ready: true, Networks: network(true, api.Passing)}, Networks: []Network{{Local: api.Local{Peers: 1}}}}
	if _, sub := verdict(beside); !strings.Contains(sub, "paths to the other hosts are not tested") {
		t.Errorf("beside another host: %q", sub)
	}
	beside.Networks[0].Rows = []Row{{Path: &api.PeerPath{}}}
	if _, sub := verdict(beside); sub != "Every network is ready for containers." {
		t.Errorf("with tests of the paths: %q", sub)
	}
	h := api.Health{Checks: check(api.Warning), Networks: network(false, api.Critical)}
	if got := problems(h); len(got) != 2 || got[0].Status != api.Critical || got[0].Network != "n" {
		t.Errorf("%+v", got)
	}
}

func TestWords(t *testing.T) {
	for status, want := range map[string]string{api.Passing: "healthy", api.Warning: "warning", api.Critical: "critical"} {
		if got := statusWord(status); got != want {
			t.Errorf("%s is %q, want %q", status, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 9950: "10 kB", 999_499: "999 kB", 999_500: "1.0 MB", 12_345_678: "12 MB", ^uint64(0): "18 EB"} {
		if got := bytesOf(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := number(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
	for d, want := range map[time.Duration]string{time.Second: "under 1 min", 90 * time.Second: "1 min", 3 * time.Hour: "3 h", 50 * time.Hour: "2 d"} {
		if got := age(d); got != want {
			t.Errorf("%s is %q", d, got)
		}
	}
	if got := clock(noon, noon.Add(-time.Minute)) + " " + clock(noon, noon.Add(-24*time.Hour)) + " " + clock(noon, time.Time{}); got != "11:59:00 2026-02-28 12:00:00 -" {
		t.Error(got)
	}
	if got := drops(map[string]uint64{"no_peer": 3000, "short": 1, "none": 0}); got != "3,000 no peer, 1 short" {
		t.Error(got)
	}
}
