package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
)

// echoReply is the answer to a packet that reached its address.
const echoReply = "echo reply"

// narrow describes a path that does not carry packets as long as its devices' MTUs.
type narrow struct {
	peer    Peer
	overlay int    // MTU of the overlay, if its packets of that size are lost; else 0
	sent    int    // bytes of the full underlay packets that were sent, 0 for none
	fits    int    // MTU of the path between the hosts, the smaller of both measurements
	said    string // a router's error, "" for none
}

// narrowPath reports whether the path to a peer is narrow, and describes it.
func (w *ways) narrowPath(p Peer) (narrow, bool) {
	out := narrow{peer: p}
	add := func(fits int) {
		if out.fits == 0 || fits < out.fits {
			out.fits = fits
		}
	}
	for _, way := range p.Probe.Ways {
		// Kernels send few errors, and a host without a device answers with errors.
		lost := untried(way) == "" && way.Answer == echoReply && way.Full.Sent > 0 && way.Full.Answered == 0 &&
			way.Largest > 0
		switch {
		case !lost:
		case way.Path == api.PathOverlay:
			out.overlay = way.MTU
			add(untagged(way.Largest + w.n.Underlay.MTU - w.n.MTU))
		case way.Path == api.PathUnderlay:
			out.sent = way.MTU
			add(untagged(way.Largest))
			for _, e := range way.Errors {
				if e.MTU > 0 {
					out.said = fmt.Sprintf("; %s says so (%s, %d)", e.From, e.Reason, e.MTU)
					add(e.MTU)
				}
			}
		}
	}
	return out, out.fits > 0
}

// untagged returns the MTU of a path that carries packets of so many bytes. Many devices carry 4 bytes more than
// their MTU, for the tag of a VLAN, and some in one direction only; nearly all MTUs that people set are multiples of
// 10.
func untagged(bytes int) int {
	const tag = 4
	if (bytes-tag)%10 == 0 {
		return bytes - tag
	}
	return bytes
}

// sizes judges whether packets of the full size pass. Narrow paths share a finding.
func (w *ways) sizes() {
	var lost, pieces []narrow
	for _, p := range w.reached {
		switch path, ok := w.narrowPath(p); {
		case !ok:
		case path.overlay > 0:
			lost = append(lost, path)
		default:
			pieces = append(pieces, path)
		}
	}
	if len(lost) > 0 {
		f := w.narrowed(lost)
		f.Status = api.FindingFault
		w.add(f)
	}
	if len(pieces) > 0 {
		w.add(w.narrowed(pieces))
	}
}

// sized returns the extent of a fault that the peers in with show, compared to all peers that full packets were sent
// to.
func (w *ways) sized(with []Peer) extent {
	e := extent{with, -len(with)}
	for _, p := range w.reached {
		if slices.ContainsFunc(p.Probe.Ways,
			func(way api.ProbedWay) bool { return untried(way) == "" && way.Full.Sent > 0 }) {
			e.others++
		}
	}
	return e
}

// narrowed returns a warning about paths of one kind.
func (w *ways) narrowed(paths []narrow) api.Finding {
	all := paths[0]
	var peers []Peer
	for _, p := range paths {
		peers = append(peers, p.peer)
		all.fits, all.sent = min(all.fits, p.fits), max(all.sent, p.sent)
		if all.said == "" {
			all.said = p.said
		}
	}
	e, link := w.sized(peers), w.n.Underlay.Interface
	saw := fmt.Sprintf("the overlay carries %d bytes in pieces", w.n.MTU)
	if all.overlay > 0 {
		saw = fmt.Sprintf("packets of %d bytes pass through the overlay, those of %d, its MTU, do not",
			all.fits-w.n.Underlay.MTU+w.n.MTU, all.overlay)
	}
	if all.sent > 0 {
		saw += fmt.Sprintf("; of %d bytes that %s can send, %d reach %s plainly%s", all.sent, link, all.fits, e.names(),
			all.said)
	}
	place := "what lies between the hosts (switch ports, VLANs, virtual networks)"
	switch {
	case e.own():
		place = fmt.Sprintf("what %s is connected to (its switch port, VLAN or virtual network)", link)
	case len(peers) == 1 && e.others > 0:
		place = fmt.Sprintf("what %s is connected to (its switch port, VLAN or virtual network)", peers[0].Node)
	}
	return warning(CheckPathMTU, w.n.Name, e.peer(),
		"send packets of the full size to "+e.names()+", through the overlay and plainly", saw+e.where(w.link()),
		fmt.Sprintf("set the MTU of %s to %d; else lower that of every host, here with `ip link set dev %s mtu %d` and in "+
			"the host's network configuration: leno's networks follow",
			place, w.n.Underlay.MTU, link, all.fits))
}

// losses judges packets that got lost on paths that carry others of their size.
func (w *ways) losses() {
	var peers []Peer
	var told []string
	for _, p := range w.reached {
		var parts []string
		for _, way := range p.Probe.Ways {
			for _, size := range []api.ProbedSize{way.Small, way.Full} {
				if size.Answered > 0 && size.Lost() > 0 {
					parts = append(parts, fmt.Sprintf("%d of %d packets of %d bytes to %s through the %s", size.Lost(), size.Sent,
						size.Bytes, p.Node, way.Path))
				}
			}
		}
		if len(parts) > 0 {
			peers, told = append(peers, p), append(told, strings.Join(parts, ", "))
		}
	}
	if len(peers) == 0 {
		return
	}
	if more := len(told) - mostNamed; more > 0 {
		told = append(told[:mostNamed], fmt.Sprintf("and to %d more hosts", more))
	}
	e, link := extent{peers, len(w.reached) - len(peers)}, w.n.Underlay.Interface
	w.add(warning(CheckPeers, w.n.Name, e.peer(), "send packets to the other hosts",
		"lost were "+strings.Join(told, "; ")+e.where(w.link()),
		fmt.Sprintf("send more, to see whether it lasts: `leno peers %s -probe -count=50`; then look at the error counters "+
			"of the devices on the way, here with `ip -s link show dev %s`", w.n.Name, link)))
}

// checksums judges peers that receive pings and nothing else.
func (w *ways) checksums() {
	var peers []Peer
	for _, p := range w.reached {
		if p.Datagrams == No {
			peers = append(peers, p)
		}
	}
	if len(peers) == 0 {
		return
	}
	e := extent{peers, len(w.reached) - len(peers)}
	do := `set checksum_offload = "off" in the network's backend block (` + "`leno network apply`" +
		`); it is for network cards and kernels that write wrong checksums into packets within packets`
	if w.n.Backend != "vxlan" {
		do = "look for rules between the hosts that let pings pass and nothing else"
	}
	w.add(fault(CheckChecksum, w.n.Name, e.peer(),
		"send pings, UDP and TCP through the overlay, with one hop to live, so that no firewall of containers matters",
		"pings reach "+e.names()+", and of UDP and TCP nothing: that is what becomes of packets whose checksums are left to "+
			"the network card and come out wrong"+e.where(w.link()), do))
}
