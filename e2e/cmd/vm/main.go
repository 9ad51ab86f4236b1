// Command vm runs virtual machines on one link for manual work, until Ctrl-C. `make vm` builds and
// runs it.
//
//	vm [-kernel NAME] [-machines N] [-consul] [-deb FILE]
//	vm console FILE      connects this terminal with a machine's console, a socket that vm prints
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/program"
	"github.com/lenonet/leno/e2e/vm"
)

func main() { os.Exit(program.Main("vm", run)) }

func run(ctx context.Context, args []string) (err error) {
	if len(args) == 2 && args[0] == "console" {
		return console(ctx, args[1])
	}
	flags := flag.NewFlagSet("vm", flag.ContinueOnError)
	kernel := flags.String("kernel", "6.12", "kernel, a name of tools/get vm-kernel")
	machines := flags.Int("machines", 2, "number of machines")
	consul := flags.Bool("consul", false, "run a Consul server beside the machines")
	deb := flags.String("deb", "", "package to install on the machines")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *machines < 1 || *machines > 26 {
		return fmt.Errorf("1 to 26 machines, not %d", *machines)
	}
	if err := lab.Sweep(ctx); err != nil {
		return err
	}
	l, err := lab.New(ctx, lab.Options{Name: "vm", NoHosts: true, NoConsul: !*consul})
	if err != nil {
		return err
	}
	defer func() {
		if closed := l.Close(); err == nil {
			err = closed
		}
	}()
	group, starting := errgroup.WithContext(ctx)
	for i := range *machines {
		group.Go(func() error { return start(starting, l, fmt.Sprintf("vm-%c", 'a'+i), *kernel, *deb) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if *consul {
		fmt.Printf("Consul: %s\n", l.Consul.Address())
	}
	fmt.Printf("capture packets: ip netns exec %s tcpdump -i br0\nCtrl-C ends all machines\n", l.Switch.Name)
	<-ctx.Done()
	return nil
}

// start boots a machine, installs the package, if any, and prints how to reach the machine.
func start(ctx context.Context, l *lab.Lab, name, kernel, deb string) error {
	o := vm.Options{Name: name, Kernel: kernel, Shell: true}
	if deb != "" {
		o.Files = map[string]string{"leno.deb": deb}
	}
	m, err := vm.Start(ctx, l, o)
	if err != nil {
		return err
	}
	if deb != "" {
		if _, err := m.Run(ctx, "dpkg", "--install", "/mnt/leno.deb"); err != nil {
			return err
		}
	}
	fmt.Printf("%s %s: bin/vm console %s\n", name, m.Addrs[0], filepath.Join(m.Dir, "console.sock"))
	return nil
}
