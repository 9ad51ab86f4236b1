package registry

import "fmt"

// CheckNewReservation is CheckReservation for one that is to be added, which
// must be in the range that hosts are given too: outside of it nobody else gets
// the slot anyway, and what was left out was left out for something else.
func CheckNewReservation(n Network, r Reservation) (Reservation, error) {
	r, err := CheckReservation(n, r)
	if err != nil {
		return Reservation{}, err
	}
	if !n.Plan.InRange(r.Slot) {
		first, last := n.Plan.Range()
		return Reservation{}, fmt.Errorf("%w: %s is out of the network's range, %s to %s",
			ErrInvalid, r.Subnet, n.Plan.Subnets(first)[0], n.Plan.Subnets(last)[0])
	}
	return r, nil
}

// Hindered is ErrHeld when l, the lease on the reservation's slot, is held by
// another host than the one it is kept for. A lapsed lease hinders nothing: its
// host still comes first if it returns, and the reservation's host after that.
func (r Reservation) Hindered(l Lease) error {
	if !l.Held() || r.For(Claim{Node: l.Node, NodeID: l.NodeID}) {
		return nil
	}
	return fmt.Errorf("%w: %q (%s, node id %s) holds %s and keeps it for as long as it lives; force reserves it all the same",
		ErrHeld, l.Node, joinAddrs(l.PublicIPs), l.NodeID, l.Subnet())
}

// HinderedUnread is ErrHeld for a record on the slot that cannot be read and is
// locked by a session: some live host's, whichever that is.
func HinderedUnread(key, session string) error {
	if session == "" {
		return nil
	}
	return fmt.Errorf("%w: the unusable record %s is locked by session %s; force reserves it all the same", ErrHeld, key, session)
}
