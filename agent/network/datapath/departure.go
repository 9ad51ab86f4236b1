package datapath

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
)

// Previous is an underlay that this host had.
type Previous struct {
	Interface string // "" if it had none
	Index     int    // ifindex, 0 if an earlier process had it
	Addrs     []netip.Addr
	Peers     []netip.Addr // public addresses of the other hosts at that time
}

// isOn reports whether a choice is the same device.
func (p Previous) isOn(c underlay.Choice) bool {
	return p.Interface == c.Interface && (p.Index == 0 || p.Index == c.Index)
}

// lastKnown returns the last underlay of this process, else that of an earlier one.
func (s *underlaySelector) lastKnown() Previous {
	var known Previous
	if s.previous != nil {
		known = s.previous()
	}
	if u := s.status.get().Underlay; u.Interface != "" {
		known.Interface, known.Addrs = u.Interface, u.Addresses
	}
	return known
}

// departureShown is how long health warns that the host has left its underlay.
const departureShown = 10 * time.Minute

// A departure is a move of the underlay to another device that the settings do not ask for.
type departure struct {
	from Previous
	at   time.Time
}

func (d *departure) String() string {
	return fmt.Sprintf("%s %v, which no longer carries packets to the other hosts or has lost its address",
		d.from.Interface, d.from.Addrs)
}

// noteDeparture compares an underlay that is about to be shown with the one before. If the host has left that one
// although the settings name none, it adds an event. It returns the departure to warn about, until the host is back or
// for departureShown; nil if there is none. A device that took over the addresses, such as a bridge, is no other
// underlay.
func (s *underlaySelector) noteDeparture(u UnderlayState) *departure {
	before, left := s.lastKnown(), s.status.get().left
	to, addrs := u.Choice.Interface, u.Choice.Addrs
	if left != nil && time.Since(left.at) >= departureShown {
		left = nil
	}
	moved := before.Interface != "" && before.Interface != to && !slices.Equal(before.Addrs, addrs)
	if moved && underlay.FollowsDefaultRoute(s.settings) {
		isBack := left != nil && left.from.Interface == to
		if left = nil; !isBack {
			left = &departure{before, time.Now()}
		}
		message := fmt.Sprintf("underlay moved from %s %v to %s %v", before.Interface, before.Addrs, to, addrs)
		s.report.Event(api.EventNetwork, api.Warning, message, nil)
		s.report.Log().Warn(message, "because", u.Choice.Reason)
	}
	s.status.update(func(st *Status) { st.left = left })
	return left
}
