// Measure times leno on a real Consul: how long a start takes, how soon a new lease is a route on
// another host, and how much memory and CPU an agent needs with few and with many peers. `make
// measure` runs it.
//
// Hosts are network namespaces on one machine. All figures except the agent's own log line are
// measured from outside: files, the kernel's tables, /proc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/program"
)

func main() { os.Exit(program.Main("measure", run)) }

// limit ends a run that hangs.
const limit = 90 * time.Minute

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("measure", flag.ExitOnError)
	leno := flags.String("leno", "bin/leno", "the leno `binary`, built without the race detector")
	consul := flags.String("consul", "", "the Consul `binary`; default: as the tests find it")
	runs := flags.Int("runs", 10, "`number` of runs of each measurement")
	many := flags.String("peers", "100,1000,5000", "`numbers` of peers, with commas")
	idle := flags.Duration("idle", time.Minute, "how long an idle agent is watched, `duration`")
	only := flags.String("only", "", "measure one `part` alone: starts, restarts, udp or peers")
	kind := flags.String("backend", "vxlan", "the `backend` of the parts starts and peers: vxlan or wireguard")
	older := flags.String("older", "", "another leno `binary`, to be restarted as and back")
	asJSON := flags.Bool("json", false, "print JSON")
	flags.Parse(args) // exits on errors

	var sizes []int
	for _, text := range strings.FieldsFunc(*many, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPeers {
			return fmt.Errorf("-peers: %q is not a number from 1 to %d", text, maxPeers)
		}
		sizes = append(sizes, n)
	}
	if !slices.Contains([]string{"", "starts", "restarts", "udp", "peers"}, *only) {
		return fmt.Errorf("-only: no part is called %q", *only)
	}
	if !slices.Contains([]string{"vxlan", "wireguard"}, *kind) {
		return fmt.Errorf("-backend: %q is neither vxlan nor wireguard", *kind)
	}
	if *runs < 1 {
		return errors.New("-runs: at least 1")
	}
	if *consul == "" {
		if *consul, err = lab.FindConsul(); err != nil {
			return err
		}
	}
	result, err := newResult(ctx, *leno, *consul)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l, err := lab.New(ctx, lab.Options{Name: "measure", Leno: *leno, Consul: *consul})
	if err != nil {
		return err
	}
	m := &measurement{Lab: l, result: result, runs: *runs, idle: *idle, only: *only, backend: *kind, older: *older, leno: *leno, consul: *consul}
	err = errors.Join(m.all(ctx, sizes), l.Close())
	// Results from before a failure are worth keeping.
	result.finish()
	if *asJSON {
		return errors.Join(err, program.WriteJSON(os.Stdout, result))
	}
	return errors.Join(err, result.table(os.Stdout))
}
