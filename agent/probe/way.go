package probe

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
)

// way describes one path to a peer to probe.
type way struct {
	path     string
	from, to netip.Addr
	vrf      int // ifindex of the VRF whose routes the packets take; 0 for none
	mtu      int
	hops     int // hop limit; 0 for the usual one
	noSearch bool

	// Addresses of the peer's host: errors from them prove that packets got there, if no device has the destination
	// address. Empty if no error does.
	hostPrefixes []netip.Prefix
	skipReason   string // why it is not probed
}

// minSearchTimeout is the shortest timeout while searching for a size: a fast path may be slower for longer packets.
const minSearchTimeout = 100 * time.Millisecond

// measurement probes one path.
type measurement struct {
	pinger  pinger
	way     way
	request api.ProbeRequest
	out     api.ProbedWay

	mu          sync.Mutex
	reportedMTU int           // least MTU in any error
	slowest     time.Duration // of the answers
}

// measure probes a path: small packets, full ones when any came back, and the sizes between when no full one did.
func measure(ctx context.Context, l pinger, w way, r api.ProbeRequest) api.ProbedWay {
	m := &measurement{pinger: l, way: w, request: r}
	m.out = api.ProbedWay{Path: w.path, From: w.from, To: w.to, MTU: w.mtu, NotProbed: w.skipReason}
	if w.skipReason != "" {
		return m.out
	}
	full := w.mtu
	if r.Full > 0 {
		full = r.Full
	}
	m.out.MTU = full
	m.out.Small.Bytes, m.out.Full.Bytes = r.Small, full
	if len(w.hostPrefixes) == 0 || !m.probeByError(ctx) {
		m.probeSizes(ctx)
	}
	for _, s := range []*api.ProbedSize{&m.out.Small, &m.out.Full} {
		s.AvgMS = round(s.AvgMS)
	}
	switch {
	case ctx.Err() != nil:
		return api.ProbedWay{Path: w.path, From: w.from, To: w.to, MTU: full,
			NotProbed: "the probe ended before this was done"}
	case m.out.Full.Answered > 0:
		m.out.Largest = full
	case m.out.Full.Sent > 0 && m.out.Answer == echoReply && !w.noSearch: // errors come too rarely to search by
		m.out.Largest = m.search(ctx, full)
	}
	return m.out
}

// errorPause is how long a kernel may take until it sends another error: on Linux a "host unreachable" costs two
// tokens of one second each.
const errorPause = 2200 * time.Millisecond

// probeByError sends one full packet where errors may be the only answers. Its error is as good as one to a small
// packet, after which the kernel would send no more.
func (m *measurement) probeByError(ctx context.Context) bool {
	s := m.out.Full
	if a := m.sendOne(ctx, &s); a.outcome != gotError || s.Answered == 0 {
		return false
	}
	m.out.Full = s
	return true
}

// probeSizes sends small packets, and full ones when any came back. If errors are the only answers, it may have to wait
// for the next one.
func (m *measurement) probeSizes(ctx context.Context) {
	small, full := &m.out.Small, &m.out.Full
	m.sendSeries(ctx, small)
	if small.Answered == 0 && len(m.way.hostPrefixes) > 0 && retry.Sleep(ctx, errorPause) == nil {
		sent := small.Sent
		*small = api.ProbedSize{Bytes: small.Bytes}
		if m.probeByError(ctx) {
			return
		}
		if m.sendOne(ctx, small); small.Answered == 0 {
			small.Sent += sent // no error was missing: they are lost, too
		}
	}
	if small.Answered == 0 {
		return
	}
	m.out.Largest = small.Bytes
	if full.Bytes <= small.Bytes || m.out.Answer != echoReply && retry.Sleep(ctx, errorPause) != nil {
		return
	}
	m.sendSeries(ctx, full)
	// A path that loses small packets may have lost all full ones by chance.
	for i := 0; i < extraSeries && full.Answered == 0 && small.Lost() > 0 && m.out.Answer == echoReply; i++ {
		m.sendSeries(ctx, full)
	}
}

// extraSeries is how often full packets are sent again on a path that loses packets of any size, before their size is
// taken for the reason.
const extraSeries = 3

const echoReply = "echo reply"

