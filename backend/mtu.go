package backend

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
)

// Limits of an MTU in bytes. Below the smallest one of a family, the kernel removes the family from a device.
const (
	minMTU4 = 68   // RFC 791
	minMTU6 = 1280 // RFC 8200
	maxMTU  = 1<<16 - 1
)

// OptionMTU is the option of every backend with a datapath that limits the overlay's MTU, 0 for no limit.
const OptionMTU = "mtu"

// MTUTarget returns the target of OptionMTU.
func MTUTarget(value *int) OptionTarget {
	return OptionTarget{Value: value, Is: "a whole number of bytes"}
}

// CheckMTU returns an *OptionError if a value of OptionMTU is outside the limits of all networks.
func CheckMTU(mtu int) error {
	if mtu == 0 || mtu >= minMTU4 && mtu <= maxMTU {
		return nil
	}
	return &OptionError{Option: OptionMTU, Reason: fmt.Sprintf("must be 0 or %d to %d, is %d", minMTU4, maxMTU, mtu)}
}

// CheckMTUOption returns an *OptionError if OptionMTU in effective options is too small for one of the pools.
func CheckMTUOption(options json.RawMessage, pools []netip.Prefix) error {
	return checkPools(MTUOption(options), pools)
}

func checkPools(mtu int, pools []netip.Prefix) error {
	for _, pool := range pools {
		if least := MinMTU(pool.Addr()); mtu != 0 && mtu < least {
			return &OptionError{Option: OptionMTU, Reason: fmt.Sprintf("is %d, and pool %s needs at least %d", mtu, pool, least)}
		}
	}
	return nil
}

// MTUOption returns the value of OptionMTU in effective options, 0 for no limit.
func MTUOption(options json.RawMessage) int {
	var o struct {
		MTU int `json:"mtu"`
	}
	if json.Unmarshal(options, &o) != nil {
		return 0
	}
	return o.MTU
}

// MinMTU returns the smallest MTU of a device that carries packets of a's family.
func MinMTU(a netip.Addr) int {
	if a.Is4() {
		return minMTU4
	}
	return minMTU6
}

// An Encapsulation is what a backend adds to each packet.
type Encapsulation struct {
	Overhead int    // bytes
	Name     string // of the protocol and the family that carries it: "VXLAN over IPv4"; "" for no overhead
	Most     int    // the largest MTU that the backend can give the overlay; 0: no limit of its own
}

// MTU returns the MTU of a network's overlay: what the encapsulation leaves of the underlay's MTU, or the value of
// OptionMTU if that is less. because is the difference in words, as in Advertisement.Overhead. The error says that a
// family of the pools needs more.
func (e Encapsulation) MTU(u Underlay, pools []netip.Prefix, option int) (mtu int, because string, err error) {
	mtu = u.MTU - e.Overhead
	if e.Overhead > 0 {
		because = fmt.Sprintf("%d for %s", e.Overhead, e.Name)
	}
	if e.Most > 0 && mtu > e.Most {
		mtu = e.Most
		because = fmt.Sprintf("%d since no datagram is longer", u.MTU-mtu)
	}
	most := mtu
	switch {
	case option > most:
		because = cmp.Or(because, "0") + fmt.Sprintf(", although option mtu is %d", option)
	case option != 0 && option < most:
		mtu, because = option, fmt.Sprintf("%d since option mtu is %d", u.MTU-option, option)
	}
	for _, pool := range pools {
		if least := MinMTU(pool.Addr()); most < least {
			return 0, "", fmt.Errorf("underlay %s has an MTU of %d, which leaves %d: pool %s needs at least %d",
				u.Interface, u.MTU, most, pool, least)
		}
	}
	return mtu, because, checkPools(option, pools)
}
