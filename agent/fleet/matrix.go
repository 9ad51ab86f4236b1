package fleet

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/api"
)

// maxCompared bounds the hosts whose paths are compared. Of a larger network they are the first ones, which have
// problems.
const maxCompared = 2000

// Host is a host of a network.
type Host struct {
	api.Host
	Paths    map[netip.Prefix]api.PeerPath // from it, by first subnet, as its agent said when asked; nil: it said nothing
	Findings []api.Finding                 // of its own agent's examination
}

// matrix is what the hosts say of the paths between them.
type matrix struct {
	hosts []Host
	rows  []row
}

// row is what one host says of the paths from it.
type row struct {
	rest  string               // state of the paths to hosts without a cell, "" if it is not known
	cells map[int]api.PeerPath // by index of the other host
}

// newMatrix returns the matrix of the hosts that hold a lease. Names that several hosts have say nothing.
func newMatrix(all []Host) *matrix {
	m := &matrix{}
	bySubnet, byName := map[netip.Prefix]int{}, map[string]int{}
	for _, h := range all {
		if !h.Held || len(h.Subnets) == 0 || len(m.hosts) == maxCompared {
			continue
		}
		i := len(m.hosts)
		bySubnet[h.Subnets[0]] = i
		if _, isTaken := byName[h.Node]; isTaken {
			byName[h.Node] = -1
		} else {
			byName[h.Node] = i
		}
		m.hosts = append(m.hosts, h)
	}
	for i, h := range m.hosts {
		r := row{cells: map[int]api.PeerPath{}}
		switch {
		case h.Own:
			for j, other := range m.hosts {
				if other.Path != nil && j != i {
					r.cells[j] = *other.Path
				}
			}
		case h.Paths != nil:
			for subnet, p := range h.Paths {
				if j, ok := bySubnet[subnet]; ok && j != i {
					r.cells[j] = p
				}
			}
		case isCurrent(h):
			r = m.summarized(i, byName)
		}
		m.rows = append(m.rows, r)
	}
	return m
}

// isCurrent reports whether a host has a summary that it sent with the paths as they are: that of a host whose packets
// are lost is from before.
func isCurrent(h Host) bool {
	return h.Summary != nil && (h.Path == nil || h.Path.State != api.PathLost || h.Summary.At.After(h.Path.Since))
}

// summarized returns the row of host i by its summary, which names a few of the hosts whose paths are not in order.
func (m *matrix) summarized(i int, byName map[string]int) row {
	s, r := m.hosts[i].Summary, row{cells: map[int]api.PeerPath{}}
	add := func(state string, names []string) {
		for _, name := range names {
			if j, ok := byName[name]; ok && j >= 0 && j != i && r.cells[j].State == "" {
				r.cells[j] = api.PeerPath{State: state}
			}
		}
	}
	add(api.PathLost, s.Lost)
	lost := len(r.cells)
	add(api.PathShort, s.Short)
	add(api.PathLossy, s.Lossy)
	switch {
	case s.Peers != len(m.hosts)-1 || len(m.hosts) == maxCompared: // it speaks of others
	case s.Reached == 0 && lost == min(s.Peers, hello.MaxNamed):
		r.rest = api.PathLost
	case s.Peers-s.Reached == lost && s.Impaired == len(r.cells)-lost:
		r.rest = api.PathReached
	}
	return r
}

// at returns what host i says of the path to host j. Its state is "" if that is not known.
func (m *matrix) at(i, j int) api.PeerPath {
	if p, ok := m.rows[i].cells[j]; ok {
		return p
	}
	return api.PeerPath{State: m.rows[i].rest}
}

// graph is one kind of trouble between the hosts.
type graph struct {
	m     *matrix
	known []int          // by host: the others to or from which the state of the path is known
	bad   []map[int]bool // by host: those of them with the trouble, in some direction
}

func newGraph(m *matrix) *graph {
	g := &graph{m: m, known: make([]int, len(m.hosts)), bad: make([]map[int]bool, len(m.hosts))}
	for i := range g.bad {
		g.bad[i] = map[int]bool{}
	}
	return g
}

// graph returns the trouble of one state. Pairs of hosts that a worse one separates are left out.
func (m *matrix) graph(state string) *graph {
	g := newGraph(m)
	for i := range m.hosts {
		for j := i + 1; j < len(m.hosts); j++ {
			there, back := m.at(i, j).State, m.at(j, i).State
			isLost := there == api.PathLost || back == api.PathLost
			if there == "" && back == "" || isLost && state != api.PathLost {
				continue
			}
			g.known[i]++
			g.known[j]++
			if there == state || back == state {
				g.bad[i][j], g.bad[j][i] = true, true
			}
		}
	}
	return g
}

