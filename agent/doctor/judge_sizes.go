package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/plural"
)

// echoReply is the answer to a packet that reached its address.
const echoReply = "echo reply"

// narrowPath describes a path that does not carry packets as long as its devices' MTUs.
type narrowPath struct {
	peer        Peer
	overlay     int    // MTU of the overlay, if its packets of that size are lost; else 0
	sent        int    // bytes of the full underlay packets that were sent, 0 for none
	mtu         int    // MTU of the path between the hosts, the smaller of both measurements
	routerError string // a router's error, "" for none
}

// findNarrowPath reports whether the path to a peer is narrow, and describes it.
func (w *pathVerdict) findNarrowPath(p Peer) (narrowPath, bool) {
	out := narrowPath{peer: p}
	lower := func(fits int) {
		if out.mtu == 0 || fits < out.mtu {
			out.mtu = fits
		}
	}
	for _, way := range p.Probe.Ways {
		// Kernels send few errors, and a host without a device answers with errors.
		lost := notSentReason(way) == "" && way.Answer == echoReply && way.Full.Sent > 0 && way.Full.Answered == 0 &&
			way.Largest > 0
		switch {
		case !lost:
		case way.Path == api.PathOverlay:
			out.overlay = way.MTU
			lower(stripTag(way.Largest + w.n.Underlay.MTU - w.n.MTU))
		case way.Path == api.PathUnderlay:
			out.sent = way.MTU
			lower(stripTag(way.Largest))
			for _, e := range way.Errors {
				if e.MTU > 0 {
					out.routerError = fmt.Sprintf("; %s reports it (%s, %d)", e.From, e.Reason, e.MTU)
					lower(e.MTU)
				}
			}
		}
	}
	return out, out.mtu > 0
}

// stripTag returns the MTU of a path that carries packets of so many bytes. Many devices carry 4 bytes more than
// their MTU, for the tag of a VLAN, and some in one direction only; nearly all MTUs that people set are multiples of
// 10.
func stripTag(bytes int) int {
	const tag = 4
	if (bytes-tag)%10 == 0 {
		return bytes - tag
	}
	return bytes
}

// judgeSizes judges whether packets of the full size pass. Narrow paths share a finding.
func (w *pathVerdict) judgeSizes() {
	var lost, pieces []narrowPath
	for _, p := range w.reachedPeers {
		switch path, ok := w.findNarrowPath(p); {
		case !ok:
		case path.overlay > 0:
			lost = append(lost, path)
		default:
			pieces = append(pieces, path)
		}
	}
	if len(lost) > 0 {
		f := w.sizeFinding(lost)
		f.Status = api.FindingFault
		w.add(f)
	}
	if len(pieces) > 0 {
		w.add(w.sizeFinding(pieces))
	}
}

// sizeExtent returns the extent of a fault that the peers in with show, compared to all peers that full packets were
// sent to.
func (w *pathVerdict) sizeExtent(with []Peer) extent {
	e := extent{with, -len(with)}
	for _, p := range w.reachedPeers {
		if slices.ContainsFunc(p.Probe.Ways,
			func(way api.ProbedWay) bool { return notSentReason(way) == "" && way.Full.Sent > 0 }) {
			e.others++
		}
	}
	return e
}

