package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/api"
)

// drawn returns a table of n hosts with a fault as lines: the host, and one sign for each cell.
func drawn(t *testing.T, n int, fault func(h []Host)) (lines []string, table PathTable) {
	t.Helper()
	hosts := newFleet(n)
	fault(hosts)
	plain := make([]api.Host, n)
	for i, h := range hosts {
		plain[i] = h.Host
	}
	table = NewPathTable(plain)
	signs := map[string]string{"": "?", api.PathReached: "+", api.PathLost: "x", api.PathLossy: "~", api.PathShort: "s"}
	for _, r := range table.Rows {
		line := strings.TrimPrefix(r.Node, "host-") + " "
		for _, c := range r.Cells {
			sign := signs[c.State]
			if c.Of == "" {
				sign = "-"
			}
			if strings.Contains(c.Text, " of ") {
				sign += c.Text
			}
			line += sign
		}
		if r.IsSilent {
			line += " silent"
		}
		lines = append(lines, line)
	}
	return lines, table
}

func TestPathTable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what  string
		fault func(h []Host)
		want  []string
	}{
		{"no fault", func([]Host) {}, []string{"1 -+++", "2 +-++", "3 ++-+", "4 +++-"}},
		{"one direction", func(h []Host) { loses(h, 2, 3) }, []string{"1 -+++", "2 +-x+", "3 ++-+", "4 +++-"}},
		{"this host loses", func(h []Host) { loses(h, 1, 4) }, []string{"1 -++x", "2 +-++", "3 ++-+", "4 ???- silent"}},
		{"lossy and short", func(h []Host) { h[1].Path.State, h[2].Path.State = api.PathLossy, api.PathShort },
			[]string{"1 -~s+", "2 +-++", "3 ++-+", "4 +++-"}},
		{"lossy and short between others", func(h []Host) {
			s := h[1].Summary
			s.Impaired, s.Lossy, s.Short = 2, []string{"host-3"}, []string{"host-4"}
		}, []string{"1 -+++", "2 +-~s", "3 ++-+", "4 +++-"}},
		{"lossy to more than it names", func(h []Host) { h[1].Summary.Impaired, h[1].Summary.Lossy = 2, []string{"host-3"} },
			[]string{"1 -+++", "2 ?-~?", "3 ++-+", "4 +++-"}},
		{"lost is worse than lossy", func(h []Host) { loses(h, 2, 3); h[1].Summary.Lossy = []string{"host-3"} },
			[]string{"1 -+++", "2 +-x+", "3 ++-+", "4 +++-"}},
		{"a host says nothing", func(h []Host) { h[2].Summary = nil }, []string{"1 -+++", "2 +-++", "3 ??-? silent", "4 +++-"}},
		{"a host speaks of others", func(h []Host) { h[2].Summary.Peers = 7 }, []string{"1 -+++", "2 +-++", "3 ??-? silent", "4 +++-"}},
		{"it loses one it does not name", func(h []Host) { h[2].Summary.Reached-- }, []string{"1 -+++", "2 +-++", "3 ??-? silent", "4 +++-"}},
		{"a lapsed host", func(h []Host) { h[3].Held = false }, []string{"1 -++", "2 ?-? silent", "3 ??- silent"}},
		{"no host says anything", func(h []Host) {
			for i := range h {
				h[i].Summary, h[i].Path = nil, nil
			}
		}, nil},
		{"a host lies that it reaches no host", func(h []Host) {
			h[1].Summary.Reached, h[1].Summary.Lost = 0, []string{"host-1", "host-3", "host-4"}
		}, []string{"1 -+++", "2 x-xx", "3 ++-+", "4 +++-"}},
		{"it names itself and strangers", func(h []Host) {
			h[1].Summary.Reached, h[1].Summary.Lost = 1, []string{"host-2", "stranger", strings.Repeat("x", 1000)}
		}, []string{"1 -+++", "2 ?-?? silent", "3 ++-+", "4 +++-"}},
	} {
		if got, _ := drawn(t, 4, tt.fault); !cmp.Equal(tt.want, got) {
			t.Errorf("%s: %s", tt.what, cmp.Diff(tt.want, got))
		}
	}
}

