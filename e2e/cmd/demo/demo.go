package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

const network = "default"

// A demo is one run of the demonstration.
type demo struct {
	*lab.Lab
	out        io.Writer
	styles     styles
	backend    string
	next       string        // the leno binary after the upgrade; "" for the same
	store      string        // the store's name: "Consul" or "etcd"
	away       time.Duration // how long the store and an agent stay dead, to show that packets keep flowing
	containers []*lab.Container
	scenes     int // number of scenes shown so far
}

// run lays out the lab, shows the scenes up to the first that fails, and removes the lab unless it
// is to be kept.
func (d *demo) run(ctx context.Context, o lab.Options) error {
	start := time.Now()
	if err := d.lab(ctx, o); err != nil {
		return err
	}
	err := d.show(ctx)
	if o.Detach {
		d.lookAround()
		return err
	}
	if err != nil {
		return errors.Join(err, d.Close())
	}
	if err := d.end(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n%s\n", d.styles.well.Sprintf(
		"Done in %.0f s. Everything that the demo created has been removed.", time.Since(start).Seconds()))
	return nil
}

func (d *demo) lab(ctx context.Context, o lab.Options) (err error) {
	d.store = "Consul"
	article := "a"
	if o.Store == lab.StoreEtcd {
		d.store, article = "etcd", "an"
	}
	d.title("Three hosts and %s %s server, as network namespaces of this machine", article, d.store)
	for _, leno := range []*string{&o.Leno, &d.next} {
		if *leno == "" {
			continue
		}
		if *leno, err = filepath.Abs(*leno); err != nil {
			return err
		}
		if _, err := os.Stat(*leno); err != nil {
			return fmt.Errorf("no leno to show: %w", err)
		}
	}
	if d.Lab, err = lab.New(ctx, o); err != nil {
		return err
	}
	server := d.Store.About()
	told := []string{fmt.Sprintf("%s %s", server.Name, server.Addr)}
	for _, h := range d.Hosts {
		told = append(told, fmt.Sprintf("%s %s", h.Name, h.Addrs[0]))
	}
	d.say("%s", strings.Join(told, "  "))
	return nil
}

func (d *demo) show(ctx context.Context) error {
	for _, scene := range []func(context.Context) error{
		d.agents, d.leases, d.pings, d.outage, d.upgrade, d.boot, d.doctor, d.change,
	} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) agents(ctx context.Context) error {
	d.title("Every host runs an agent, with this network in its configuration")
	plan := definition(d.backend)
	d.output(fmt.Sprintf("network %q {\n%s}\n", network, plan))
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for _, h := range d.Hosts {
		if err := h.StartAgent(h.Config(h.Network(network, plan))); err != nil {
			return err
		}
		group.Go(func() error { return h.WaitReady(ctx) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	d.well("all three are ready after %.1f s", time.Since(start).Seconds())
	return nil
}

// definition returns the body of the network's block.
func definition(backend string) string {
	return fmt.Sprintf(`  ipv4 { prefix = "10.5.0.0/16" }
  ipv6 { prefix = "fd00:5::/48" }
  backend %q {}
`, backend)
}

func (d *demo) leases(ctx context.Context) error {
	d.title("Every host leased a subnet in %s, and has routes to the others'", d.store)
	subnets, err := d.subnets()
	if err != nil {
		return err
	}
	// A host learns of another's lease a moment after it was written, and then adds the routes.
	first := d.Hosts[0]
	var list, routes string
	err = lab.WaitFor(ctx, first.Name+" to see all leases", func(ctx context.Context) (err error) {
		if list, err = first.Leno(ctx, "lease", "list"); err != nil {
			return err
		}
		if routes, err = first.Exec(ctx, "ip", "route", "show", "proto", "108", "type", "unicast"); err != nil {
			return err
		}
		var errs []error
		for subnet, owner := range subnets {
			if !strings.Contains(list, subnet.String()) || owner != first && !strings.Contains(routes, subnet.String()) {
				errs = append(errs, fmt.Errorf("%s of %s is missing", subnet, owner.Name))
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	d.on(first.Name, "leno lease list", list)
	d.on(first.Name, "ip route show proto 108 type unicast", routes)
	return nil
}

// subnets returns the IPv4 subnets of all hosts. It fails if two hosts have the same subnet in
// either family.
func (d *demo) subnets() (map[netip.Prefix]*lab.Host, error) {
	owners, out := map[netip.Prefix]*lab.Host{}, map[netip.Prefix]*lab.Host{}
	for _, h := range d.Hosts {
		file, err := lab.ReadSubnetFile(h.SubnetFile(network))
		if err != nil {
			return nil, err
		}
		for _, gateway := range file.Subnets() {
			subnet := gateway.Masked()
			if other := owners[subnet]; other != nil {
				return nil, fmt.Errorf("%s and %s both have %s", other.Name, h.Name, subnet)
			}
			if owners[subnet] = h; subnet.Addr().Is4() {
				out[subnet] = h
			}
		}
	}
	return out, nil
}

func (d *demo) pings(ctx context.Context) error {
	d.title("A container on every host reaches those on the others")
	for _, h := range d.Hosts {
		if err := d.addContainer(ctx, h); err != nil {
			return err
		}
	}
	var errs []error
	for _, from := range d.containers {
		for _, to := range d.containers {
			if from == to {
				continue
			}
			var told []string
			for _, addr := range to.Addrs {
				// The containers' links are new and may drop packets for a moment.
				err := lab.WaitFor(ctx, "a first answer from "+addr.String(), func(ctx context.Context) error {
					r, err := from.Ping(ctx, addr, lab.PingOptions{})
					if err == nil && r.Lost() > 0 {
						err = errors.New("none yet")
					}
					return err
				})
				if err != nil {
					return err
				}
				r, err := from.Ping(ctx, addr, lab.PingOptions{Count: 5})
				if err != nil {
					return err
				}
				told = append(told, fmt.Sprintf("%s in %.2f ms", addr, float64(r.RTT.Microseconds())/1000))
				if r.Lost() > 0 {
					errs = append(errs, fmt.Errorf("ping from %s to %s on %s: %d of %d lost", from.Host.Name, addr, to.Host.Name, r.Lost(), r.Sent))
				}
			}
			d.say("%s -> %s  %s", from.Host.Name, to.Host.Name, strings.Join(told, ", "))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	from, to := d.containers[0], d.containers[1]
	t, err := from.TCP(ctx, to.Namespace, to.Addrs[0], lab.ThroughputOptions{Duration: time.Second, Streams: 4})
	if err != nil {
		return err
	}
	if t.Bytes == 0 {
		return errors.New("nothing arrived over TCP")
	}
	d.say("%s -> %s  %.1f Gbit/s over TCP", from.Host.Name, to.Host.Name, t.BitsPerSecond/1e9)
	return nil
}

// addContainer adds a container to a host, replacing the one it had.
func (d *demo) addContainer(ctx context.Context, h *lab.Host) error {
	c, err := h.AddContainer(ctx, network)
	if err != nil {
		return err
	}
	for i, old := range d.containers {
		if old.Host == h {
			d.containers[i] = c
			return nil
		}
	}
	d.containers = append(d.containers, c)
	return nil
}

// end stops the agents as an operator would and removes the lab.
func (d *demo) end(ctx context.Context) error {
	var errs []error
	for _, h := range d.Hosts {
		errs = append(errs, h.StopAgent(ctx))
	}
	return errors.Join(append(errs, d.Store.Stop(ctx), d.Close())...)
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
