package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// ThroughputOptions of one iperf3 run over TCP.
type ThroughputOptions struct {
	Duration time.Duration // default 1 s
	Streams  int           // default 1
}

// Throughput is what one run measured at the receiver.
type Throughput struct {
	BitsPerSecond float64
	Bytes         int64
	Retransmits   int
}

// TCP sends from the namespace to the address, which is one of server's.
func (n *Namespace) TCP(ctx context.Context, server *Namespace, to netip.Addr, o ThroughputOptions) (Throughput, error) {
	if o.Duration == 0 {
		o.Duration = time.Second
	}
	if o.Streams == 0 {
		o.Streams = 1
	}
	s, err := server.Start("iperf3", "--server", "--one-off", "--forceflush", "--bind", to.String())
	if err != nil {
		return Throughput{}, err
	}
	defer s.Kill() // it ends by itself after the one run, but not when that came to nothing
	err = s.WaitFor(ctx, "iperf3 to listen", func(context.Context) error {
		if !strings.Contains(s.tail(3), "Server listening") {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		return Throughput{}, err
	}
	output, err := n.Exec(ctx, "iperf3", "--client", to.String(), "--json", "--connect-timeout", "3000",
		"--time", strconv.FormatFloat(o.Duration.Seconds(), 'f', 0, 64), "--parallel", strconv.Itoa(o.Streams))
	t, parsed := parseIperf(output)
	if parsed != nil {
		return Throughput{}, errors.Join(parsed, err)
	}
	return t, err
}

func parseIperf(output string) (Throughput, error) {
	var report struct {
		Error string
		End   struct {
			Sent     struct{ Retransmits int } `json:"sum_sent"`
			Received struct {
				Bytes         int64
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(output), &report); err != nil {
		return Throughput{}, fmt.Errorf("read the report of iperf3: %w", err)
	}
	if report.Error != "" {
		return Throughput{}, fmt.Errorf("iperf3: %s", report.Error)
	}
	received := report.End.Received
	return Throughput{BitsPerSecond: received.BitsPerSecond, Bytes: received.Bytes, Retransmits: report.End.Sent.Retransmits}, nil
}
