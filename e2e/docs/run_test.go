package docs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// docHosts are the hosts of the documentation, with the values that make their lines in its tables
// the same in each run.
var docHosts = []struct{ nodeID, subnet string }{
	{"6f1c9d1e-5c3e-4d0b-8a55-0f6f5a6f3d2a", "34"},
	{"0a7b2f64-93d1-4c1e-b6a8-5d2e7f30c9b1", "77"},
	{"c4e8d05b-217f-4f9a-9e63-81b7a2d4f60e", "201"},
}

// TestDocumentationCommands runs every command that the documentation shows, in order, on host-a of
// three hosts that each have a Consul agent. Commands of blocks that start an agent run on all
// three, and -dev runs on a machine without Consul. The output that a console block shows must
// match.
func TestDocumentationCommands(t *testing.T) {
	w := world.New(t, lab.Options{Hosts: 4})
	r := &reader{w: w, alone: newMachine(w, w.Hosts[3])}
	_, err := r.alone.run("install bin/leno /usr/local/bin/")
	w.Must(err)
	var starts errgroup.Group
	for i, h := range w.Hosts[:3] {
		m := newMachine(w, h)
		m.write("var-lib/leno/node-id", docHosts[i].nodeID+"\n", 0o644)
		r.prefer(m, "10.6."+docHosts[i].subnet+".1/24", "blue")
		r.prefer(m, "10.5."+docHosts[i].subnet+".1/24", "default")
		r.machines = append(r.machines, m)
		starts.Go(func() error { return h.StartConsul(w.Ctx) })
	}
	w.Must(starts.Wait())
	for _, b := range docpages.AllBlocks(t) {
		if b.Page != docpages.Path("getting-started") { // run by TestGettingStarted
			r.read(b)
		}
	}
	if r.commands < 25 {
		t.Errorf("only %d commands were run: are they still found?", r.commands)
	}
}

// A reader follows the documentation.
type reader struct {
	w        *world.World
	machines []*machine
	alone    *machine
	commands int
}

// prefer makes the machine ask for a subnet by creating the subnet file of an earlier lease.
func (r *reader) prefer(m *machine, gateway, network string) {
	r.w.T.Helper()
	m.write("run/leno/"+network+".env", "LENO_SUBNET="+gateway+"\n", 0o644)
}

func (r *reader) read(b docpages.Block) {
	r.w.T.Helper()
	switch {
	case b.NoRun != "" || b.Generated != "" || b.Copies():
	case b.Title != "":
		path := strings.TrimPrefix(b.Title, "/")
		if path == b.Title {
			path = "source/" + path
		}
		machines := r.machines[:1]
		if r.machines[0].agent == nil {
			machines = r.machines // no agent starts without a configuration
		}
		for _, m := range machines {
			m.write(path, b.Text, 0o644)
		}
	case b.Kind == "sh", b.Kind == "console":
		agents := strings.Contains(b.Text, "leno agent -config")
		for _, s := range steps(b) {
			r.commands++
			r.step(b, s, agents)
		}
		if r.machines[0].agent != nil {
			r.mend()
		}
		if strings.Contains(b.Text, "leno lease revoke") || strings.Contains(b.Text, "-X DELETE") && strings.Contains(b.Text, "/lease/") {
			r.moveBack(1)
		}
	}
}

// A step is a command line and the output that the page shows for it.
type step struct{ line, output string }

// steps returns the commands of a block: its lines, or those after "$ ".
func steps(b docpages.Block) []step {
	var out []step
	text := joined(strings.TrimSuffix(b.Text, "\n"))
	for _, line := range strings.Split(text, "\n") {
		command, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case b.Kind == "sh" && strings.TrimSpace(line) != "":
			out = append(out, step{line: line})
		case b.Kind == "console" && prompt:
			out = append(out, step{line: command})
		case b.Kind == "console" && len(out) > 0:
			out[len(out)-1].output += line + "\n"
		}
	}
	return out
}

// joined returns text with lines that end in a backslash joined to the next.
func joined(text string) string { return strings.ReplaceAll(text, "\\\n", " ") }

func (r *reader) step(b docpages.Block, s step, everywhere bool) {
	r.w.T.Helper()
	machines := r.machines[:1]
	switch {
	case strings.Contains(s.line, "leno agent -dev"):
		r.alone.startAgent(s.line)
		r.w.Must(r.alone.agent.Stop(r.w.Ctx))
		return
	case everywhere:
		machines = r.machines
	}
	for _, m := range machines {
		if strings.Contains(s.line, "leno agent ") {
			m.startAgent(s.line)
			continue
		}
		line := s.line
		if b.Kind == "sh" { // the output is not checked
			line = strings.ReplaceAll(line, "curl -s", "curl -s --fail-with-body")
		}
		if err := r.outcome(m, b, line, s.output); err != nil {
			r.w.T.Errorf("%s: $ %s\n%v", b, s.line, err)
		}
	}
}

// reads matches commands that change nothing. They may be repeated until they show what the page shows: what an earlier
// command changed takes a moment.
var reads = regexp.MustCompile(`^(sudo )?(leno (status|peers|events|(lease|network|reservation) (list|show))\b|curl -s(S?) (--fail-with-body )?'?http|cat |ip (-\S+ )*\S+ show\b)`)

