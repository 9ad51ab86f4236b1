package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// underPing runs do while the container on the first host pings the one on the second, and prints
// the number of lost pings. If lossless is true, a lost ping is an error.
func (d *demo) underPing(ctx context.Context, lossless bool, do func() error) error {
	ping, err := d.containers[0].StartEchoes(ctx, d.containers[1].Addrs[0], 10*time.Millisecond)
	if err != nil {
		return err
	}
	if err := ping.WaitAnswers(ctx, 10); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	if err := ping.WaitAnswers(ctx, 10); err != nil {
		return err
	}
	r, err := ping.Stop()
	if err != nil {
		return err
	}
	if r.Lost() > 0 && lossless {
		return errors.New(r.Losses())
	}
	if r.Lost() > 0 {
		d.say("%d pings between two containers in this time, %d lost: the forwarder of %s is in the agent", r.Sent, r.Lost(), d.backend)
		return nil
	}
	d.well("%d pings between two containers in this time, 0 lost", r.Sent)
	return nil
}

// outage kills the store.
func (d *demo) outage(ctx context.Context) error {
	d.title("%s is killed: packets flow", d.store)
	return d.underPing(ctx, true, func() error {
		if err := errors.Join(d.Store.Kill(), lab.Sleep(ctx, d.away)); err != nil {
			return err
		}
		d.say("kill -9; a second later:")
		host := d.Hosts[1]
		var status string
		missing := strings.ToLower(d.store) + " is warning"
		err := lab.WaitFor(ctx, host.Name+" to miss "+d.store, func(ctx context.Context) (err error) {
			status, err = host.Leno(ctx, "status")
			if err == nil && !strings.Contains(status, missing) {
				err = errors.New(status)
			}
			return err
		})
		if err != nil {
			return err
		}
		d.on(host.Name, "leno status | head -n 1", strings.SplitAfter(status, "\n")[0])
		if err := d.Store.Start(ctx); err != nil {
			return err
		}
		start := time.Now()
		if err := d.healthy(ctx); err != nil {
			return err
		}
		d.well("%s is back, and every host is healthy %.1f s later", d.store, time.Since(start).Seconds())
		return nil
	})
}

// upgrade kills the agent of the second host and starts another build of it.
func (d *demo) upgrade(ctx context.Context) error {
	host := d.Hosts[1]
	inProcess, err := host.CarriesPackets(ctx)
	if err != nil {
		return err
	}
	lossless := !inProcess // otherwise the agent itself forwards the packets
	title := "The agent of %s is killed and upgraded"
	if lossless {
		title += ": packets flow"
	}
	d.title(title, host.Name)
	before, err := lab.ReadSubnetFile(host.SubnetFile(network))
	if err != nil {
		return err
	}
	err = d.underPing(ctx, lossless, func() error {
		if err := errors.Join(host.KillAgent(), lab.Sleep(ctx, d.away)); err != nil {
			return err
		}
		d.say("kill -9; a second later another build is started")
		host.Program = d.next
		return errors.Join(host.RestartAgent(), host.WaitReady(ctx))
	})
	if err != nil {
		return err
	}
	status, err := host.Leno(ctx, "status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(status) {
		if strings.HasPrefix(line, "Agent") {
			d.on(host.Name, "leno status | grep Agent", line)
		}
	}
	return d.same(host, before)
}

// boot simulates the crash of the third host and its boot.
func (d *demo) boot(ctx context.Context) error {
	host := d.Hosts[2]
	d.title("%s crashes and boots: it keeps its subnet", host.Name)
	before, err := lab.ReadSubnetFile(host.SubnetFile(network))
	if err != nil {
		return err
	}
	d.say("agent, container, devices, routes and rules are gone: only its disk is left")
	err = errors.Join(host.KillAgent(), d.containers[2].Remove(ctx), host.Wipe(ctx), os.Remove(host.SubnetFile(network)))
	if err != nil {
		return err
	}
	start := time.Now()
	if err := errors.Join(host.RestartAgent(), host.WaitReady(ctx)); err != nil {
		return err
	}
	took := time.Since(start)
	if err := errors.Join(d.addContainer(ctx, host), d.same(host, before)); err != nil {
		return err
	}
	from, to := d.containers[0], d.containers[2].Addrs[0]
	r, err := from.Ping(ctx, to, lab.PingOptions{Count: 5})
	if err != nil {
		return err
	}
	if r.Lost() > 0 {
		return fmt.Errorf("ping from %s to %s: %d of %d lost", from.Host.Name, to, r.Lost(), r.Sent)
	}
	d.well("ready after %.1f s, and its new container answers at %s", took.Seconds(), to)
	return nil
}

// same prints that a host has the subnets that it had before, or returns an error.
func (d *demo) same(host *lab.Host, before lab.SubnetFile) error {
	after, err := lab.ReadSubnetFile(host.SubnetFile(network))
	if err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("the subnet of %s changed: %+v, before %+v", host.Name, after, before)
	}
	d.well("%s has %s, as before", host.Name, after.Subnet.Masked())
	return nil
}

func (d *demo) doctor(ctx context.Context) error {
	d.title("leno doctor examines a host and its paths to the others")
	if err := d.healthy(ctx); err != nil {
		return err
	}
	found, err := d.Hosts[0].Leno(ctx, "doctor")
	if err != nil {
		return err
	}
	d.on(d.Hosts[0].Name, "leno doctor", found)
	return nil
}

// healthy blocks until every host reports that it is healthy.
func (d *demo) healthy(ctx context.Context) error {
	var errs []error
	for _, h := range d.Hosts {
		errs = append(errs, lab.WaitFor(ctx, h.Name+" to be healthy", func(ctx context.Context) error {
			status, body, err := h.Get(ctx, "/healthz")
			if err == nil && status != 200 {
				err = fmt.Errorf("/healthz answers %d: %s", status, body)
			}
			return err
		}))
	}
	return errors.Join(errs...)
}
