package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/plural"
	"github.com/lenonet/leno/registry"
)

// maxRows is how many hosts have a row and a column of a PathTable.
const maxRows = 60

// PathTable says which hosts reach which: this host by its own tests, the others by their summaries. In a network of
// more than maxRows hosts, only those with a fault have a row and a column, and a last row and column stand for all
// others.
type PathTable struct {
	Rows   []PathRow // by name; none if no host says anything, or if none of many has a fault
	Faulty int       // hosts with a fault, of which maxRows have a row; 0 if all hosts have one
	Fine   int       // hosts without a row, no fault of which is known
	Silent int       // hosts without a row that say nothing
	Left   int       // hosts that are not compared

	m *matrix
}

// PathRow is what one host says of the paths from it.
type PathRow struct {
	Node     string // "" for the hosts without a row
	Key      string // identifies the host
	Own      bool
	IsSilent bool // it says nothing
	Cells    []PathCell
}

// PathCell is what a host says of the path to another.
type PathCell struct {
	State string // of the path; "" if it is not known
	Text  string // describes the path, or how many of several reach
	Of    string // what Detail explains; "" if there is no path
}

// PathDetail explains a cell, or a row as a whole.
type PathDetail struct {
	From, To string
	Tried    string    // how the path is tested
	At       time.Time // when that was, or when this host was told
	Saw      string
	Command  string // to run next
	Where    string // the host to run it on
}

// NewPathTable returns the table of the hosts that hold a lease.
func NewPathTable(hosts []api.Host) PathTable {
	all := make([]Host, 0, len(hosts))
	for _, h := range hosts {
		if h.Held && len(h.Subnets) > 0 {
			all = append(all, Host{Host: h})
		}
	}
	t := PathTable{m: newMatrix(all)}
	if len(t.m.hosts) < 2 || t.m.sources() == 0 {
		return t
	}
	t.Left = len(all) - len(t.m.hosts)
	shown, others := t.m.all(), []int(nil)
	if len(shown) > maxRows {
		shown, others = t.divide()
	}
	slices.SortFunc(shown, func(i, j int) int {
		return cmp.Or(strings.Compare(t.m.hosts[i].Node, t.m.hosts[j].Node), strings.Compare(t.key(i), t.key(j)))
	})
	for _, i := range shown {
		h := t.m.hosts[i]
		row := PathRow{Node: h.Node, Key: t.key(i), Own: h.Own, IsSilent: t.m.isSilent(i)}
		for _, j := range shown {
			row.Cells = append(row.Cells, t.cell(i, j))
		}
		if len(others) > 0 {
			row.Cells = append(row.Cells, t.total(between([]int{i}, others), row.Key))
		}
		t.Rows = append(t.Rows, row)
	}
	if len(others) > 0 && len(shown) > 0 {
		last := PathRow{}
		for _, j := range shown {
			last.Cells = append(last.Cells, t.total(between(others, []int{j}), "_"+t.key(j)))
		}
		last.Cells = append(last.Cells, PathCell{})
		t.Rows = append(t.Rows, last)
	}
	return t
}

// divide returns the hosts of a large network that have a row, and counts the others.
func (t *PathTable) divide() (shown, others []int) {
	faulty := t.m.faulty()
	t.Faulty, shown = len(faulty), faulty[:min(len(faulty), maxRows)]
	for i := range t.m.hosts {
		switch {
		case slices.Contains(shown, i):
			continue
		case slices.Contains(faulty, i):
		case t.m.isSilent(i):
			t.Silent++
		default:
			t.Fine++
		}
		others = append(others, i)
	}
	return shown, others
}

// faulty returns the fewest hosts, as far as that is easy to find, without which no path with a fault is left: first
// those that reach no other or that no other reaches, then those with faults to or from the most others.
func (m *matrix) faulty() (out []int) {
	g, isolated := newGraph(m), m.graph(api.PathLost).takeIsolated()
	for i, r := range m.rows {
		if isolated[i] != nil {
			out = append(out, i)
			continue
		}
		for j, p := range r.cells {
			if p.State != "" && p.State != api.PathReached && isolated[j] == nil {
				g.bad[i][j], g.bad[j][i] = true, true
			}
		}
	}
	for {
		i, others, ok := g.takeStar()
		if !ok {
			return out
		}
		out = append(out, i)
		if len(others) == 1 { // either of them may be the cause
			out = append(out, others[0])
		}
	}
}

func (t PathTable) key(i int) string { return registry.SubnetKey(t.m.hosts[i].Subnets[0]) }