// outcome runs a line and returns an error if it fails, or if its output differs from that in a console block.
func (r *reader) outcome(m *machine, b docpages.Block, line, output string) error {
	once := func(context.Context) error {
		got, err := m.run(line)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, got)
		}
		if diff := compare(output, joined(got)); b.Kind == "console" && diff != "" {
			return fmt.Errorf("(-page +is):\n%s\nwhole:\n%s", diff, got)
		}
		return nil
	}
	if !reads.MatchString(line) {
		return once(r.w.Ctx)
	}
	ctx, cancel := context.WithTimeout(r.w.Ctx, time.Minute)
	defer cancel()
	return lab.WaitFor(ctx, "the page's output", once)
}

// mend blocks until all hosts are healthy again. If a command made host-a leave the network, host-a
// joins it again.
func (r *reader) mend() {
	r.w.T.Helper()
	if r.machines[0].ready(r.w.Ctx) != nil {
		r.prefer(r.machines[0], "10.5."+docHosts[0].subnet+".1/24", "default")
		if out, err := r.machines[0].run("leno reload"); err != nil {
			r.w.T.Fatal(err, out)
		}
	}
	for _, m := range r.machines {
		r.w.Must(m.agent.WaitFor(r.w.Ctx, m.Name+" to be well", func(ctx context.Context) error { return r.well(ctx, m) }))
	}
}

// moveBack returns a machine whose lease was revoked to the subnet that the following pages show.
func (r *reader) moveBack(i int) {
	r.w.T.Helper()
	m, subnet := r.machines[i], "10.5."+docHosts[i].subnet+".0/24"
	now := func(ctx context.Context) string {
		var n api.Network
		if err := world.GetJSON(ctx, m.Host, "/v1/network/default", &n); err != nil || n.Local == nil {
			return fmt.Sprintf("%+v, %v", n.Local, err)
		}
		return fmt.Sprint(n.Local.Subnets)
	}
	for _, line := range []string{
		"leno reservation add -node=" + m.Name + " default " + subnet,
		"leno lease revoke default " + strings.Trim(now(r.w.Ctx), "[]"),
	} {
		if out, err := r.machines[0].run(line); err != nil {
			r.w.T.Fatal(line, out, err)
		}
	}
	r.w.Must(m.agent.WaitFor(r.w.Ctx, m.Name+" to be back", func(ctx context.Context) error {
		if got := now(ctx); got != "["+subnet+"]" {
			return errors.New(got)
		}
		return nil
	}))
	r.mend()
	if out, err := r.machines[0].run("leno reservation remove default " + subnet); err != nil {
		r.w.T.Fatal(out, err)
	}
}

// well returns an error unless a machine is ready, follows the definition as it is in Consul, holds
// its lease there, and has the other machines as peers.
func (r *reader) well(ctx context.Context, m *machine) error {
	if err := m.ready(ctx); err != nil {
		return err
	}
	var n api.Network
	var list api.NetworkList
	if err := errors.Join(world.GetJSON(ctx, m.Host, "/v1/network/default", &n), world.GetJSON(ctx, m.Host, "/v1/networks", &list)); err != nil {
		return err
	}
	if n.Local == nil || len(n.Local.Subnets) == 0 || n.Local.Peers != len(r.machines)-1 || len(list.Networks) == 0 {
		return fmt.Errorf("%+v, %d networks", n.Local, len(list.Networks))
	}
	kv := r.w.Consul.Client().KV()
	defined, _, err := kv.Get("leno/networks/default", nil)
	if err != nil || defined == nil || defined.ModifyIndex != n.ModifyIndex {
		return fmt.Errorf("definition of version %d, in Consul %+v, %v", n.ModifyIndex, defined, err)
	}
	lease, _, err := kv.Get(world.LeaseKey("default", n.Local.Subnets[0]), nil)
	if err != nil || lease == nil || lease.Session == "" || !strings.Contains(string(lease.Value), `"`+m.Name+`"`) {
		return fmt.Errorf("lease of %s: %+v, %v", n.Local.Subnets[0], lease, err)
	}
	return nil
}

// compare returns the difference between the output on a page and that of a command, or "". It
// ignores values that differ in each run and the width of columns. A line "..." on the page stands
// for all lines that follow.
func compare(want, got string) string {
	var a, b any
	if json.Unmarshal([]byte(want), &a) == nil && json.Unmarshal([]byte(got), &b) == nil {
		return cmp.Diff(steady(a), steady(b))
	}
	lines := func(text string) (out []string) {
		text = kernel.ReplaceAllString(text, "Linux … with the driver …") // its length decides where the line is wrapped
		for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
			out = append(out, strings.Join(strings.Fields(passing.ReplaceAllString(line, "$1…")), " "))
		}
		return out
	}
	wanted, have := lines(want), lines(got)
	if n := len(wanted) - 1; wanted[n] == "..." && len(have) > n {
		wanted, have = wanted[:n], have[:n]
	}
	return cmp.Diff(wanted, have)
}

// passing matches the values that differ in each run.
var passing = regexp.MustCompile(`(\bpid |\bup |\bleno |\biptables v|Modify index +)\d[^\s,]*|\b\d+[dhms]\w* ago|\b\d+\.\d+ ms|\b[\d.]+ [KMG]?i?B\b|\b\d+ warnings?|\btime \d+ms|\(\d\S*s\)`)

// kernel matches the kernel and the driver in the note about checksum offload.
var kernel = regexp.MustCompile(`Linux \S+\s+with\s+the\s+driver\s+\S+`)

// steady replaces the values in JSON that differ in each run.
func steady(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			switch key {
			case "modify_index", "revision", "since", "applied", "renewed", "started", "pid", "totals":
				v[key] = "…"
			default:
				v[key] = steady(v[key])
			}
		}
	case []any:
		for i := range v {
			v[i] = steady(v[i])
		}
	}
	return v
}
