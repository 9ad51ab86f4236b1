package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PingOptions are the options of one ping(8). The zero value sends one packet of 56 bytes.
type PingOptions struct {
	Count        int           // default 1
	Interval     time.Duration // default 10 ms, and 250 ms in a Ping of several packets
	Size         int           // ICMP payload, bytes; IPv4 adds 28, IPv6 48. Default 56
	DontFragment bool
	Timeout      time.Duration // how long to wait for the last answer. Default 1 s
}

// PingResult is the outcome of one ping(8).
type PingResult struct {
	Sent, Received int
	RTT            time.Duration // average, 0 without answers
	// RTTs are the times of single answers, in the order they came, to the microsecond.
	RTTs []time.Duration
	// MTU is the value that a router or the sending host reported when it refused a packet as too
	// large, or 0.
	MTU int
	// Missing holds the numbers of packets without an answer, counted from 1.
	Missing []int
	// MissingAt holds the approximate time at which each of those was sent.
	MissingAt []time.Time
	// Gap is the longest time between two answers.
	Gap    time.Duration
	Output string
}

// Lost returns how many packets had no answer.
func (r PingResult) Lost() int { return r.Sent - r.Received }

// linger is the pause between the packets of a Ping. ping(8) waits for the last answer no longer than twice the longest
// round trip so far, or one such pause, so with a short pause a late answer looks like a lost one.
const linger = 250 * time.Millisecond

// Ping sends packets and waits for the answers. Missing answers are no error; see Lost. An error
// means that ping could not run at all.
func (n *Namespace) Ping(ctx context.Context, to netip.Addr, o PingOptions) (PingResult, error) {
	if o.Count == 0 {
		o.Count = 1
	}
	if o.Count > 1 && o.Interval == 0 {
		o.Interval = linger
	}
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	command := append(pingCommand(to, o),
		"-c", strconv.Itoa(o.Count), "-W", strconv.FormatFloat(o.Timeout.Seconds(), 'f', 3, 64))
	output, complaints, err := n.exec(ctx, command...)
	result, parsed := parsePing(complaints + output)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && parsed == nil {
		return result, nil // 1 means that packets had no answer
	}
	return result, errors.Join(err, parsed)
}

func pingCommand(to netip.Addr, o PingOptions) []string {
	if o.Interval == 0 {
		o.Interval = 10 * time.Millisecond
	}
	command := []string{"ping", "-n", "-D", "-i", strconv.FormatFloat(o.Interval.Seconds(), 'f', 4, 64)}
	if o.Size > 0 {
		command = append(command, "-s", strconv.Itoa(o.Size))
	}
	if o.DontFragment {
		command = append(command, "-M", "do")
	}
	return append(command, to.String())
}

// A PingStream is a ping that runs until it is stopped.
type PingStream struct{ process *Process }

// StartPing sends packets in the background. It ignores Count and Timeout.
func (n *Namespace) StartPing(to netip.Addr, o PingOptions) (*PingStream, error) {
	p, err := n.Start(pingCommand(to, o)...)
	if err != nil {
		return nil, err
	}
	return &PingStream{process: p}, nil
}

// WaitAnswers blocks until n more answers have arrived.
func (s *PingStream) WaitAnswers(ctx context.Context, n int) error {
	answers := func() int { return strings.Count(s.process.Output(), " bytes from ") }
	want := answers() + n
	return s.process.WaitFor(ctx, "answers to a ping", func(context.Context) error {
		if missing := want - answers(); missing > 0 {
			return fmt.Errorf("%d of %d are missing", missing, n)
		}
		return nil
	})
}

// Stop ends the ping. A packet that was still under way counts as not sent.
func (s *PingStream) Stop(ctx context.Context) (PingResult, error) {
	if err := s.process.Signal(syscall.SIGINT); err != nil {
		return PingResult{}, err
	}
	err := s.process.Wait(ctx)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return PingResult{}, err
	}
	result, err := parsePing(s.process.Output())
	if err != nil {
		return PingResult{}, fmt.Errorf("%w: %s", err, s.process.Tail(5))
	}
	if last := len(result.Missing) - 1; last >= 0 && result.Missing[last] == result.Sent {
		result.Missing, result.MissingAt = result.Missing[:last], result.MissingAt[:min(last, len(result.MissingAt))]
		result.Sent--
	}
	return result, nil
}

var (
	pingAnswer  = regexp.MustCompile(`^\[(\d+\.\d+)\] \d+ bytes from .*icmp_seq=(\d+) .*time=([\d.]+) ms`)
	pingSummary = regexp.MustCompile(`^(\d+) packets transmitted, (\d+) received`)
	pingRTT     = regexp.MustCompile(`^rtt min/avg/max/mdev = [\d.]+/([\d.]+)/`)
	pingMTU     = regexp.MustCompile(`mtu(?: ?=|:) ?(\d+)`) // for IPv6 ping prints "mtu: 1450"
)

// parsePing reads the output of ping -D from iputils.
func parsePing(output string) (PingResult, error) {
	r := PingResult{Sent: -1, Output: output}
	answered := map[int]float64{}
	highest := 0
	var before float64
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		m := pingAnswer.FindStringSubmatch(line)
		if m == nil {
			r.note(line)
			continue
		}
		now, _ := strconv.ParseFloat(m[1], 64)
		if before > 0 {
			r.Gap = max(r.Gap, time.Duration((now-before)*float64(time.Second)))
		}
		before = now
		ms, _ := strconv.ParseFloat(m[3], 64)
		r.RTTs = append(r.RTTs, time.Duration(math.Round(ms*1000))*time.Microsecond)
		// The number in the packet has 16 bits.
		sequence, _ := strconv.Atoi(m[2])
		for sequence < highest-1<<15 {
			sequence += 1 << 16
		}
		highest = max(highest, sequence)
		answered[sequence] = now
	}
	if r.Sent < 0 {
		return r, errors.New("ping printed no summary")
	}
	for i := 1; i <= r.Sent; i++ {
		if _, ok := answered[i]; !ok {
			r.Missing = append(r.Missing, i)
		}
	}
	r.MissingAt = sentAt(r.Missing, answered)
	return r, nil
}

// sentAt estimates when unanswered packets were sent from the answers around them, because packets
// leave at even intervals. With fewer than two answers it returns nil.
func sentAt(missing []int, answered map[int]float64) (out []time.Time) {
	known := slices.Sorted(maps.Keys(answered))
	if len(known) < 2 {
		return nil
	}
	for _, n := range missing {
		// Before the first answer and after the last, the two nearest answers are used.
		i, _ := slices.BinarySearch(known, n)
		i = min(max(i, 1), len(known)-1)
		a, b := known[i-1], known[i]
		at := answered[a] + float64(n-a)*(answered[b]-answered[a])/float64(b-a)
		out = append(out, time.UnixMicro(int64(at*1e6)))
	}
	return out
}

// note reads from a line the values that do not belong to a single answer.
func (r *PingResult) note(line string) {
	if m := pingMTU.FindStringSubmatch(line); m != nil {
		r.MTU, _ = strconv.Atoi(m[1])
	}
	if m := pingSummary.FindStringSubmatch(line); m != nil {
		r.Sent, _ = strconv.Atoi(m[1])
		r.Received, _ = strconv.Atoi(m[2])
	}
	if m := pingRTT.FindStringSubmatch(line); m != nil {
		ms, _ := strconv.ParseFloat(m[1], 64)
		r.RTT = time.Duration(ms * float64(time.Millisecond))
	}
}
