package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// maxRows is how many hosts have a row and a column of a PathTable.
const maxRows = 60

// PathTable says which hosts reach which: this host by its own tests, the others by their summaries. In a network of more
// than maxRows hosts, only those with a fault have a row and a column, and a last row and column stand for all others.
type PathTable struct {
	Rows   []PathRow // by name; none if nobody says anything, or if there are many hosts and no fault
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
		return cmp.Or(strings.Compare(t.m.hosts[i].Node, t.m.hosts[j].Node), strings.Compare(t.m.key(i), t.m.key(j)))
	})
	for _, i := range shown {
		h := t.m.hosts[i]
		row := PathRow{Node: h.Node, Key: t.m.key(i), Own: h.Own, IsSilent: t.m.isSilent(i)}
		for _, j := range shown {
			row.Cells = append(row.Cells, t.m.cell(i, j))
		}
		if len(others) > 0 {
			row.Cells = append(row.Cells, t.m.total(between([]int{i}, others), row.Key))
		}
		t.Rows = append(t.Rows, row)
	}
	if len(others) > 0 && len(shown) > 0 {
		last := PathRow{}
		for _, j := range shown {
			last.Cells = append(last.Cells, t.m.total(between(others, []int{j}), "_"+t.m.key(j)))
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

// faulty returns the fewest hosts, as far as that is easy to find, without which no path with a fault is left: first those
// that reach no other, then those with faults to or from the most others.
func (m *matrix) faulty() (out []int) {
	g := newGraph(m)
	for i, r := range m.rows {
		if r.rest == api.PathLost {
			out = append(out, i)
			continue
		}
		for j, p := range r.cells {
			if p.State != "" && p.State != api.PathReached && m.rows[j].rest != api.PathLost {
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

func (m *matrix) key(i int) string { return registry.SubnetKey(m.hosts[i].Subnets[0]) }

func (m *matrix) cell(i, j int) PathCell {
	if i == j {
		return PathCell{}
	}
	p := m.at(i, j)
	text := cmp.Or(p.State, "?")
	switch {
	case p.State == api.PathReached && p.RTT > 0:
		text = fmt.Sprintf("%.1f ms", 1000*p.RTT)
	case p.State == api.PathReached:
		text = "✓"
	case p.State == api.PathLossy:
		text = fmt.Sprintf("lossy, %.0f %%", 100*p.Loss)
	}
	return PathCell{p.State, text, m.key(i) + "_" + m.key(j)}
}

// total returns one cell for many paths.
func (m *matrix) total(paths []pair, of string) PathCell {
	fine, bad := 0, 0
	for _, p := range paths {
		switch m.at(p.a, p.b).State {
		case "":
		case api.PathReached:
			fine++
		default:
			bad++
		}
	}
	out := PathCell{Of: of, Text: fmt.Sprintf("%d of %d", fine, len(paths))}
	switch {
	case bad > 0 && fine == 0:
		out.State = api.PathLost
	case bad > 0:
		out.State = api.PathLossy
	case fine > 0:
		out.State = api.PathReached
	}
	return out
}

// Detail explains a cell by its Of, or a row by its Key. It returns nil if there is none.
func (t PathTable) Detail(of string) *PathDetail {
	from, to, _ := strings.Cut(of, "_")
	i, j := t.m.find(from), t.m.find(to)
	switch {
	case i >= 0 && j >= 0 && i != j:
		return t.m.explain(i, j)
	case i >= 0 && to == "":
		d := t.m.explain(i, i)
		d.To, d.Command = "all other hosts", "leno doctor"
		if s := t.m.hosts[i].Summary; s != nil && !t.m.isSilent(i) {
			d.Saw = join(fmt.Sprintf("%d of %d hosts are reached", s.Reached, s.Peers), lostNames(s.Lost))
		}
		return d
	case j >= 0 && from == "" && len(t.m.hosts) > maxRows:
		return t.m.explainTo(j)
	}
	return nil
}

// find returns the host with a key, -1 for none.
func (m *matrix) find(key string) int {
	return slices.IndexFunc(m.all(), func(i int) bool { return m.key(i) == key })
}

func lostNames(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "packets to " + words(names) + " are lost"
}

// explain explains what host i says of the path to host j.
func (m *matrix) explain(i, j int) *PathDetail {
	a, b, p := m.hosts[i], m.hosts[j].Node, m.at(i, j)
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
		d.Tried = a.Node + " has told this host nothing"
	case !isCurrent(a):
		d.Tried, d.At = "what "+a.Node+" said is from before packets to it were lost", s.At
	default:
		d.Tried, d.At = a.Node+" tests its paths itself, and has told this host what it found", s.At
		if p.State == "" {
			d.Saw = fmt.Sprintf("it reaches %d of %d hosts, and does not say whether %s is one of them", s.Reached, s.Peers, b)
		}
	}
	return d
}

// explainTo explains what all other hosts say of the paths to host j.
func (m *matrix) explainTo(j int) *PathDetail {
	counts := map[string]int{}
	var lost []string
	for i := range m.hosts {
		if i == j {
			continue
		}
		state := m.at(i, j).State
		counts[state]++
		if state == api.PathLost {
			lost = append(lost, m.hosts[i].Node)
		}
	}
	d := &PathDetail{From: "all other hosts", To: m.hosts[j].Node, Tried: "all hosts test their paths themselves", Command: "leno doctor -all"}
	d.Saw = fmt.Sprintf("reached from %d, lost from %d, not known from %d hosts", counts[api.PathReached], counts[api.PathLost], counts[""])
	if len(lost) > 0 {
		d.Saw += "; lost from " + words(lost)
	}
	return d
}