// TestPathTableOfManyHosts: only hosts with a fault have a row, and the others are counted.
func TestPathTableOfManyHosts(t *testing.T) {
	t.Parallel()
	type counts struct{ Rows, Faulty, Fine, Silent, Left int }
	for _, tt := range []struct {
		what  string
		hosts int
		fault func(h []Host)
		want  counts
		lines []string
	}{
		{"as many as have rows", maxRows, func([]Host) {}, counts{Rows: maxRows}, nil},
		{"no fault", maxRows + 1, func(h []Host) { h[7].Summary = nil }, counts{Fine: maxRows, Silent: 1}, nil},
		{"one is cut off", 100, func(h []Host) {
			for i := 1; i <= 100; i++ {
				if i != 30 {
					loses(h, i, 30)
				}
			}
			h[29].Summary.At = now.Add(-time.Minute)
		}, counts{2, 1, 99, 0, 0}, []string{"30 -? silent", " x0 of 99-"}},
		{"more are down than a summary names", 100, func(h []Host) {
			for i := 1; i <= 100; i++ {
				for down := 31; down <= 50; down++ {
					if i < 31 || i > 50 {
						loses(h, i, down)
					}
				}
			}
			for i := range h[30:50] {
				h[30+i].Summary.At = now.Add(-time.Minute)
			}
		}, counts{21, 20, 80, 0, 0}, nil},
		{"a pair", 100, func(h []Host) { separate(h, 20, 30) }, counts{3, 2, 98, 0, 0},
			[]string{"20 -x+98 of 98", "30 x-+98 of 98", " +98 of 98+98 of 98-"}},
		{"a host lies about ten", 100, func(h []Host) {
			for i := range hello.MaxNamed {
				loses(h, 50, i+1)
			}
		}, counts{2, 1, 99, 0, 0}, []string{"50 -~89 of 99", " +99 of 99-"}},
		{"it lies about all", 100, func(h []Host) {
			for i := range 100 {
				if i != 49 {
					loses(h, 50, i+1)
				}
			}
		}, counts{2, 1, 99, 0, 0}, []string{"50 -x0 of 99", " +99 of 99-"}},
		{"many pairs", 200, func(h []Host) {
			for i := 10; i < 10+2*maxRows; i += 2 {
				separate(h, i, i+1)
			}
		}, counts{maxRows + 1, 2 * maxRows, 200 - 2*maxRows, 0, 0}, nil},
		{"more than are compared", maxCompared + 5, func([]Host) {}, counts{Fine: 1, Silent: maxCompared - 1, Left: 5}, nil},
	} {
		lines, table := drawn(t, tt.hosts, tt.fault)
		got := counts{len(table.Rows), table.Faulty, table.Fine, table.Silent, table.Left}
		if got != tt.want || tt.lines != nil && !cmp.Equal(tt.lines, lines) {
			t.Errorf("%s: %+v, want %+v %s", tt.what, got, tt.want, cmp.Diff(tt.lines, lines))
		}
		for _, r := range table.Rows {
			if len(r.Cells) != len(table.Rows) || len(r.Cells) > maxRows+1 {
				t.Errorf("%s: %d cells in one of %d rows", tt.what, len(r.Cells), len(table.Rows))
			}
		}
	}
}

// TestPathDetail: each cell and each row says what was tried, what was seen, and what to run.
func TestPathDetail(t *testing.T) {
	t.Parallel()
	faults := func(h []Host) {
		loses(h, 1, 3)
		loses(h, 2, 3)
		h[3].Summary = nil
		h[4].Summary.Reached--
	}
	_, small := drawn(t, 5, faults)
	_, large := drawn(t, maxRows+1, faults)
	key := func(i int) string { return small.key(i - 1) }
	for _, tt := range []struct {
		table    PathTable
		of, want string
	}{
		{small, key(1) + "_" + key(2), "host-1 to host-2: this host sends test packets through the overlay; reached; sudo leno trace SOURCE DESTINATION on host-1"},
		{small, key(1) + "_" + key(3), "host-1 to host-3: this host sends test packets through the overlay; lost: no packet is answered; leno doctor on host-1"},
		{small, key(2) + "_" + key(3), "host-2 to host-3: summary sent by host-2; lost; leno doctor on host-2"},
		{small, key(2) + "_" + key(1), "host-2 to host-1: summary sent by host-2; reached; " +
			"sudo leno trace SOURCE DESTINATION on host-2"},
		{small, key(3) + "_" + key(1), "host-3 to host-1: the last summary from host-3 is older than the loss; nothing is known; leno doctor on host-3"},
		{small, key(4) + "_" + key(1), "host-4 to host-1: host-4 has not sent a summary; nothing is known; leno doctor on host-4"},
		{small, key(5) + "_" + key(1), "host-5 to host-1: summary sent by host-5; " +
			"it reaches 3 of 4 hosts; its summary does not list host-1; leno doctor on host-5"},
		{small, key(2), "host-2 to all other hosts: summary sent by host-2; " +
			"3 of 4 hosts are reached: packets to host-3 are lost; leno doctor on host-2"},
		{small, key(4), "host-4 to all other hosts: host-4 has not sent a summary; nothing is known; leno doctor on host-4"},
		{large, "_" + key(3), "all other hosts to host-3: all hosts test their paths themselves; " +
			"reached by 56 hosts, unknown for 2, faulty from 2: host-1 and host-2; leno doctor -all on "},
		{small, "_" + key(3), ""}, {small, key(2) + "_" + key(2), ""}, {small, "", ""}, {small, "_", ""}, {small, "nobody_" + key(1), ""},
		{small, key(1) + "_" + key(2) + "_" + key(3), ""},
	} {
		got := ""
		if d := tt.table.Detail(tt.of); d != nil {
			got = fmt.Sprintf("%s to %s: %s; %s; %s on %s", d.From, d.To, d.Tried, d.Saw, d.Command, d.Where)
		}
		if got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.of, got, tt.want)
		}
	}
	for _, table := range []PathTable{small, large} { // whatever a cell leads to is there
		for _, r := range table.Rows {
			for _, c := range r.Cells {
				if c.Of != "" && table.Detail(c.Of) == nil {
					t.Errorf("%s has no explanation", c.Of)
				}
			}
		}
	}
}
