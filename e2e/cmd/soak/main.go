// Soak runs leno's fault suite: agents on three servers of Consul or etcd under random faults, with a checker
// that verifies what leno promises. `make soak` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/program"
	"github.com/lenonet/leno/e2e/soak"
)

func main() { os.Exit(program.Main("soak", run)) }

func run(ctx context.Context, args []string) error {
	o := soak.Defaults()
	flags := flag.NewFlagSet("soak", flag.ExitOnError)
	flags.StringVar(&o.Leno, "leno", "bin/leno", "the leno `binary`")
	flags.StringVar(&o.Consul, "consul", "", "the Consul `binary`; default: as the tests find it")
	flags.StringVar(&o.Etcd, "etcd", "", "the etcd `binary`; default: as the tests find it")
	flags.StringVar(&o.Store, "store", lab.StoreConsul, "`kind` of the store: consul or etcd")
	flags.Uint64Var(&o.Seed, "seed", 0, "`number` that decides on the faults; 0: a random one")
	flags.DurationVar(&o.For, "for", o.For, "how long faults go on, `duration`")
	flags.IntVar(&o.Agents, "agents", o.Agents, "`number` of hosts, each with leno and, with Consul, a client agent")
	flags.IntVar(&o.Carriers, "carriers", o.Carriers, "`number` of them that carry packets")
	flags.DurationVar(&o.Rules.Hold, "hold", o.Rules.Hold, "lease.hold, `duration`")
	flags.StringVar(&o.Keep, "keep", "", "`directory` for all logs and the history when a rule was broken or the run was interrupted")
	rounds := flags.String("rounds", "", "`kinds` of faults on the store and on networks, with commas: \"switch-backend,kill-leader\"; default: all")
	asJSON := flags.String("json", "", "also write the report to this `file`, as JSON")
	check := flags.String("check", "", "make no faults, and check the history in this `file`, which -keep has kept")
	flags.Parse(args) // exits on errors

	if *check != "" {
		h, err := soak.Load(*check)
		if err != nil {
			return err
		}
		return publish(soak.Judge(h), *asJSON)
	}
	_, store, network := soak.Kinds(o.Store)
	for kind := range strings.FieldsFuncSeq(*rounds, func(r rune) bool { return r == ',' }) {
		if !slices.Contains(slices.Concat(store, network), soak.Kind(kind)) {
			return fmt.Errorf("-rounds: there is no fault %q; faults are %v", kind, slices.Concat(store, network))
		}
		o.Rounds = append(o.Rounds, soak.Kind(kind))
	}
	if o.Seed == 0 {
		o.Seed = uint64(rand.Uint32())
	}
	o.Log = os.Stdout
	var err error
	if o.Leno, err = filepath.Abs(o.Leno); err != nil {
		return err
	}
	again := fmt.Sprintf("-store %s -seed %d -for %s -agents %d -carriers %d -hold %s", o.Store, o.Seed, o.For, o.Agents, o.Carriers, o.Rules.Hold)
	if *rounds != "" {
		again += " -rounds " + *rounds
	}
	fmt.Printf("seed %d: the same faults again with %s\n", o.Seed, again)
	report, err := soak.Run(ctx, o)
	// The observations are worth reading however the run ended.
	return errors.Join(publish(report, *asJSON), err)
}

// publish prints a report, and writes it to a file unless file is "". Violations are an error.
func publish(report soak.Report, file string) error {
	err := report.Text(os.Stdout)
	if file != "" {
		err = errors.Join(err, writeJSON(file, report))
	}
	if n := len(report.Violations); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d violations with seed %d", n, report.Seed))
	}
	return err
}

func writeJSON(path string, report soak.Report) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return report.JSON(file)
}
