package ui

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/fleet"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/plural"
	"github.com/lenonet/leno/registry"
)

// Bounds of what one page shows.
const (
	rowsShown   = 100
	fleetShown  = 40 // on a network's page
	fewFleet    = 10 // the same on the overview
	fewHosts    = 32 // the overview shows all of so many hosts
	spansShown  = 24
	eventsShown = 40
)

// view is the template's input for a page.
type view struct {
	Page
	Root     string // from the page to the parent of /ui and /v1
	Title    string
	Verdict  string
	Sub      string
	Problems []problem
	Groups   []group // all checks
	Parts    []part
	Watch    string // path of the blocking read that reports changes
	Shown    []api.Event
}

// pair is the input of the hosts' template.
type pair struct {
	Page view
	Part part
}

// problem is a check that is not passing.
type problem struct {
	Network string
	api.Check
}

// group holds the checks of the agent or of one network.
type group struct {
	Name   string
	Checks []api.Check
}

// Sentence describes the state of the group.
func (g group) Sentence() string {
	bad := 0
	for _, c := range g.Checks {
		if c.Status != api.Passing {
			bad++
		}
	}
	verdict := "all passing"
	if bad > 0 {
		verdict = fmt.Sprintf("%d not passing", bad)
	}
	return fmt.Sprintf("%s: %d checks, %s", g.Name, len(g.Checks), verdict)
}

// part is one network's section.
type part struct {
	Network
	Path     string // of its own page
	Map      grid   // like Spans, only on the network's page
	Spans    []span
	More     bool // spans
	Subnets  string
	Full     bool  // with the table of hosts
	Rows     []row // of this page
	Others   int   // hosts with a lease
	Fleet    []api.Host
	Paths    fleet.PathTable
	Chosen   *fleet.PathDetail // of Paths, nil for none
	Troubled int               // hosts with a problem
	Found    int               // number of rows that match the query
	Counted  bool
	Tested   bool   // the path to some host is
	Earlier  string // query of the previous rows, "" when there are none
	Later    string
	Range    string // "1 to 100 of 1,000"
}

// row is the table row of a slot.
type row struct {
	Row
	ID    string
	Drops uint64
}

func newView(p Page) view {
	v := view{Page: p, Root: "./", Title: cmp.Or(p.Node, "leno")}
	if p.Only != "" {
		v.Root = "../../"
		v.Title = p.Only + " · " + v.Title
	}
	v.Verdict, v.Sub = verdict(p)
	v.Groups = append(v.Groups, group{"Agent", p.Health.Checks})
	for _, n := range p.Health.Networks {
		if p.Only == "" || n.Network == p.Only {
			v.Groups = append(v.Groups, group{"Network " + n.Network, n.Checks})
		}
	}
	v.Problems = problems(p.Health)
	v.Watch = "v1/agent/events"
	for _, n := range p.Networks {
		v.Parts = append(v.Parts, newPart(p, n))
		if p.Only != "" || len(p.Networks) == 1 {
			v.Watch = "v1/network/" + url.PathEscape(n.Name) + "/leases"
		}
	}
	v.Shown = p.Events[:min(len(p.Events), eventsShown)]
	return v
}

// verdict returns a sentence with the health of this host, and one about its networks, also if the paths to other hosts
// are not tested.
func verdict(p Page) (sentence, sub string) {
	name, bad := cmp.Or(p.Node, "this host"), len(problems(p.Health))
	sub = "Every network is ready for containers."
	switch {
	case len(p.Health.Networks) == 0:
		sub = "It takes part in no network."
	case !p.Health.Ready:
		sub = "Not every network is ready for containers."
	}
	isUntested := func(n Network) bool {
		return n.Local.Peers > 0 && !slices.ContainsFunc(n.Rows, func(r Row) bool { return r.Path != nil })
	}
	if slices.ContainsFunc(p.Networks, isUntested) {
		sub += " The paths to the other hosts are not tested: leno doctor does that."
	}
	if p.Health.Status == api.Passing {
		return name + ": healthy", sub
	}
	return fmt.Sprintf("%s on %s", plural.Count(bad, "problem"), name), sub
}

// problems returns the checks that are not passing, worst first.
func problems(h api.Health) (out []problem) {
	add := func(network string, checks []api.Check) {
		for _, c := range checks {
			if c.Status != api.Passing {
				out = append(out, problem{network, c})
			}
		}
	}
	add("", h.Checks)
	for _, n := range h.Networks {
		add(n.Network, n.Checks)
	}
	slices.SortStableFunc(out, func(a, b problem) int { return cmp.Compare(a.Status, b.Status) }) // critical, warning
	return out
}

func newPart(p Page, n Network) part {
	id := func(r Row) string { return fmt.Sprintf("slot-%s-%s", n.Name, registry.SubnetKey(r.Subnets[0])) }
	out := part{Network: n, Path: "ui/network/" + url.PathEscape(n.Name)}
	out.Subnets = registry.Join(n.Local.Subnets)
	found := []Row{}
	for _, r := range n.Rows {
		out.Counted, out.Tested = out.Counted || r.Counters != nil, out.Tested || r.Path != nil
		if r.State == Held || r.State == Lapsed {
			out.Others++
		}
		if p.Query == "" || r.matches(strings.ToLower(p.Query)) {
			found = append(found, r)
		}
	}
	for _, h := range n.Hosts {
		if h.State != api.Passing && h.State != api.HostUnknown {
			out.Troubled++
		}
	}
	out.Paths = fleet.NewPathTable(n.Hosts)
	shown := fewFleet
	if p.Only != "" {
		shown = fleetShown
		out.Chosen = out.Paths.Detail(p.Path)
		out.Map = newGrid(n.Plan, n.Rows, id)
		out.Spans, out.More = freeSpans(n.Plan, n.Rows, spansShown)
	}
	out.Fleet = n.Hosts[:min(len(n.Hosts), shown)]
	out.Found = len(found)
	out.Full = p.Only != "" || len(n.Rows) <= fewHosts
	from := min(max(p.From, 0), max(len(found)-1, 0))
	from -= from % rowsShown
	for _, r := range found[from:min(from+rowsShown, len(found))] {
		out.Rows = append(out.Rows, newRow(r, id(r)))
	}
	out.paged(p.Query, from)
	return out
}

// paged adds the links to the rows that are not shown.
func (out *part) paged(query string, from int) {
	to := from + len(out.Rows)
	out.Range = fmt.Sprintf("%d to %d of %s", from+1, to, number(uint64(out.Found)))
	link := func(from int) string {
		values := url.Values{"from": {fmt.Sprint(from)}}
		if query != "" {
			values.Set("q", query)
		}
		return "?" + values.Encode()
	}
	if from > 0 {
		out.Earlier = link(max(from-rowsShown, 0))
	}
	if to < out.Found {
		out.Later = link(to)
	}
}

func newRow(r Row, id string) row {
	out := row{Row: r, ID: id}
	if r.Counters != nil {
		for _, n := range r.Counters.Drops {
			out.Drops += n
		}
	}
	return out
}

// matches reports whether a row's identifying fields contain the text, which is in lower case.
func (r Row) matches(text string) bool {
	return strings.Contains(strings.ToLower(r.Node), text) || strings.Contains(r.State.String(), text) ||
		slices.ContainsFunc(r.Subnets, func(s netip.Prefix) bool { return strings.Contains(s.String(), text) }) ||
		slices.ContainsFunc(r.PublicIPs, func(ip netip.Addr) bool { return strings.Contains(ip.String(), text) })
}
