// Package hosts prints the hosts of a network, and examines them all: it asks each agent that it reaches, and judges
// the others by what they tell the agent of this host.
package hosts

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/plural"
)

// maxReasons is how many hosts have their reason below a table.
const maxReasons = 20

// Failed is how a host is shown whose Consul agent does not answer the others.
const Failed = "failed (consul)"

// column is a column of the table.
type column struct {
	title  string
	common string // what a value is called that all hosts have in common and that needs no column then; "" for none
	cut    bool   // see cli.Column
	of     func(h api.Host) string
}

func columns(now time.Time) []column {
	return []column{
		{"NODE", "", true, func(h api.Host) string { return h.Node }},
		{"HEALTH", "", false, state},
		{"VERSION", "leno", true, func(h api.Host) string {
			if h.Summary == nil || h.Summary.Version == "" {
				return "-"
			}
			return h.Summary.Version
		}},
		{"BACKEND", "backend", true, func(h api.Host) string { return h.Backend }},
		{"PUBLIC IP", "", false, func(h api.Host) string {
			if len(h.PublicIPs) == 0 {
				return "-"
			}
			return h.PublicIPs[0].String()
		}},
		{"MTU", "MTU", false, func(h api.Host) string { return strconv.Itoa(h.MTU) }},
		{"PATHS", "", false, func(h api.Host) string {
			if h.Summary == nil {
				return "-"
			}
			return fmt.Sprintf("%d of %d", h.Summary.Reached, h.Summary.Peers)
		}},
		{"LAST SEEN", "", false, func(h api.Host) string { return lastSeen(h, now) }},
	}
}

func state(h api.Host) string {
	switch h.State {
	case api.HostFailed:
		return Failed
	case api.HostUnknown:
		return "-"
	}
	return h.State
}

func lastSeen(h api.Host, now time.Time) string {
	switch {
	case h.Own:
		return "this host"
	case h.Seen.IsZero():
		return "-"
	}
	return cli.Age(max(now.Sub(h.Seen), 0)) + " ago"
}

// Write prints the hosts of a network with the reasons of those that have a problem. A value that all hosts have in
// common is in the first line instead of a column, unless verbose is set, which also shows the path to each host and
// all reasons.
func Write(w io.Writer, network string, hosts []api.Host, verbose bool, now time.Time) {
	if len(hosts) == 0 {
		cli.Printf(w, "Network %s has no hosts.", network)
		return
	}
	line, problems := fmt.Sprintf("Network %s: %s", network, plural.Count(len(hosts), "host")), 0
	for _, h := range hosts {
		if h.State != api.Passing && h.State != api.HostUnknown {
			problems++
		}
	}
	if problems > 0 {
		line += ", " + plural.Count(problems, "problem")
	}
	var shown []column
	var common []string
	for _, c := range columns(now) {
		if value, ok := same(c, hosts); c.common != "" && ok && !verbose {
			common = append(common, c.common+" "+value)
			continue
		}
		shown = append(shown, c)
	}
	if common != nil {
		line += "; all have " + strings.Join(common, ", ")
	}
	if verbose {
		shown = append(shown, column{"PATH", "", false, func(h api.Host) string { return h.Path.Summary() }})
	}
	cli.WriteNote(w, "", line)
	fmt.Fprintln(w)
	var titles []cli.Column
	for _, c := range shown {
		titles = append(titles, cli.Column{Title: c.title, Cut: c.cut})
	}
	var rows [][]string
	for _, h := range hosts {
		var row []string
		for _, c := range shown {
			row = append(row, c.of(h))
		}
		rows = append(rows, row)
	}
	cli.WriteTable(w, titles, rows)
	writeReasons(w, hosts, verbose)
}

// same returns the value of a column that all hosts have.
func same(c column, hosts []api.Host) (value string, ok bool) {
	value = c.of(hosts[0])
	for _, h := range hosts {
		if c.of(h) != value {
			return "", false
		}
	}
	return value, true
}

// writeReasons prints why hosts have a problem.
func writeReasons(w io.Writer, hosts []api.Host, verbose bool) {
	written := 0
	for _, h := range hosts {
		if h.Reason == "" {
			continue
		}
		if written == 0 {
			fmt.Fprintln(w)
		}
		if written++; written <= maxReasons || verbose {
			cli.WriteNote(w, "", h.Node+": "+h.Reason)
		}
	}
	if more := written - maxReasons; more > 0 && !verbose {
		fmt.Fprintf(w, "And %d more: -verbose prints all reasons.\n", more)
	}
}