// sizeFinding returns a warning about paths of one kind.
func (w *pathVerdict) sizeFinding(paths []narrowPath) api.Finding {
	all := paths[0]
	var peers []Peer
	for _, p := range paths {
		peers = append(peers, p.peer)
		all.mtu, all.sent = min(all.mtu, p.mtu), max(all.sent, p.sent)
		if all.routerError == "" {
			all.routerError = p.routerError
		}
	}
	e, link := w.sizeExtent(peers), w.n.Underlay.Interface
	saw := fmt.Sprintf("the overlay fragments packets of %d bytes", w.n.MTU)
	if all.overlay > 0 {
		saw = fmt.Sprintf("packets of %d bytes pass through the overlay, those of %d, its MTU, do not",
			all.mtu-w.n.Underlay.MTU+w.n.MTU, all.overlay)
	}
	if all.sent > 0 {
		saw += fmt.Sprintf("; of %d bytes that %s can send, %d reach %s over the underlay%s", all.sent, link, all.mtu,
			e.names(),
			all.routerError)
	}
	place := "what lies between the hosts (switch ports, VLANs, virtual networks)"
	switch {
	case e.isLocal():
		place = fmt.Sprintf("what %s is connected to (its switch port, VLAN or virtual network)", link)
	case len(peers) == 1 && e.others > 0:
		place = fmt.Sprintf("what %s is connected to (its switch port, VLAN or virtual network)", peers[0].Node)
	}
	return newWarning(CheckPathMTU, w.n.Name, e.node(),
		"send packets of the full size to "+e.names()+", through the overlay and over the underlay",
		saw+e.location(w.ownLink()),
		fmt.Sprintf("set the MTU of %s to %d; else lower that of every host, here with `ip link set dev %s mtu %d` and in "+
			"the host's network configuration: leno's networks follow",
			place, w.n.Underlay.MTU, link, all.mtu))
}

// judgeLosses judges packets that got lost on paths that carry others of their size.
func (w *pathVerdict) judgeLosses() {
	var peers []Peer
	var texts []string
	for _, p := range w.reachedPeers {
		var parts []string
		for _, way := range p.Probe.Ways {
			for _, size := range []api.ProbedSize{way.Small, way.Full} {
				if size.Answered > 0 && size.Lost() > 0 {
					parts = append(parts, fmt.Sprintf("%d of %d packets (%d bytes) to %s lost in the %s", size.Lost(), size.Sent,
						size.Bytes, p.Node, way.Path))
				}
			}
		}
		if p.Path != nil && p.Path.State == api.PathLossy {
			parts = append(parts, fmt.Sprintf("the continuous tests of the path to %s: %s", p.Node, p.Path.Reason))
		}
		if len(parts) > 0 {
			peers, texts = append(peers, p), append(texts, strings.Join(parts, ", "))
		}
	}
	if len(peers) == 0 {
		return
	}
	if more := len(texts) - maxNamed; more > 0 {
		texts = append(texts[:maxNamed], "and packets to "+plural.Count(more, "more host"))
	}
	e, link := extent{peers, len(w.reachedPeers) - len(peers)}, w.n.Underlay.Interface
	w.add(newWarning(CheckPeers, w.n.Name, e.node(), "send packets to the other hosts",
		strings.Join(texts, "; ")+e.location(w.ownLink()),
		fmt.Sprintf("repeat with more packets: `leno peers %s -probe -count=50`; then look at the error counters "+
			"of the devices on the way, here with `ip -s link show dev %s`", w.n.Name, link)))
}

// judgeChecksums judges peers that receive pings but neither UDP nor TCP.
func (w *pathVerdict) judgeChecksums() {
	var peers []Peer
	for _, p := range w.reachedPeers {
		if p.Datagrams == No {
			peers = append(peers, p)
		}
	}
	if len(peers) == 0 {
		return
	}
	e := extent{peers, len(w.reachedPeers) - len(peers)}
	do := `set checksum_offload = "off" in the network's backend block (` + "`leno network apply`" +
		`); it is for network cards and kernels that write wrong checksums into encapsulated packets`
	if w.n.Backend != "vxlan" {
		do = "look for rules between the hosts that allow only ICMP"
	}
	w.add(newFault(CheckChecksum, w.n.Name, e.node(),
		"send pings, UDP and TCP through the overlay with a hop limit of 1, so that rules about containers do not apply",
		"pings reach "+e.names()+", UDP and TCP do not: this happens when a network card computes wrong "+
			"checksums"+e.location(w.ownLink()), do))
}
