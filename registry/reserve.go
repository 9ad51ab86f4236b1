package registry

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// CheckNewReservation is CheckReservation for a new reservation, which must also be in the range assigned to hosts.
// Outside that range no other host gets the slot anyway, and the slots outside were left out for another purpose.
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

// CheckKept is CheckNewReservation for the reservations of a new network. No two of them may have the same slot or
// host. The error names all faults.
func CheckKept(n Network, kept []Reservation) ([]Reservation, error) {
	if len(kept) > 0 && n.ModifyIndex != 0 {
		return nil, fmt.Errorf("%w: reservations go with a network that is new, with modify_index 0; network %s exists",
			ErrInvalid, n.Name)
	}
	out := make([]Reservation, 0, len(kept))
	slots, hosts := map[uint64]bool{}, map[[2]string]bool{}
	var errs []error
	for _, r := range kept {
		r, err := CheckNewReservation(n, r)
		host := [2]string{r.Node, strings.ToLower(r.NodeID)}
		switch {
		case err != nil:
		case slots[r.Slot]:
			err = fmt.Errorf("%w: reservations: %s is there twice", ErrInvalid, r.Subnet)
		case hosts[host]:
			err = fmt.Errorf("%w: reservations: %s has two, one is %s", ErrInvalid, r.Host(), r.Subnet)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		slots[r.Slot], hosts[host] = true, true
		out = append(out, r)
	}
	return out, errors.Join(errs...)
}

// Beside returns ErrReserved when other conflicts with r: it keeps the slot for another host, or another slot for the
// host. same is true when other equals r.
func (r Reservation) Beside(other Reservation) (same bool, err error) {
	sameHost := other.Node == r.Node && strings.EqualFold(other.NodeID, r.NodeID) // hexadecimal digits
	switch {
	case other.Slot == r.Slot && sameHost:
		return true, nil
	case other.Slot == r.Slot:
		return false, fmt.Errorf("%w: %s is kept for %s", ErrReserved, other.Subnet, other.Host())
	case sameHost:
		return false, fmt.Errorf("%w: %s has %s already", ErrReserved, r.Host(), other.Subnet)
	}
	return false, nil
}

// Compare orders reservations of one network by slot, and without a plan by subnet.
func (r Reservation) Compare(other Reservation) int {
	return cmp.Or(cmp.Compare(r.Slot, other.Slot), r.Subnet.Addr().Compare(other.Subnet.Addr()))
}

// Host describes the host that the reservation is for.
func (r Reservation) Host() string {
	if r.NodeID != "" {
		return "node id " + r.NodeID
	}
	return fmt.Sprintf("node %q", r.Node)
}

// Hindered returns ErrHeld when l, the lease on the reservation's slot, is held by a host other than the one the slot
// is kept for. A lapsed lease does not hinder: its host still comes first if it returns, and the reservation's host
// comes second.
func (r Reservation) Hindered(l Lease) error {
	if !l.Held() || r.For(Claim{Node: l.Node, NodeID: l.NodeID}) {
		return nil
	}
	return fmt.Errorf("%w: %s holds %s and keeps it for as long as it lives; use force to reserve it anyway",
		ErrHeld, l.host(), l.Subnet())
}

// HinderedUnread returns ErrHeld for a record on the slot that cannot be read and is locked by a session. It belongs to
// a live host, but which one is not known.
func HinderedUnread(key, session string) error {
	if session == "" {
		return nil
	}
	return fmt.Errorf("%w: the unusable record %s is locked by session %s; use force to reserve it anyway",
		ErrHeld, key, session)
}
