package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// pingInterval is below 10 ms, from which on ping(8) sleeps between packets: a sleeping machine
// takes time to wake up, which would be measured with every contender.
const pingInterval = 2 * time.Millisecond

// loadLimit bounds the stream that runs during the pings.
const loadLimit = 2 * time.Minute

// measure measures every figure of a contender once.
func (b *bench) measure(ctx context.Context, c *contender) (values, error) {
	got := values{}
	for _, step := range []struct {
		name string
		do   func(context.Context, *contender, values) error
	}{
		{"ping at rest", b.pings},
		{"TCP, 1 stream", func(ctx context.Context, c *contender, got values) error { return b.tcp(ctx, c, got, 1) }},
		{"TCP, 4 streams", func(ctx context.Context, c *contender, got values) error { return b.tcp(ctx, c, got, 4) }},
		{"UDP, 64 bytes", func(ctx context.Context, c *contender, got values) error { return b.udp(ctx, c, got, 64) }},
		{"UDP, 1,400 bytes", func(ctx context.Context, c *contender, got values) error { return b.udp(ctx, c, got, 1400) }},
		{"ping under load", b.pingsUnderLoad},
		{"memory", b.memory},
	} {
		if err := step.do(ctx, c, got); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", step.name, err), c.running())
		}
	}
	if err := c.running(); err != nil {
		return nil, err
	}
	return got, nil
}

func (b *bench) tcp(ctx context.Context, c *contender, got values, streams int) error {
	before, err := c.usage(ctx)
	if err != nil {
		return err
	}
	t, err := c.from.TCP(ctx, c.to.Namespace, c.to.addr, lab.ThroughputOptions{
		Duration: time.Duration(b.seconds) * time.Second, Streams: streams,
	})
	if err != nil {
		return err
	}
	after, err := c.usage(ctx)
	if err != nil {
		return err
	}
	if t.Bytes == 0 {
		return errors.New("not one byte arrived")
	}
	got[tcp(streams)] = t.BitsPerSecond / 1e9
	used := after.since(before)
	perByte := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(t.Bytes) }
	got[machineCPU(streams)] = perByte(used.machine)
	if c.hosts != nil {
		got[senderCPU(streams)] = perByte(used.hosts[0])
		got[receiverCPU(streams)] = perByte(used.hosts[1])
		got[bothCPU(streams)] = perByte(used.hosts[0] + used.hosts[1])
		got[meanCPU(streams)] = perByte(used.hosts[0]+used.hosts[1]) / 2
	}
	return nil
}

func (b *bench) udp(ctx context.Context, c *contender, got values, size int) error {
	d, err := c.from.UDP(ctx, c.to.Namespace, c.to.addr, lab.DatagramOptions{
		Duration: time.Duration(b.seconds) * time.Second, Size: size,
	})
	if err != nil {
		return err
	}
	if d.Received == 0 {
		return errors.New("not one packet arrived")
	}
	perSecond := func(n int64) float64 { return float64(n) / d.Duration.Seconds() / 1e3 }
	got[udpSent(size)] = perSecond(d.Sent)
	got[udpReceived(size)] = perSecond(d.Received)
	got[udpLoss(size)] = 100 * float64(d.Sent-d.Received) / float64(d.Sent)
	return nil
}

func (b *bench) pings(ctx context.Context, c *contender, got values) error {
	r, err := c.from.Ping(ctx, c.to.addr, lab.PingOptions{Count: b.options.pings, Interval: pingInterval})
	if err != nil {
		return err
	}
	return got.pings("ping", r)
}

// pingsUnderLoad pings while one TCP stream uses the same path. It checks that the stream runs from
// the first to the last ping.
func (b *bench) pingsUnderLoad(ctx context.Context, c *contender, got values) (err error) {
	loading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	var ending error
	go func() {
		defer close(ended)
		_, ending = c.from.TCP(loading, c.to.Namespace, c.to.addr, lab.ThroughputOptions{Duration: loadLimit})
	}()
	defer func() {
		stop()
		<-ended
	}()
	carried := func() error {
		select {
		case <-ended:
			return fmt.Errorf("the stream under which pings are sent ended: %w", ending)
		default:
			return nil
		}
	}
	begin, err := c.to.Received(ctx, c.to.device)
	if err != nil {
		return err
	}
	err = lab.WaitFor(ctx, "a stream to flow", func(ctx context.Context) error {
		now, err := c.to.Received(ctx, c.to.device)
		if err == nil && now-begin < 1<<20 {
			err = fmt.Errorf("%d bytes so far", now-begin)
		}
		return errors.Join(err, carried())
	})
	if err != nil {
		return err
	}
	r, err := c.from.Ping(ctx, c.to.addr, lab.PingOptions{Count: b.options.pings, Interval: pingInterval})
	if err := errors.Join(err, carried()); err != nil {
		return err
	}
	return got.pings("load", r)
}

func (b *bench) memory(ctx context.Context, c *contender, got values) error {
	for _, h := range c.hosts {
		mib, err := resident(ctx, h)
		if err != nil {
			return err
		}
		got[memory] = max(got[memory], mib)
	}
	return nil
}
