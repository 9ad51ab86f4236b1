package paths

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
)

const (
	// rounds is how many probes in a row must agree on another state before the state of a path changes, and calmRounds
	// how many must find no loss before a lossy one is reached: where every tenth packet is lost, 25 often pass.
	rounds, calmRounds = 3, 6

	// window is the number of the latest small packets that the loss is counted over, and lossyAbove the number of lost
	// ones above which the path counts as lossy.
	window     = 20
	lossyAbove = 2
)

// What a probe finds of a host outside the overlay, "" if it was not probed there.
const (
	answersOutside = "answers"
	silentOutside  = "silent"
)

// path is what is known of the path to one peer. Only judge changes it.
type path struct {
	shown   api.PeerPath
	history history

	next    string // the state that the latest probes agree on, if it is another one than shown.State
	agreed  int    // how many of them do, without a break
	outside string // what the latest probe of a silent path found outside the overlay

	filter
	limit limit

	sent     int       // packets in results, at most window
	results  uint      // one bit for each small packet, the latest in the lowest bit: 1 for a lost one
	lastFull time.Time // when a full packet was to be sent last
	due      time.Time
}

// filter is what is known of a peer that may drop echo requests.
type filter struct {
	isUnanswered bool // the latest probe was, in some family
	isFiltered   bool // the peer answers no echo request, but is reached: results are those of messages
	messagesLost int
	messages     int // the latest ones, of which messagesLost were lost
}

// limit is what a search has found of the size of packets, zero since a full one was answered.
type limit struct {
	reason string
	mtu    int
}

// isSuspicious reports whether the path must be probed more often: it is not in order, or may be about to change.
func (p *path) isSuspicious() bool {
	return p.agreed > 0 || p.shown.State != api.PathReached && p.shown.State != "" || p.lost() > 0
}

// lost returns the number of lost packets among the latest ones.
func (p *path) lost() int { return bits.OnesCount(p.results) }

// judge adds the result of one probe at a time and reports whether the state changed. A path whose state is unknown is
// reached as soon as one packet was answered. Every other change needs several probes in a row that agree, so that a
// single lost packet changes nothing.
func (p *path) judge(result api.PeerProbe, now time.Time) (changed bool) {
	found, isFullTested := p.read(result, now)
	if found.State == "" {
		return false // nothing was sent
	}
	p.shown.Tested, p.shown.History = now, p.history.shown
	if found.RTT > 0 {
		p.shown.RTT = found.RTT
	}
	p.shown.Loss = math.Round(100*float64(p.lost())/float64(max(p.sent, 1))) / 100
	if found.State == p.shown.State {
		if isFullTested || !p.isSizeInDoubt() {
			p.next, p.agreed = "", 0
		}
		p.shown.MTU, p.shown.Reason = found.MTU, found.Reason
		return false
	}
	if found.State != p.next {
		p.next, p.agreed = found.State, 0
	}
	needed := rounds
	if p.shown.State == api.PathLossy && found.State == api.PathReached {
		needed = calmRounds
	}
	if p.agreed++; p.agreed < needed && (p.shown.State != "" || found.State != api.PathReached) {
		return false
	}
	p.next, p.agreed = "", 0
	p.shown.State, p.shown.MTU, p.shown.Reason, p.shown.Since = found.State, found.MTU, found.Reason, now
	return true
}

// isSizeInDoubt reports whether full packets decide about the state.
func (p *path) isSizeInDoubt() bool { return p.next == api.PathShort || p.shown.State == api.PathShort }

