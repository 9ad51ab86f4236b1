// Demo lays out three hosts with a container each and one Consul, runs leno on
// the hosts, and shows that packets cross, also while an agent is dead. `make
// demo` runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("demo", run)) }

// limit is far more than a demo takes; it is for a machine where something hangs.
const limit = 3 * time.Minute

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	leno := flags.String("leno", "bin/leno", "the leno `binary`")
	consul := flags.String("consul", "", "the Consul `binary`; default: as the tests find it")
	backend := flags.String("backend", "vxlan", "`type` of the backend: vxlan, host-gw or udp")
	keep := flags.Bool("keep", os.Getenv("KEEP") == "1", "leave the lab up at the end; also KEEP=1")
	teardown := flags.String("teardown", "", "only remove the lab with this `id`, which -keep left up")
	flags.Parse(args) // exits on errors

	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if *teardown != "" {
		return lab.Teardown(ctx, *teardown)
	}
	d := &demo{out: os.Stdout, backend: *backend}
	start := time.Now()
	err := d.lab(ctx, lab.Options{Name: "demo", Leno: *leno, Consul: *consul, Log: indented(os.Stdout), Detach: *keep})
	if err != nil {
		return err
	}
	err = d.show(ctx)
	if *keep {
		d.lookAround()
		return err
	}
	if err != nil {
		// Torn down all the same, but nothing more to tell.
		d.Close()
		return err
	}
	if err := d.end(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nAll good, in %.0f s.\n", time.Since(start).Seconds())
	return nil
}
