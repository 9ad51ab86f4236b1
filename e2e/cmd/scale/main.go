// Scale measures the cost of leno's registry in a large network: what hosts receive, how much CPU
// Consul's servers and the hosts use, and how soon a change is seen, in comparison with a plain
// watch on the same machine; and how soon hosts that start have leases. `make scale` runs it.
//
// Hosts are registry clients in this process; Consul or etcd is three real servers on loopback.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("scale", start)) }

// limit ends a run that hangs.
const limit = 2 * time.Hour

// options are the command-line options.
type options struct {
	leno     string
	programs map[string]string // by store
	stores   []string
	sizes    []size
	layouts  []layout
	rounds   int
	hosts    int
	rest     bool
	memory   bool
	profile  string
}

func start(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("scale", flag.ExitOnError)
	var o options
	flags.StringVar(&o.leno, "leno", "bin/leno", "the leno `binary`, built without the race detector")
	consul := flags.String("consul", "", "the Consul `binary`; default: as the tests find it")
	etcd := flags.String("etcd", "", "the etcd `binary`; default: as the tests find it")
	stores := flags.String("stores", lab.StoreConsul+","+lab.StoreEtcd, "`names` of the stores, with commas: consul, etcd")
	sizes := flags.String("sizes", "1000/500,5000/200,10000/100", "`leases/watchers`, with commas")
	layouts := flags.String("layouts", "leno,plain,nogzip", "`names` of the ways to watch, with commas")
	flags.IntVar(&o.rounds, "rounds", 3, "`number` of runs of what takes no time")
	flags.IntVar(&o.hosts, "hosts", 1000, "`number` of hosts that start within ten seconds, twice as many within a minute; 0 for none")
	flags.BoolVar(&o.rest, "rest", true, "measure what happens at rest, at the first size")
	flags.BoolVar(&o.memory, "memory", true, "measure memory at each size")
	asJSON := flags.Bool("json", false, "print JSON")
	flags.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the watchers and hosts to this `file`")
	child := flags.String("watch-one", "", "only follow -network at this `address` and print the memory that takes")
	network := flags.String("network", "", "`name` for -watch-one")
	flags.Parse(args) // exits on errors
	if *child != "" {
		return watchOne(ctx, *stores, *child, *network, os.Stdout)
	}

	var err error
	if o.sizes, err = parseSizes(*sizes); err != nil {
		return err
	}
	if o.layouts, err = parseLayouts(*layouts); err != nil {
		return err
	}
	if o.rounds < 1 {
		return errors.New("-rounds: at least 1")
	}
	if *consul == "" {
		if *consul, err = lab.FindConsul(); err != nil {
			return err
		}
	}
	if o.stores = fields(*stores); slices.Contains(o.stores, lab.StoreEtcd) && *etcd == "" {
		if *etcd, err = lab.FindEtcd(); err != nil {
			return err
		}
	}
	o.programs = map[string]string{lab.StoreConsul: *consul, lab.StoreEtcd: *etcd}
	for _, kind := range o.stores {
		if _, ok := o.programs[kind]; !ok {
			return fmt.Errorf("-stores: %q is neither consul nor etcd", kind)
		}
	}
	machine, err := probe.NewMachine(ctx, o.leno, *consul)
	if err != nil {
		return err
	}
	r := &result{Machine: machine}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = all(ctx, o, r)
	r.finish() // results from before an error are shown as well
	if *asJSON {
		return errors.Join(err, program.WriteJSON(os.Stdout, r))
	}
	return errors.Join(err, r.table(os.Stdout))
}

// all measures everything, with one store after the other.
func all(ctx context.Context, o options, r *result) (err error) {
	dir, err := os.MkdirTemp("", "leno-scale-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	begin := time.Now()
	log := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%4.0f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	if o.profile != "" {
		file, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	for _, kind := range o.stores {
		m := &measurement{
			kind:    kind,
			result:  r,
			rounds:  o.rounds,
			burst:   100,
			spread:  10 * time.Second,
			minute:  70 * time.Second,
			layouts: o.layouts,
			log:     log,
		}
		if err := m.all(ctx, o, filepath.Join(dir, kind)); err != nil {
			return err
		}
	}
	return nil
}

// all measures everything with one store.
func (m *measurement) all(ctx context.Context, o options, dir string) (err error) {
	m.log("three servers of %s", m.kind)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if m.kind == lab.StoreEtcd {
		m.store, err = startEtcd(ctx, o.programs[m.kind], dir)
		m.layouts, m.result.prefix = []layout{leno}, "etcd: "
	} else {
		m.store, err = startConsul(ctx, o.programs[m.kind], dir)
	}
	if err != nil {
		return err
	}
	defer m.store.kill()
	for i, s := range o.sizes {
		if err := m.watching(ctx, s, o.rest && i == 0); err != nil {
			return err
		}
	}
	if o.memory {
		program, err := os.Executable()
		if err != nil {
			return err
		}
		for _, s := range o.sizes {
			if err := m.memory(ctx, program, o.leno, dir, s.leases); err != nil {
				return err
			}
		}
	}
	if o.hosts > 0 {
		return m.starts(ctx, o.hosts, 10*time.Second, o.sizes)
	}
	return nil
}

func parseSizes(text string) (sizes []size, err error) {
	for _, part := range fields(text) {
		var s size
		leases, watchers, _ := strings.Cut(part, "/")
		var errs [2]error
		s.leases, errs[0] = strconv.Atoi(leases)
		s.watchers, errs[1] = strconv.Atoi(watchers)
		if err := errors.Join(errs[:]...); err != nil || s.leases < 100 || s.leases > 60000 || s.watchers < 1 {
			return nil, fmt.Errorf("-sizes: %q is not LEASES/WATCHERS with 100 to 60000 leases", part)
		}
		sizes = append(sizes, s)
	}
	return sizes, nil
}

func parseLayouts(text string) (out []layout, err error) {
	for _, name := range fields(text) {
		switch name {
		case "leno":
			out = append(out, leno)
		case "plain":
			out = append(out, plain)
		case "nogzip":
			out = append(out, uncompressed)
		default:
			return nil, fmt.Errorf("-layouts: %q is none of leno, plain, nogzip", name)
		}
	}
	return out, nil
}

func fields(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