// read returns what one probe says of the path, by itself and with the packets before it. State is "" if it says
// nothing. A peer that is reached although it answers no echo request drops them by its rules; one lost packet does not
// show that.
func (p *path) read(result api.PeerProbe, now time.Time) (found api.PeerPath, isFullTested bool) {
	var sent, lost int
	var silent, short, all []string
	isUnanswered, isFiltered, isSearched := false, false, false
	for _, w := range result.Ways {
		if w.Path != api.PathOverlay || w.NotProbed != "" || w.Small.Sent == 0 && w.Full.Answered == 0 {
			continue
		}
		family := "IPv4"
		if w.To.Is6() {
			family = "IPv6"
		}
		all = append(all, family)
		isFull := w.Full.Bytes > w.Small.Bytes && w.Full.Sent > 0
		isFullTested = isFullTested || isFull
		sent, lost = sent+w.Small.Sent, lost+w.Small.Lost()
		isUnanswered = isUnanswered || w.Largest == 0
		switch {
		case w.Largest == 0 && !result.Reached:
			silent = append(silent, family)
		case w.Largest == 0:
			isFiltered = isFiltered || w.Small.Sent > 1 || p.isUnanswered
		case isFull && w.Full.Answered == 0 && w.Largest <= w.Small.Bytes:
			short = append(short, fmt.Sprintf("%s packets of %d bytes are lost", family, w.Full.Bytes))
		case isFull && w.Full.Answered == 0 && w.Largest < w.Full.Bytes:
			isSearched = true
			short = append(short, fmt.Sprintf("%s packets above %d bytes are lost", family, w.Largest))
			found.MTU = smaller(found.MTU, w.Largest)
		case isFull:
			found.MTU = smaller(found.MTU, w.Full.Bytes)
		}
		if w.Small.Answered > 0 {
			found.RTT = max(found.RTT, w.Small.AvgMS/1000)
		}
	}
	if len(all) == 0 {
		return found, false
	}
	switch {
	case p.shown.State == api.PathLost && len(silent) == 0:
		p.results, p.sent = 0, 0 // what was lost before says nothing about the path now
	case isFiltered:
		p.results, p.sent = 1<<p.messagesLost-1, p.messages
	}
	p.isUnanswered = isUnanswered
	if p.isFiltered = isFiltered; !isFiltered {
		p.add(sent, lost)
		p.history.add(now, sent, lost)
	}
	isShort := p.shown.State == api.PathShort && !isFullTested // nothing is known of its end
	if outside := findOutside(result); outside != "" || len(silent) == 0 {
		p.outside = outside
	}
	switch {
	case isSearched:
		p.limit = limit{strings.Join(short, ", "), found.MTU}
	case isFullTested && len(short) == 0:
		p.limit = limit{}
	}
	switch {
	case len(silent) > 0:
		found.State, found.Reason = api.PathLost, p.describeSilence(silent, all)
	case len(short) > 0:
		found.State, found.MTU = api.PathShort, p.limit.mtu
		found.Reason = cmp.Or(p.limit.reason, strings.Join(short, ", "))
	case isShort:
		found.State, found.MTU, found.Reason = p.shown.State, p.shown.MTU, p.shown.Reason
	case p.lost() > lossyAbove, p.shown.State == api.PathLossy && p.lost() > 0:
		found.State, found.Reason = api.PathLossy, p.describeLoss()
	default:
		found.State = api.PathReached
	}
	if found.MTU == 0 {
		found.MTU = p.shown.MTU
	}
	return found, isFullTested
}

// add counts the small packets of one probe.
func (p *path) add(sent, lost int) {
	for i := range min(sent, window) {
		p.results <<= 1
		if i < lost {
			p.results |= 1
		}
	}
	p.results &= 1<<window - 1
	p.sent = min(window, p.sent+sent)
}

// describeSilence says in which families packets are lost, and whether the host answers outside the overlay.
func (p *path) describeSilence(silent, all []string) string {
	text := "no packet is answered"
	if len(silent) < len(all) {
		text = "no " + strings.Join(silent, " or ") + " packet is answered"
	}
	if p.outside == silentOutside {
		return text + ", also outside the overlay"
	}
	return text
}

// describeLoss says how many of the latest packets were lost.
func (p *path) describeLoss() string {
	what := "packets"
	if p.isFiltered {
		what = "messages"
	}
	return fmt.Sprintf("%d of the last %d %s were lost", p.lost(), p.sent, what)
}

// findOutside returns what a probe found of the host outside the overlay.
func findOutside(result api.PeerProbe) (found string) {
	for _, w := range result.Ways {
		switch {
		case w.Path != api.PathUnderlay || w.NotProbed != "":
		case w.Largest > 0:
			return answersOutside
		default:
			found = silentOutside
		}
	}
	return found
}

func smaller(a, b int) int {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// worst returns the peers whose paths are not in order, the worst first: by state, and those with the most loss first.
func worst(peers []*peer) (out []*peer) {
	order := []string{api.PathLost, api.PathShort, api.PathLossy}
	for _, p := range peers {
		if slices.Contains(order, p.shown.State) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *peer) int {
		return cmp.Or(slices.Index(order, a.shown.State)-slices.Index(order, b.shown.State),
			cmp.Compare(b.shown.Loss, a.shown.Loss), strings.Compare(a.Node, b.Node))
	})
	return out
}
