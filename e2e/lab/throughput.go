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

// ThroughputOptions are the options of one iperf3 run over TCP.
type ThroughputOptions struct {
	Duration time.Duration // default 1 s
	Bytes    int64         // what is sent, however long it takes, instead of a Duration
	Streams  int           // default 1
}

// Throughput is the result of one run, measured at the receiver.
type Throughput struct {
	BitsPerSecond float64
	Bytes         int64
	Retransmits   int
}

// TCP sends from the namespace to the address, which must be one of server's.
func (n *Namespace) TCP(ctx context.Context, server *Namespace, to netip.Addr, o ThroughputOptions) (Throughput, error) {
	streams := strconv.Itoa(max(o.Streams, 1))
	much := seconds(o.Duration)
	if o.Bytes > 0 {
		much = []string{"--bytes", strconv.FormatInt(o.Bytes, 10)}
	}
	output, err := n.iperf(ctx, server, to, append(much, "--parallel", streams)...)
	t, parsed := parseIperf(output)
	if parsed != nil {
		return Throughput{}, errors.Join(parsed, err)
	}
	return t, err
}

// DatagramOptions are the options of one iperf3 run over UDP.
type DatagramOptions struct {
	Duration time.Duration // default 1 s
	Size     int           // UDP payload, bytes, at least 16
}

// Datagrams is what one run sent as fast as it could, and what the receiving program got of it.
type Datagrams struct {
	Sent, Received int64
	Duration       time.Duration
}

// UDP sends datagrams from the namespace to the address, which must be one of server's, as fast as
// one sender can.
func (n *Namespace) UDP(ctx context.Context, server *Namespace, to netip.Addr, o DatagramOptions) (Datagrams, error) {
	args := append(seconds(o.Duration), "--udp", "--bitrate", "0", "--length", strconv.Itoa(o.Size))
	output, err := n.iperf(ctx, server, to, args...)
	d, parsed := parseDatagrams(output, o.Size)
	if parsed != nil {
		return Datagrams{}, errors.Join(parsed, err)
	}
	return d, err
}

// seconds returns the option of iperf3 for a duration of whole seconds, at least one.
func seconds(d time.Duration) []string {
	return []string{"--time", strconv.FormatFloat(max(d, time.Second).Seconds(), 'f', 0, 64)}
}

// iperf runs iperf3 once and returns the sender's report.
func (n *Namespace) iperf(ctx context.Context, server *Namespace, to netip.Addr, args ...string) (string, error) {
	s, err := server.Start("iperf3", "--server", "--one-off", "--forceflush", "--bind", to.String())
	if err != nil {
		return "", err
	}
	defer s.Kill() // it ends by itself after one run, but not if the run failed
	err = s.WaitFor(ctx, "iperf3 to listen", func(context.Context) error {
		if !strings.Contains(s.Tail(3), "Server listening") {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	command := []string{"iperf3", "--client", to.String(), "--json", "--connect-timeout", "60000"}
	return n.Exec(ctx, append(command, args...)...)
}

// iperfReport holds the fields of iperf3's JSON that parseIperf and parseDatagrams read.
type iperfReport struct {
	Error string
	End   struct {
		Sent     iperfSum `json:"sum_sent"`
		Received iperfSum `json:"sum_received"`
	}
}

type iperfSum struct {
	Bytes         int64
	Packets       int64
	Seconds       float64
	BitsPerSecond float64 `json:"bits_per_second"`
	Retransmits   int
}

func (r *iperfReport) read(output string) error {
	if err := json.Unmarshal([]byte(output), r); err != nil {
		return fmt.Errorf("read the report of iperf3: %w", err)
	}
	if r.Error != "" {
		return fmt.Errorf("iperf3: %s", r.Error)
	}
	return nil
}

func parseIperf(output string) (Throughput, error) {
	var r iperfReport
	if err := r.read(output); err != nil {
		return Throughput{}, err
	}
	got := r.End.Received
	return Throughput{BitsPerSecond: got.BitsPerSecond, Bytes: got.Bytes, Retransmits: r.End.Sent.Retransmits}, nil
}

// parseDatagrams computes the datagrams that arrived from the bytes received, because iperf3 counts
// a lost packet only if a later one arrived.
func parseDatagrams(output string, size int) (Datagrams, error) {
	var r iperfReport
	if err := r.read(output); err != nil {
		return Datagrams{}, err
	}
	sent, received := r.End.Sent, r.End.Received
	d := Datagrams{
		Sent: sent.Packets, Received: received.Bytes / int64(size),
		Duration: time.Duration(max(sent.Seconds, received.Seconds) * float64(time.Second)),
	}
	if d.Sent == 0 || d.Duration == 0 {
		return Datagrams{}, fmt.Errorf("iperf3 reports no packet sent over UDP, version 3.12 does: %.300s", output)
	}
	return d, nil
}