// sendSeries sends the packets of one size at intervals. If the first is answered by an error, it stays the only one:
// kernels limit how many errors they send.
func (m *measurement) sendSeries(ctx context.Context, s *api.ProbedSize) {
	count := m.request.Count
	if len(m.way.hostPrefixes) > 0 {
		if a := m.sendOne(ctx, s); a.outcome == gotError {
			return
		}
		count--
	}
	tick := time.NewTicker(milliseconds(m.request.IntervalMS))
	defer tick.Stop()
	var answers sync.WaitGroup
	defer answers.Wait()
	for i := range count {
		if i > 0 {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		result := m.send(ctx, s.Bytes, milliseconds(m.request.TimeoutMS))
		answers.Go(func() { m.count(s, result()) })
	}
}

// sendOne sends one packet and counts its outcome.
func (m *measurement) sendOne(ctx context.Context, s *api.ProbedSize) answer {
	a := m.send(ctx, s.Bytes, milliseconds(m.request.TimeoutMS))()
	m.count(s, a)
	return a
}

// count counts the outcome of one packet.
func (m *measurement) count(s *api.ProbedSize, a answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Sent++
	if !m.hasArrived(a) {
		return
	}
	took := toMS(a.roundTrip)
	if s.Answered == 0 {
		s.MinMS, s.MaxMS = took, took
	}
	s.MinMS, s.MaxMS = min(s.MinMS, took), max(s.MaxMS, took)
	s.AvgMS = (s.AvgMS*float64(s.Answered) + took) / float64(s.Answered+1)
	s.Answered++
}

// send sends one packet on the line, and records its outcome.
func (m *measurement) send(ctx context.Context, size int, timeout time.Duration) (result func() answer) {
	await := m.pinger.send(ctx, echo{from: m.way.from, to: m.way.to, vrf: m.way.vrf, size: size, hops: m.way.hops},
		timeout)
	return func() answer { return m.record(await()) }
}

// record records the outcome of a packet.
func (m *measurement) record(a answer) answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.hasArrived(a):
		m.slowest = max(m.slowest, a.roundTrip)
		m.out.Answer = echoReply
		if a.outcome == gotError {
			m.out.Answer = fmt.Sprintf("%s from %s", a.reason, a.from)
		}
	case a.outcome == gotError || a.outcome == notSent:
		m.out.Errors = addError(m.out.Errors, a, "")
		if a.mtu > 0 && (m.reportedMTU == 0 || a.mtu < m.reportedMTU) {
			m.reportedMTU = a.mtu
		}
	}
	return a
}

// hasArrived reports whether an answer proves that the packet got to the peer's host.
func (m *measurement) hasArrived(a answer) bool {
	switch a.outcome {
	case gotReply:
		return true
	case gotError:
		return a.reason != fragmentationNeeded && slices.ContainsFunc(m.way.hostPrefixes,
			func(p netip.Prefix) bool { return p.Contains(a.from) })
	}
	return false
}

// search finds the largest packet that passes between a small one and a full one. It sends two packets of each size
// with a short timeout, so it tries the first size that should be too long once more with the full timeout.
func (m *measurement) search(ctx context.Context, full int) int {
	all := milliseconds(m.request.TimeoutMS)
	patience := min(max(minSearchTimeout, 4*m.slowest), all)
	try := func(size int, timeout time.Duration) (passed bool, mtu int) {
		for _, a := range sendAll(2, func() func() answer { return m.send(ctx, size, timeout) }) {
			passed, mtu = passed || m.hasArrived(a), max(mtu, a.mtu)
		}
		return passed, mtu
	}
	found := m.request.Small
	for range searchRounds {
		found = largestSize(found, full, m.reportedMTU, func(size int) (bool, int) { return try(size, patience) })
		if passed, _ := try(found+1, all); !passed {
			break
		}
		if found++; found == full {
			break
		}
	}
	return found
}

// searchRounds bounds how often search starts again after a wrong result.
const searchRounds = 3

// sendAll sends several packets and waits for all outcomes concurrently: a packet whose outcome was collected only
// after the next one was sent would occupy a place in maxPending for nothing.
func sendAll(n int, send func() (result func() answer)) []answer {
	out := make([]answer, n)
	var wg sync.WaitGroup
	for i := range out {
		result := send()
		wg.Go(func() { out[i] = result() })
	}
	wg.Wait()
	return out
}

// addError adds an error to the list, or counts it if it is already there.
func addError(errors []api.ProbeError, a answer, about string) []api.ProbeError {
	e := api.ProbeError{Reason: a.reason, From: a.from, MTU: a.mtu, About: about}
	for i := range errors {
		e.Count = errors[i].Count
		if errors[i] == e {
			errors[i].Count++
			return errors
		}
	}
	e.Count = 1
	return append(errors, e)
}

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// toMS returns a duration in milliseconds, to the microsecond.
func toMS(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

func round(ms float64) float64 { return math.Round(ms*1000) / 1000 }