func (t PathTable) cell(i, j int) PathCell {
	if i == j {
		return PathCell{}
	}
	p := t.m.at(i, j)
	text := cmp.Or(p.State, "?")
	switch {
	case p.State == api.PathReached && p.RTT > 0:
		text = fmt.Sprintf("%.1f ms", 1000*p.RTT)
	case p.State == api.PathReached:
		text = "✓"
	case p.State == api.PathLossy && p.Loss > 0: // it is not known of a path between other hosts
		text = fmt.Sprintf("lossy, %.0f %%", 100*p.Loss)
	}
	return PathCell{p.State, text, t.key(i) + "_" + t.key(j)}
}

// total returns one cell for many paths.
func (t PathTable) total(paths []pair, of string) PathCell {
	fine, bad := 0, 0
	for _, p := range paths {
		switch t.m.at(p.a, p.b).State {
		case "":
		case api.PathReached:
			fine++
		default:
			bad++
		}
	}
	out := PathCell{Of: of, Text: fmt.Sprintf("%d of %d", fine, fine+bad)}
	switch {
	case fine+bad == 0:
		out.Text = "?"
	case fine == 0:
		out.State = api.PathLost
	case bad > 0:
		out.State = api.PathLossy
	default:
		out.State = api.PathReached
	}
	if unknown := len(paths) - fine - bad; unknown > 0 && fine+bad > 0 {
		out.Text += fmt.Sprintf(", %d ?", unknown)
	}
	return out
}

// Detail explains a cell by its Of, or a row by its Key. It returns nil if there is none.
func (t PathTable) Detail(of string) *PathDetail {
	if of == "" {
		return nil
	}
	from, to, _ := strings.Cut(of, "_")
	i, j := t.find(from), t.find(to)
	switch {
	case i >= 0 && j >= 0 && i != j:
		return t.explain(i, j)
	case i >= 0 && to == "":
		d := t.explain(i, i)
		d.To, d.Command = "all other hosts", "leno doctor"
		if s := t.m.hosts[i].Summary; s != nil && !t.m.isSilent(i) {
			d.Saw = join(fmt.Sprintf("%d of %s %s reached", s.Reached, plural.Count(s.Peers, "host"),
				plural.Form(s.Peers, "is", "are")), describeLoss(s))
		}
		return d
	case j >= 0 && from == "" && len(t.m.hosts) > maxRows:
		return t.explainTo(j)
	}
	return nil
}

// find returns the host with a key, -1 for none.
func (t PathTable) find(key string) int {
	return slices.IndexFunc(t.m.all(), func(i int) bool { return t.key(i) == key })
}

// describeLoss says to which hosts packets are lost by a host's summary, "" for none.
func describeLoss(s *api.HostSummary) string {
	var out []string
	for _, part := range []struct {
		packets string
		to      []string
	}{{"packets", s.Lost}, {"full-size packets", s.Short}, {"some packets", s.Lossy}} {
		if len(part.to) > 0 {
			out = append(out, fmt.Sprintf("%s to %s are lost", part.packets, words(part.to)))
		}
	}
	return strings.Join(out, ", ")
}

// explain explains what host i says of the path to host j.
func (t PathTable) explain(i, j int) *PathDetail {
	a, b, p := t.m.hosts[i], t.m.hosts[j].Node, t.m.at(i, j)
	d := &PathDetail{From: a.Node, To: b, Where: a.Node, Saw: cmp.Or(p.State, "nothing is known"), Command: "leno doctor"}
	if p.State == api.PathReached {
		d.Command = "sudo leno trace SOURCE DESTINATION"
	}
	switch s := a.Summary; {
	case a.Own:
		d.Tried, d.At = "this host sends test packets through the overlay", p.Tested
		if p.State != "" {
			d.Saw = join(p.Summary(), p.Reason)
		}
	case s == nil:
		d.Tried = a.Node + " has not sent a summary"
	case !isCurrent(a):
		d.Tried, d.At = "the last summary from "+a.Node+" is older than the loss", s.At
	default:
		d.Tried, d.At = "summary sent by "+a.Node, s.At
		if p.State == "" {
			d.Saw = fmt.Sprintf("it reaches %d of %s; its summary does not list %s", s.Reached,
				plural.Count(s.Peers, "host"), b)
		}
	}
	return d
}

// explainTo explains what all other hosts say of the paths to host j.
func (t PathTable) explainTo(j int) *PathDetail {
	reached, unknown := 0, 0
	var bad []string
	for i := range t.m.hosts {
		switch state := t.m.at(i, j).State; {
		case i == j:
		case state == "":
			unknown++
		case state == api.PathReached:
			reached++
		default:
			bad = append(bad, t.m.hosts[i].Node)
		}
	}
	d := &PathDetail{From: "all other hosts", To: t.m.hosts[j].Node, Tried: "all hosts test their paths themselves",
		Command: "leno doctor -all"}
	d.Saw = fmt.Sprintf("reached by %s, unknown for %d, faulty from %d", plural.Count(reached, "host"), unknown, len(bad))
	if len(bad) > 0 {
		d.Saw += ": " + words(bad)
	}
	return d
}