// isComplete reports whether all known pairs of hosts have the trouble, of which more than one host says something.
func (g *graph) isComplete() bool {
	known, bad := 0, 0 // twice, from both hosts of a pair
	for i := range g.bad {
		known, bad = known+g.known[i], bad+len(g.bad[i])
	}
	return known > 2 && bad == known && g.m.sources() > 1
}

// sources returns how many hosts say something.
func (m *matrix) sources() (n int) {
	for i := range m.rows {
		if !m.isSilent(i) {
			n++
		}
	}
	return n
}

// isSilent reports whether a host says nothing of the paths from it.
func (m *matrix) isSilent(i int) bool {
	for _, p := range m.rows[i].cells {
		if p.State != "" {
			return false
		}
	}
	return m.rows[i].rest == ""
}

// drop removes a pair of hosts, whose trouble is explained.
func (g *graph) drop(i, j int) {
	delete(g.bad[i], j)
	delete(g.bad[j], i)
	g.known[i]--
	g.known[j]--
}

// neighbours returns the hosts that host i has the trouble with, in order.
func (g *graph) neighbours(i int) (out []int) {
	for j := range g.bad[i] {
		out = append(out, j)
	}
	slices.Sort(out)
	return out
}

// takeIsolated removes the hosts that have the trouble with all others, each with those others, and returns them with
// what was removed. A host that has it with the only host that says something of it counts if that is this host, which
// is fine with others.
func (g *graph) takeIsolated() map[int][]int {
	out := map[int][]int{}
	for {
		best := -1
		for i := range g.bad {
			n := len(g.bad[i])
			if n == 0 || n < g.known[i] {
				continue
			}
			if n == 1 {
				if only := g.neighbours(i)[0]; !g.m.hosts[only].Own || len(g.bad[only]) == g.known[only] {
					continue
				}
			}
			if best < 0 || n > len(g.bad[best]) {
				best = i
			}
		}
		if best < 0 {
			return out
		}
		out[best] = g.neighbours(best)
		for _, j := range out[best] {
			g.drop(best, j)
		}
	}
}

// takeSplit removes the pairs between groups of hosts that reach hosts of their own group only, and returns the groups,
// the largest first; nil if there is one group. Most pairs between two groups must be known.
func (g *graph) takeSplit() [][]int {
	groups := g.groups()
	if len(groups) < 2 {
		return nil
	}
	first := groups[0]
	separate := [][]int{first}
	for _, other := range groups[1:] {
		lost := 0
		for _, i := range first {
			for _, j := range other {
				if g.bad[i][j] {
					lost++
				}
			}
		}
		if len(other) > 1 && 2*lost >= len(first)*len(other) {
			separate = append(separate, other)
		}
	}
	if len(separate) < 2 {
		return nil
	}
	for n, group := range separate {
		for _, other := range separate[n+1:] {
			for _, i := range group {
				for _, j := range other {
					if g.bad[i][j] {
						g.drop(i, j)
					}
				}
			}
		}
	}
	return separate
}

// groups returns the groups of hosts that are connected by pairs without the trouble, the largest first.
func (g *graph) groups() (out [][]int) {
	group := make([]int, len(g.bad)) // of each host, 0 for none yet
	for start := range g.bad {
		if group[start] != 0 || g.known[start] == 0 {
			continue
		}
		out = append(out, nil)
		queue := []int{start}
		group[start] = len(out)
		for len(queue) > 0 {
			i := queue[0]
			queue = queue[1:]
			out[len(out)-1] = append(out[len(out)-1], i)
			for j := range g.bad {
				if group[j] != 0 || g.known[j] == 0 || g.bad[i][j] || g.m.at(i, j).State == "" && g.m.at(j, i).State == "" {
					continue
				}
				group[j] = len(out)
				queue = append(queue, j)
			}
		}
	}
	for _, hosts := range out {
		slices.Sort(hosts)
	}
	slices.SortStableFunc(out, func(a, b []int) int { return cmp.Compare(len(b), len(a)) })
	return out
}

// takeStar removes the host that has the trouble with the most others, with these, and reports false if there is none.
func (g *graph) takeStar() (host int, others []int, ok bool) {
	for i := range g.bad {
		if len(g.bad[i]) > len(g.bad[host]) {
			host = i
		}
	}
	if len(g.bad) == 0 || len(g.bad[host]) == 0 {
		return 0, nil, false
	}
	others = g.neighbours(host)
	for _, j := range others {
		g.drop(host, j)
	}
	return host, others, true
}
