package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

const network = "default"

// demo is one showing.
type demo struct {
	*lab.Lab
	out        io.Writer
	backend    string
	containers []*lab.Container
}

func (d *demo) lab(ctx context.Context, o lab.Options) (err error) {
	d.title("Three hosts and one Consul, as network namespaces")
	if o.Leno, err = filepath.Abs(o.Leno); err != nil {
		return err
	}
	if _, err := os.Stat(o.Leno); err != nil {
		return fmt.Errorf("no leno to show: %w", err)
	}
	d.Lab, err = lab.New(ctx, o)
	return err
}

// show goes through the scenes, up to the first that is not as it should be.
func (d *demo) show(ctx context.Context) error {
	for _, scene := range []func(context.Context) error{
		d.agents, d.leases, d.routes, d.pings, d.throughput, d.kill,
	} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) agents(ctx context.Context) error {
	d.title("leno agent on every host, each with its own file")
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for _, h := range d.Hosts {
		config := h.Config(h.Network(network, fmt.Sprintf(`
  ipv4 {
    prefix = "10.5.0.0/16"
  }
  ipv6 {
    prefix = "fd00:5::/48"
  }
  backend %q {}
  ip_masq = true
  forward = true
`, d.backend)))
		if h == d.Hosts[0] {
			d.print("$ cat "+h.ConfigFile(), config)
		}
		if err := h.StartAgent(config); err != nil {
			return err
		}
		group.Go(func() error { return h.WaitReady(ctx) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	d.say("All three are ready %s after the first was started.", time.Since(start).Round(time.Millisecond))
	return nil
}

func (d *demo) leases(ctx context.Context) error {
	d.title("Every host has a lease, in Consul for everyone to read")
	subnets, err := d.subnets()
	if err != nil {
		return err
	}
	// A host hears of another's lease a moment after it was written.
	v4 := slices.DeleteFunc(slices.Collect(maps.Keys(subnets)), func(s netip.Prefix) bool { return s.Addr().Is6() })
	var list string
	err = lab.WaitFor(ctx, "host-a to see all leases", func(ctx context.Context) (err error) {
		if list, err = d.Hosts[0].Leno(ctx, "lease", "list"); err != nil {
			return err
		}
		return contains(list, v4) // it lists a lease by its first subnet
	})
	if err != nil {
		return err
	}
	d.print("host-a$ leno lease list", list)

	records, err := d.Consul.CLI(ctx, "kv", "get", "-recurse", "leno/")
	if err != nil {
		return err
	}
	d.print("consul$ consul kv get -recurse leno/", records)
	if err := contains(records, slices.Collect(maps.Keys(subnets))); err != nil {
		return fmt.Errorf("the records in Consul: %w", err)
	}

	file := d.Hosts[0].SubnetFile(network)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	d.print("host-a$ cat "+file+"    (for the container runtime)", string(text))
	return nil
}

// subnets are all hosts' subnets of both families; no two may be the same.
func (d *demo) subnets() (map[netip.Prefix]*lab.Host, error) {
	owners := map[netip.Prefix]*lab.Host{}
	for _, h := range d.Hosts {
		file, err := lab.ReadSubnetFile(h.SubnetFile(network))
		if err != nil {
			return nil, err
		}
		for _, subnet := range file.Subnets() {
			if other := owners[subnet.Masked()]; other != nil {
				return nil, fmt.Errorf("%s and %s both have %s", other.Name, h.Name, subnet.Masked())
			}
			owners[subnet.Masked()] = h
		}
	}
	return owners, nil
}

// contains is an error that names what the text lacks.
func contains(text string, subnets []netip.Prefix) error {
	var errs []error
	for _, s := range subnets {
		if !strings.Contains(text, s.String()) {
			errs = append(errs, fmt.Errorf("%s is missing", s))
		}
	}
	return errors.Join(errs...)
}

func (d *demo) routes(ctx context.Context) error {
	d.title("Every host has routes to the others' subnets")
	subnets, err := d.subnets()
	if err != nil {
		return err
	}
	for _, h := range d.Hosts {
		others := maps.Collect(maps.All(subnets))
		maps.DeleteFunc(others, func(_ netip.Prefix, owner *lab.Host) bool { return owner == h })
		var v4, v6 string
		err := lab.WaitFor(ctx, h.Name+" to have all routes", func(ctx context.Context) (err error) {
			if v4, err = h.Exec(ctx, "ip", "-4", "route", "show", "proto", "108"); err != nil {
				return err
			}
			if v6, err = h.Exec(ctx, "ip", "-6", "route", "show", "proto", "108"); err != nil {
				return err
			}
			return contains(v4+v6, slices.Collect(maps.Keys(others)))
		})
		if err != nil {
			return err
		}
		d.print(h.Name+"$ ip -4 route show proto 108", v4)
		d.print(h.Name+"$ ip -6 route show proto 108", v6)
	}
	return nil
}

func (d *demo) pings(ctx context.Context) error {
	d.title("A container on every host, and each pings every other")
	for _, h := range d.Hosts {
		c, err := h.AddContainer(ctx, network)
		if err != nil {
			return err
		}
		d.containers = append(d.containers, c)
	}
	var errs []error
	for _, from := range d.containers {
		for _, to := range d.containers {
			if from == to {
				continue
			}
			for _, addr := range to.Addrs {
				r, err := from.Ping(ctx, addr, lab.PingOptions{Count: 5})
				if err != nil {
					return err
				}
				d.say("%s -> %s %-20s %d of %d answered, %s", from.Host.Name, to.Host.Name, addr, r.Received, r.Sent, r.RTT)
				if r.Lost() > 0 {
					errs = append(errs, fmt.Errorf("ping from %s to %s on %s: %d of %d lost", from.Host.Name, addr, to.Host.Name, r.Lost(), r.Sent))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func (d *demo) throughput(ctx context.Context) error {
	d.title("TCP between two containers")
	from, to := d.containers[0], d.containers[1]
	for _, streams := range []int{1, 4} {
		t, err := from.TCP(ctx, to.Namespace, to.Addrs[0], lab.ThroughputOptions{Duration: 2 * time.Second, Streams: streams})
		if err != nil {
			return err
		}
		if t.Bytes == 0 {
			return errors.New("nothing arrived")
		}
		d.say("%s -> %s, %d at once: %.1f Gbit/s, %d segments sent again", from.Host.Name, to.Host.Name, streams, t.BitsPerSecond/1e9, t.Retransmits)
	}
	return nil
}

func (d *demo) kill(ctx context.Context) error {
	d.title("kill -9 of one agent while a ping to its container goes on")
	from, to := d.containers[0], d.containers[1]
	host := to.Host
	before, err := lab.ReadSubnetFile(host.SubnetFile(network))
	if err != nil {
		return err
	}
	ping, err := from.StartPing(to.Addrs[0], lab.PingOptions{})
	if err != nil {
		return err
	}
	if err := ping.WaitAnswers(ctx, 10); err != nil {
		return err
	}
	if err := host.KillAgent(); err != nil {
		return err
	}
	// Nothing to wait for: this is how long there shall be no agent.
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := host.RestartAgent(); err != nil {
		return err
	}
	if err := host.WaitReady(ctx); err != nil {
		return err
	}
	if err := ping.WaitAnswers(ctx, 10); err != nil {
		return err
	}
	r, err := ping.Stop(ctx)
	if err != nil {
		return err
	}
	after, err := lab.ReadSubnetFile(host.SubnetFile(network))
	if err != nil {
		return err
	}
	d.say("%d pings meanwhile, %d lost; longest silence %s", r.Sent, r.Lost(), r.Gap.Round(time.Millisecond))
	d.say("%s had %s before and has %s again", host.Name, before.Subnet, after.Subnet)
	if after != before {
		return fmt.Errorf("the subnet of %s changed: %+v, before %+v", host.Name, after, before)
	}
	// The udp backend's datapath is the agent: what it loses is shown, no more.
	if r.Lost() > 0 && d.backend != "udp" {
		return fmt.Errorf("%d pings were lost: %v", r.Lost(), r.Missing)
	}
	status, err := host.Leno(ctx, "status")
	if err != nil {
		return err
	}
	d.print(host.Name+"$ leno status", status)
	return nil
}

// end stops the agents as an operator would and takes the lab down.
func (d *demo) end(ctx context.Context) error {
	d.title("Teardown")
	var errs []error
	for _, h := range d.Hosts {
		errs = append(errs, h.StopAgent(ctx))
	}
	errs = append(errs, d.Consul.Stop(ctx), d.Close())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	d.say("Every process, namespace and file of the lab is gone.")
	return nil
}

func (d *demo) lookAround() {
	sudo := ""
	if os.Getenv("SUDO_UID") != "" {
		sudo = "sudo "
	}
	self, err := os.Executable()
	if err != nil {
		self = "bin/demo"
	}
	d.title("The lab stays up")
	d.say("A shell on a host, then `leno status`, `ip route`, `leno lease list` and so on:")
	d.say("  %sip netns exec %s env PATH=%s:$PATH bash", sudo, d.Hosts[0].Namespace.Name, filepath.Dir(self))
	if len(d.containers) > 0 {
		d.say("A shell in the container on it:")
		d.say("  %sip netns exec %s bash", sudo, d.containers[0].Namespace.Name)
	}
	d.say("Configurations, logs and every command that built it (lab.log):")
	d.say("  ls %s", d.Dir)
	d.say("Tear it down:")
	d.say("  %s%s -teardown %s", sudo, self, d.ID)
}
