package registry

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
)

// Limits of a plan. As in flannel, a pool has at least 4 subnets (MinSlotBits). It has at most 2^MaxSlotBits, which an
// IPv6 /8 of /64s would exceed.
const (
	MinSlotBits = 2
	MaxSlotBits = 32

	defaultSubnetLen4 = 24 // flannel's
	defaultSubnetLen6 = 64 // one link, RFC 4291
	maxSubnetLen4     = 30 // the smallest with two usable addresses beside the gateway's network
	maxSubnetLen6     = 126
)

// Pool is the address space of one family. Prefix is divided into subnets of SubnetLen bits, and those from Min to Max
// (each the first address of a subnet, inclusive) are assigned to hosts.
type Pool struct {
	Prefix    netip.Prefix
	SubnetLen int
	Min, Max  netip.Addr
}

// Plan has one pool for each address family, IPv4 first.
type Plan []Pool

// notForHosts are the prefixes that the kernel does not route between hosts: this network, loopback, link-local and
// multicast (RFC 6890), and IPv4 written as IPv6.
var notForHosts = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// Normalize fills in defaults and checks the limits. The default of SubnetLen is 24 (IPv6 64), or two bits more than
// the prefix when that is longer. The default of Min is the second subnet, so the first is left out; that of Max is the
// last. Errors wrap ErrInvalid and are joined.
func (p Pool) Normalize() (Pool, error) {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("pool %s: %w: %s", p.Prefix, ErrInvalid, fmt.Sprintf(format, args...))
	}
	if !p.Prefix.IsValid() {
		return p, fmt.Errorf("pool: %w: prefix is missing", ErrInvalid)
	}
	if p.Prefix.Addr().Is4In6() {
		return p, invalid("write it as IPv4")
	}
	if p.Prefix != p.Prefix.Masked() {
		return p, invalid("has host bits set, did you mean %s?", p.Prefix.Masked())
	}
	if i := slices.IndexFunc(notForHosts[:], p.Prefix.Overlaps); i >= 0 {
		return p, invalid("is not unicast address space for hosts: it overlaps %s", notForHosts[i])
	}
	def, most := defaultSubnetLen4, maxSubnetLen4
	if p.Prefix.Addr().Is6() {
		def, most = defaultSubnetLen6, maxSubnetLen6
	}
	if longest := most - MinSlotBits; p.Prefix.Bits() > longest {
		return p, invalid("the prefix is longer than /%d, which holds %d subnets of /%d", longest, 1<<MinSlotBits, most)
	}
	standard := ""
	if p.SubnetLen == 0 {
		p.SubnetLen, standard = max(def, p.Prefix.Bits()+MinSlotBits), ", the default,"
	}
	switch width := p.SubnetLen - p.Prefix.Bits(); {
	case p.SubnetLen > most:
		return p, invalid("subnet_len %d is longer than %d", p.SubnetLen, most)
	case width < MinSlotBits:
		return p, invalid("subnet_len %d leaves fewer than 4 subnets, it must be at least %d",
			p.SubnetLen, p.Prefix.Bits()+MinSlotBits)
	case width > MaxSlotBits:
		return p, invalid("subnet_len %d%s makes more than 2^%d subnets, set it to %d or less",
			p.SubnetLen, standard, MaxSlotBits, p.Prefix.Bits()+MaxSlotBits)
	}
	if !p.Min.IsValid() {
		p.Min = p.subnet(1).Addr()
	}
	if !p.Max.IsValid() {
		p.Max = p.subnet(p.size() - 1).Addr()
	}
	var errs []error
	for _, end := range []struct {
		name string
		addr netip.Addr
	}{{"min", p.Min}, {"max", p.Max}} {
		switch {
		case !p.Prefix.Contains(end.addr):
			errs = append(errs, invalid("%s %s is outside", end.name, end.addr))
		case netip.PrefixFrom(end.addr, p.SubnetLen).Masked().Addr() != end.addr:
			errs = append(errs, invalid("%s %s is not the first address of a /%d", end.name, end.addr, p.SubnetLen))
		}
	}
	if len(errs) == 0 && p.Max.Less(p.Min) {
		errs = append(errs, invalid("min %s is above max %s", p.Min, p.Max))
	}
	return p, errors.Join(errs...)
}

// size returns the number of subnets in the prefix, in range or not.
func (p Pool) size() uint64 { return 1 << (p.SubnetLen - p.Prefix.Bits()) }

// subnet returns the k-th subnet counted from the start of the prefix. Where the prefix has fewer, as the pool of one
// family may have for a slot of the other, it counts on from the first address of the family after the last.
func (p Pool) subnet(k uint64) netip.Prefix {
	base := p.Prefix.Addr()
	sum := new(big.Int).SetUint64(k)
	sum.Lsh(sum, uint(base.BitLen()-p.SubnetLen)).Add(sum, new(big.Int).SetBytes(base.AsSlice()))
	var bytes [25]byte // room for any k
	sum.FillBytes(bytes[:])
	addr, _ := netip.AddrFromSlice(bytes[len(bytes)-base.BitLen()/8:])
	return netip.PrefixFrom(addr, p.SubnetLen)
}

