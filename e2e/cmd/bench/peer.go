package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// A peer is another overlay: a shell command that runs once on each host.
type peer struct {
	name, command string
	// limit is the time until the containers must reach each other.
	limit time.Duration

	processes []*lab.Process
}

const peerLimit = 30 * time.Second

// parsePeers reads name=command entries, separated by newlines or ;;. Names of other contenders are
// refused.
func parsePeers(text string) (out []*peer, err error) {
	name := regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,11}$`)
	taken := known()
	for _, one := range strings.Split(strings.ReplaceAll(text, ";;", "\n"), "\n") {
		one = strings.TrimSpace(one)
		if one == "" {
			continue
		}
		p := &peer{limit: peerLimit}
		p.name, p.command, _ = strings.Cut(one, "=")
		p.name, p.command = strings.TrimSpace(p.name), strings.TrimSpace(p.command)
		switch {
		case !name.MatchString(p.name) || p.command == "":
			return nil, fmt.Errorf("%q is not NAME=COMMAND, the name of 1 to 12 small letters, digits and -", one)
		case slices.Contains(taken, p.name):
			return nil, fmt.Errorf("there is a contender %s already", p.name)
		}
		taken = append(taken, p.name)
		out = append(out, p)
	}
	return out, nil
}

// peerNetwork and peerSubnets are the addresses of a network that leno does not lease from.
var (
	peerNetwork = netip.MustParsePrefix("10.5.0.0/16")
	peerSubnets = [2]netip.Prefix{netip.MustParsePrefix("10.5.1.1/24"), netip.MustParsePrefix("10.5.2.1/24")}
)

// environment returns all variables for the command on host i, 0 or 1.
func (p *peer) environment(i int, wire *lab.Wire, dir string) []string {
	other := 1 - i
	return []string{
		"LENO_BENCH_HOST=" + strconv.Itoa(i+1),
		"LENO_BENCH_INTERFACE=" + wire.Device,
		"LENO_BENCH_INTERFACE_MTU=" + strconv.Itoa(wire.MTU),
		"LENO_BENCH_ADDRESS=" + wire.Addrs[i][0].String(),
		"LENO_BENCH_PEER_ADDRESS=" + wire.Addrs[other][0].String(),
		"LENO_BENCH_NETWORK=" + peerNetwork.String(),
		"LENO_BENCH_SUBNET=" + peerSubnets[i].String(),
		"LENO_BENCH_PEER_SUBNET=" + peerSubnets[other].Masked().String(),
		"LENO_BENCH_DIR=" + dir,
		"LENO_BENCH_SUBNET_FILE=" + filepath.Join(dir, "subnet.env"),
	}
}

// setUp starts the overlay, waits until it has written both subnet files, and adds a container to
// each subnet.
func (p *peer) setUp(ctx context.Context, hosts []*lab.Host, wire *lab.Wire) (*contender, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	for i, h := range hosts {
		dir := filepath.Join(h.Dir, p.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		command := append([]string{"env"}, p.environment(i, wire, dir)...)
		process, err := h.Start(append(command, "sh", "-c", p.command)...)
		if err != nil {
			return nil, err
		}
		p.processes = append(p.processes, process)
	}
	err := p.wait(ctx, "an MTU in LENO_BENCH_SUBNET_FILE on both hosts", func(context.Context) error {
		var errs []error
		for i, h := range hosts {
			errs = append(errs, adopt(filepath.Join(h.Dir, p.name, "subnet.env"), h.SubnetFile(p.name), peerSubnets[i]))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, err
	}
	c, err := between(ctx, p.name, hosts)
	if err != nil {
		return nil, err
	}
	c.command, c.processes = p.command, p.processes
	return c, p.wait(ctx, "containers to reach each other", c.answers)
}

// wait polls until done returns nil, as long as the command runs on both hosts. Its error contains
// the command's output there.
func (p *peer) wait(ctx context.Context, what string, done func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	for i, process := range p.processes {
		watching.Go(func() {
			select {
			case <-process.Done():
				cancel(fmt.Errorf("the command ended on host %d", i+1))
			case <-ctx.Done():
			}
		})
	}
	err := lab.WaitFor(ctx, what, done)
	cancel(nil)
	watching.Wait()
	if err == nil {
		return nil
	}
	for i, process := range p.processes {
		err = fmt.Errorf("%w\nthe command's output on host %d:\n%s", err, i+1, process.Output())
	}
	return err
}

// adopt creates the subnet file for the lab's containers from the file that the overlay wrote, in
// leno's or flannel's format. It uses the MTU only.
func adopt(from, to string, subnet netip.Prefix) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	mtu := 0
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		key = strings.TrimPrefix(strings.TrimPrefix(key, "LENO_"), "FLANNEL_")
		switch key {
		case "MTU":
			mtu, err = strconv.Atoi(value)
		case "SUBNET":
			subnet, err = netip.ParsePrefix(value)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", from, key, err)
		}
	}
	if mtu < 576 || mtu > 65535 || !subnet.Addr().Is4() {
		return fmt.Errorf("%s: an MTU of 576 to 65535 and an IPv4 subnet are needed, there are %d and %s", from, mtu, subnet)
	}
	return os.WriteFile(to, fmt.Appendf(nil, "LENO_SUBNET=%s\nLENO_MTU=%d\n", subnet, mtu), 0o644)
}

// end asks the command on both hosts and its child processes to end, and waits.
func (p *peer) end(ctx context.Context) error {
	var errs []error
	for _, process := range p.processes {
		errs = append(errs, process.SignalGroup(syscall.SIGTERM))
	}
	for _, process := range p.processes {
		select {
		case <-process.Done(): // with any exit code
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("%s did not end when asked to", p.name))
		}
	}
	return errors.Join(errs...)
}
