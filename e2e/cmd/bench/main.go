// Bench measures the cost of an overlay: throughput, packets, latency, CPU and memory of leno's
// backends next to the bare wire and other overlays, all on one machine and in one run. `make
// bench` runs it.
//
// Each contender has two hosts of its own: network namespaces connected by a veth pair, each with a
// bridge and a container, as users have them. All contenders are up at the same time and measured
// in turn, round after round, so that other load on the machine affects all of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("bench", start)) }

// options are the command-line options.
type options struct {
	leno, consul string
	names        string // of contenders
	commands     string // of other overlays
	rounds       int
	seconds      int // of each iperf3
	pings        int // of each ping
	masquerade   bool
	short        bool
	out          string
	json         bool
	markdown     bool

	// The following are set by check.
	contenders []string
	peers      []*peer
}

func (o *options) flags() *flag.FlagSet {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.StringVar(&o.leno, "leno", "bin/leno", "the leno `binary`, built without the race detector")
	flags.StringVar(&o.consul, "consul", "", "the Consul `binary`; default: as the tests find it")
	flags.StringVar(&o.names, "contenders", strings.Join(known(), ","), "`names`, with commas")
	flags.StringVar(&o.commands, "peers", "", "other people's overlays, `NAME=COMMAND`, several with ;; or line breaks between")
	flags.IntVar(&o.rounds, "rounds", 5, "`number` of rounds")
	flags.IntVar(&o.seconds, "seconds", 4, "how long each throughput is measured, `number` of seconds")
	flags.IntVar(&o.pings, "pings", 500, "`number` of pings at rest and under load, each")
	flags.BoolVar(&o.masquerade, "masquerade", false, "let leno masquerade what leaves a network, which makes the kernel track connections")
	flags.BoolVar(&o.short, "short", false, "one round as short as can be, to see that all works: its figures say little")
	flags.StringVar(&o.out, "out", "bench", "`directory` for the results; \"\" for none")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	flags.BoolVar(&o.markdown, "markdown", false, "print Markdown, as the documentation has it")
	return flags
}

func start(ctx context.Context, args []string) error {
	var o options
	o.flags().Parse(args) // exits on errors
	if err := o.check(); err != nil {
		return err
	}
	machine, err := probe.NewMachine(ctx, o.leno, o.consul)
	if err != nil {
		return err
	}
	r, err := run(ctx, o, machine, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
	if r == nil {
		return err
	}
	show := r.table
	switch {
	case o.json:
		show = r.json
	case o.markdown:
		show = r.markdown
	}
	// Results from before an error are shown as well, but not saved.
	err = errors.Join(err, show(os.Stdout))
	if err != nil || o.out == "" {
		return err
	}
	return r.save(o.out)
}

// check validates the command line and sets the remaining fields.
func (o *options) check() (err error) {
	if o.short {
		o.rounds, o.seconds, o.pings = 1, 1, 100
	}
	if o.peers, err = parsePeers(o.commands); err != nil {
		return fmt.Errorf("-peers: %w", err)
	}
	seen := map[string]bool{}
	for _, name := range strings.FieldsFunc(o.names, func(r rune) bool { return r == ',' }) {
		if !slices.Contains(known(), name) || seen[name] {
			return fmt.Errorf("-contenders: %q is not one of %s, each at most once", name, strings.Join(known(), ", "))
		}
		seen[name] = true
		o.contenders = append(o.contenders, name)
	}
	if len(o.contenders)+len(o.peers) == 0 {
		return errors.New("-contenders: nobody to measure")
	}
	if o.rounds < 1 || o.seconds < 1 || o.pings < 10 {
		return errors.New("-rounds and -seconds: at least 1, -pings: at least 10")
	}
	if o.leno, err = filepath.Abs(o.leno); err != nil {
		return err
	}
	if o.consul == "" {
		o.consul, err = lab.FindConsul()
	}
	return err
}

// run sets up the contenders and does all rounds. With an error it returns the results so far, if
// there are some for every contender.
func run(ctx context.Context, o options, machine *probe.Machine, log logger) (r *result, err error) {
	b, err := newBench(ctx, o, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	r = newResult(machine, o, b.contenders)
	begin := time.Now()
	for round := range o.rounds {
		for i := range b.contenders {
			// Rotate the order, so that no contender is always the first.
			c := b.contenders[(i+round)%len(b.contenders)]
			got, err := b.measure(ctx, c)
			if err != nil {
				err = fmt.Errorf("%s, round %d: %w", c.name, round+1, err)
				if round == 0 {
					return nil, err
				}
				r.finish()
				return r, err
			}
			r.add(c.name, got)
			log("%4.0f s  round %d of %d  %-10s %s", time.Since(begin).Seconds(), round+1, o.rounds, c.name, got.line())
		}
	}
	r.finish()
	return r, nil
}