// index returns the number of the subnet that begins at or contains a. The prefix must contain a.
func (p Pool) index(a netip.Addr) uint64 {
	offset := new(big.Int).SetBytes(a.AsSlice())
	offset.Sub(offset, new(big.Int).SetBytes(p.Prefix.Addr().AsSlice()))
	return offset.Rsh(offset, uint(a.BitLen()-p.SubnetLen)).Uint64()
}

// Normalize sorts the pools IPv4 first, normalizes each, and checks that they fit together: at least one pool, at most
// one per family, and a range of slots that all of them have.
func (p Plan) Normalize() (Plan, error) {
	if len(p) == 0 {
		return p, fmt.Errorf("%w: a network needs at least one pool", ErrInvalid)
	}
	var out Plan
	var errs []error
	for _, family := range []struct {
		name string
		is   func(netip.Addr) bool
	}{
		{"IPv4", func(a netip.Addr) bool { return !a.Is6() }},
		{"IPv6", netip.Addr.Is6},
	} {
		seen := 0
		for _, pool := range p {
			if !family.is(pool.Prefix.Addr()) {
				continue
			}
			seen++
			pool, err := pool.Normalize()
			if err != nil {
				errs = append(errs, err)
			}
			out = append(out, pool)
		}
		if seen > 1 {
			errs = append(errs, fmt.Errorf("%w: %d %s pools, a network has at most one", ErrInvalid, seen, family.name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return p, err
	}
	if first, last := out.Range(); first > last {
		return p, fmt.Errorf("%w: the pools' ranges have no slot in common", ErrInvalid)
	}
	return out, nil
}

// Range returns the first and last slot assigned to hosts, inclusive: the intersection of the ranges of all pools. The
// plan must be normalized.
func (p Plan) Range() (first, last uint64) {
	last = ^uint64(0)
	for _, pool := range p {
		first = max(first, pool.index(pool.Min))
		last = min(last, pool.index(pool.Max))
	}
	return first, last
}

// Capacity returns the number of slots assigned to hosts.
func (p Plan) Capacity() uint64 {
	first, last := p.Range()
	return last - first + 1
}

// InRange reports whether slot is assigned to hosts.
func (p Plan) InRange(slot uint64) bool {
	first, last := p.Range()
	return first <= slot && slot <= last
}

// Subnets returns the slot's subnet in every pool, in the plan's order.
func (p Plan) Subnets(slot uint64) []netip.Prefix {
	out := make([]netip.Prefix, len(p))
	for i, pool := range p {
		out[i] = pool.subnet(slot)
	}
	return out
}

// Slot returns the slot that has subnet as one of its subnets. Errors wrap ErrInvalid: outside every pool, host bits
// set, or the wrong length.
func (p Plan) Slot(subnet netip.Prefix) (uint64, error) {
	for _, pool := range p {
		if !subnet.IsValid() || !pool.Prefix.Contains(subnet.Addr()) {
			continue
		}
		if subnet.Bits() != pool.SubnetLen {
			return 0, fmt.Errorf("subnet %s: %w: the network's subnets are /%d", subnet, ErrInvalid, pool.SubnetLen)
		}
		if subnet != subnet.Masked() {
			return 0, fmt.Errorf("subnet %s: %w: host bits are set", subnet, ErrInvalid)
		}
		return pool.index(subnet.Addr()), nil
	}
	return 0, fmt.Errorf("subnet %s: %w: outside the network", subnet, ErrInvalid)
}

// First returns the first subnet of the slot that has subnet as one of its subnets, or subnet itself if there is none.
func (p Plan) First(subnet netip.Prefix) netip.Prefix {
	slot, err := p.Slot(subnet)
	if err != nil {
		return subnet
	}
	return p.Subnets(slot)[0]
}

// Overlapping returns the first and last slot (inclusive) whose subnets share addresses with prefix; ok is false when
// there are none. With it, a record of another plan blocks the slots that it may be using.
func (p Plan) Overlapping(prefix netip.Prefix) (first, last uint64, ok bool) {
	for _, pool := range p {
		if !prefix.IsValid() || !pool.Prefix.Overlaps(prefix) {
			continue
		}
		if prefix.Bits() <= pool.Prefix.Bits() {
			return 0, pool.size() - 1, true
		}
		first = pool.index(prefix.Masked().Addr())
		if prefix.Bits() >= pool.SubnetLen {
			return first, first, true
		}
		return first, first + 1<<(pool.SubnetLen-prefix.Bits()) - 1, true
	}
	return 0, 0, false
}

// Prefixes returns the prefix of every pool.
func (p Plan) Prefixes() []netip.Prefix {
	out := make([]netip.Prefix, len(p))
	for i, pool := range p {
		out[i] = pool.Prefix
	}
	return out
}

// unrouted are the address ranges to which the Internet leads no packets: private ones, those of providers' NAT, tests
// and documentation, and link-local, reserved and multicast ones.
var unrouted = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("fc00::/7"),
}

// IsPublic reports whether a pool with a prefix takes the way to other people's hosts from the hosts of its network.
// IPv6 prefixes from /32 on may well be the network's own.
func IsPublic(p netip.Prefix) bool {
	if p.Addr().Is6() && p.Bits() >= 32 {
		return false
	}
	return !slices.ContainsFunc(unrouted, func(r netip.Prefix) bool { return Contains(r, p) })
}

// Contains reports whether a prefix contains all addresses of another one.
func Contains(p, other netip.Prefix) bool {
	return p.Bits() <= other.Bits() && p.Contains(other.Addr())
}
