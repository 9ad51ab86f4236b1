// Demo lays out three hosts with a container each and a server of Consul or etcd, runs leno on the
// hosts, and shows that packets cross, also while the store or an agent is dead, and while the network is switched to
// another backend. `make demo` runs it, and `make recording` creates a picture of it.
package main

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/mattn/go-isatty"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("demo", run)) }

// limit is far more than a demo takes. It ends a demo that hangs.
const limit = 3 * time.Minute

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	leno := flags.String("leno", "bin/leno", "the leno `binary`")
	next := flags.String("next", "", "the leno `binary` that an agent is upgraded to; default: the same")
	consul := flags.String("consul", "", "the Consul `binary`; default: as the tests find it")
	etcd := flags.String("etcd", "", "the etcd `binary`; default: as the tests find it")
	store := flags.String("store", lab.StoreConsul, "`kind` of the store: consul or etcd")
	backend := flags.String("backend", "vxlan", "`type` of the backend: vxlan, host-gw, udp or wireguard")
	keep := flags.Bool("keep", os.Getenv("KEEP") == "1", "leave the lab up at the end; also KEEP=1")
	teardown := flags.String("teardown", "", "only remove the lab with this `id`, which -keep left up")
	flags.Parse(args) // exits on errors

	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if *teardown != "" {
		return lab.Teardown(ctx, *teardown)
	}
	d := &demo{out: os.Stdout, styles: newStyles(colours(os.Stdout)), backend: *backend, next: *next, away: time.Second}
	return d.run(ctx, lab.Options{
		Name:   "demo",
		Leno:   *leno,
		Store:  *store,
		Consul: *consul,
		Etcd:   *etcd,
		Detach: *keep,
	})
}

// colours reports whether the output goes to a terminal whose user wants colours.
func colours(f *os.File) bool {
	return isatty.IsTerminal(f.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
