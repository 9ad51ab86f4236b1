package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what another host may have written.
const (
	MaxRecordSize = 16 << 10 // bytes of one value
	maxDepth      = 16       // nested JSON
	maxAddresses  = 16
	maxNameLen    = 128
	minMTU        = 68 // RFC 791
	maxMTU        = 65535
)

var networkName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,62}[a-zA-Z0-9])?$`)

// CheckNetworkName says why name cannot name a network: it is a component of
// keys, file names and device names. Errors wrap ErrInvalid.
func CheckNetworkName(name string) error {
	if !networkName.MatchString(name) {
		return fmt.Errorf("network name %q: %w: 1 to 64 letters, digits, '_', '.' and '-', beginning and ending with a letter or digit", name, ErrInvalid)
	}
	return nil
}

// SubnetKey is the last component of the key of the lease or reservation whose
// first subnet is p: 10.5.34.0-24.
func SubnetKey(p netip.Prefix) string {
	return p.Addr().String() + "-" + fmt.Sprint(p.Bits())
}

// ParseSubnetKey reads it back. Only the spelling SubnetKey writes is valid.
func ParseSubnetKey(key string) (netip.Prefix, error) {
	addr, length, ok := cutLast(key, "-")
	if !ok {
		return netip.Prefix{}, fmt.Errorf("key %q: %w: not ADDRESS-LENGTH", key, ErrInvalid)
	}
	p, err := netip.ParsePrefix(addr + "/" + length)
	if err != nil || SubnetKey(p) != key || p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("key %q: %w: not the first address and length of a subnet", key, ErrInvalid)
	}
	return p, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+len(sep):], true
}

type poolRecord struct {
	Prefix    netip.Prefix `json:"prefix"`
	SubnetLen int          `json:"subnet_len,omitempty"`
	Min       netip.Addr   `json:"min,omitzero"`
	Max       netip.Addr   `json:"max,omitzero"`
}

type networkRecord struct {
	Version int          `json:"version"`
	Name    string       `json:"name"`
	Pools   []poolRecord `json:"pools"`
	Backend Backend      `json:"backend"`
}

type leaseRecord struct {
	Version   int            `json:"version"`
	Subnet    netip.Prefix   `json:"subnet"`
	Subnets   []netip.Prefix `json:"subnets"`
	Node      string         `json:"node"`
	NodeID    string         `json:"node_id"`
	PublicIP  netip.Addr     `json:"public_ip"`
	PublicIPs []netip.Addr   `json:"public_ips"`
	MTU       int            `json:"mtu"`
	Backend   Backend        `json:"backend"`
}

type reservationRecord struct {
	Version int          `json:"version"`
	Subnet  netip.Prefix `json:"subnet"`
	Node    string       `json:"node,omitempty"`
	NodeID  string       `json:"node_id,omitempty"`
}

// decode reads one record into v after bounding it.
func decode(value []byte, v any, version *int) error {
	switch {
	case len(value) == 0:
		return fmt.Errorf("%w: empty value", ErrInvalid)
	case len(value) > MaxRecordSize:
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrInvalid, len(value), MaxRecordSize)
	case !utf8.Valid(value):
		return fmt.Errorf("%w: not UTF-8", ErrInvalid)
	case depth(value) > maxDepth:
		return fmt.Errorf("%w: nested deeper than %d", ErrInvalid, maxDepth)
	}
	if err := json.Unmarshal(value, v); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if *version != Version {
		return fmt.Errorf("%w: version %d, this leno reads version %d", ErrInvalid, *version, Version)
	}
	return nil
}

// depth is an upper bound of the nesting, brackets in strings included.
func depth(value []byte) int {
	deepest, now := 0, 0
	for _, c := range value {
		switch c {
		case '{', '[':
			now++
			deepest = max(deepest, now)
		case '}', ']':
			now--
		}
	}
	return deepest
}

// FormatNetwork is the value a network is stored as: effective values, no
// defaults left out.
func FormatNetwork(n Network) ([]byte, error) {
	r := networkRecord{Version: Version, Name: n.Name, Backend: n.Backend}
	for _, p := range n.Plan {
		r.Pools = append(r.Pools, poolRecord(p))
	}
	return json.Marshal(r)
}

// ParseNetwork reads the value stored for the network called name. Errors wrap
// ErrInvalid.
func ParseNetwork(name string, value []byte) (Network, error) {
	if err := CheckNetworkName(name); err != nil {
		return Network{}, err
	}
	var r networkRecord
	if err := decode(value, &r, &r.Version); err != nil {
		return Network{}, err
	}
	if r.Name != name {
		return Network{}, fmt.Errorf("%w: name %q in the value of %q", ErrInvalid, r.Name, name)
	}
	if r.Backend.Type == "" {
		return Network{}, fmt.Errorf("%w: backend type is missing", ErrInvalid)
	}
	var plan Plan
	for _, p := range r.Pools {
		plan = append(plan, Pool(p))
	}
	plan, err := plan.Normalize()
	if err != nil {
		return Network{}, err
	}
	return Network{Name: name, Plan: plan, Backend: r.Backend}, nil
}

// FormatLease is the value a lease is stored as.
func FormatLease(l Lease) ([]byte, error) {
	r := leaseRecord{Version: Version, Subnet: l.Subnet(), Subnets: l.Subnets, Node: l.Node, NodeID: l.NodeID,
		PublicIPs: l.PublicIPs, MTU: l.MTU, Backend: l.Backend}
	if len(l.PublicIPs) > 0 {
		r.PublicIP = l.PublicIPs[0]
	}
	return json.Marshal(r)
}

// ParseLease reads the value stored under key (the last component) for a lease
// of n, and holds it against the plan and the key. Errors wrap ErrInvalid.
func ParseLease(n Network, key string, value []byte) (Lease, error) {
	subnet, err := ParseSubnetKey(key)
	if err != nil {
		return Lease{}, err
	}
	slot, err := n.Plan.Slot(subnet)
	if err != nil {
		return Lease{}, err
	}
	var r leaseRecord
	if err := decode(value, &r, &r.Version); err != nil {
		return Lease{}, err
	}
	if len(r.Subnets) == 0 && r.Subnet.IsValid() {
		r.Subnets = []netip.Prefix{r.Subnet}
	}
	if len(r.PublicIPs) == 0 && r.PublicIP.IsValid() {
		r.PublicIPs = []netip.Addr{r.PublicIP}
	}
	var errs []error
	invalid := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...)))
	}
	if r.Subnet != subnet {
		invalid("subnet %s contradicts the key", r.Subnet)
	}
	// A lease from before the network gained a family has fewer subnets; more,
	// or another slot's, would take somebody else's addresses.
	whole := n.Plan.Subnets(slot)
	for i, s := range r.Subnets {
		if i >= len(whole) || whole[i] != s {
			invalid("subnets %v are not those of slot %d, %v", r.Subnets, slot, whole)
			break
		}
	}
	if err := checkName("node", r.Node); err != nil {
		errs = append(errs, err)
	}
	if err := checkName("node_id", r.NodeID); err != nil {
		errs = append(errs, err)
	}
	switch {
	case len(r.PublicIPs) == 0:
		invalid("public_ip is missing")
	case len(r.PublicIPs) > maxAddresses:
		invalid("%d public_ips, at most %d", len(r.PublicIPs), maxAddresses)
	case r.PublicIP.IsValid() && r.PublicIP != r.PublicIPs[0]:
		invalid("public_ip %s is not the first of public_ips", r.PublicIP)
	}
	for _, a := range r.PublicIPs {
		if err := checkPublicIP(n.Plan, a); err != nil {
			errs = append(errs, err)
		}
	}
	if r.MTU < minMTU || r.MTU > maxMTU {
		invalid("mtu %d is not within %d..%d", r.MTU, minMTU, maxMTU)
	}
	if r.Backend.Type == "" {
		invalid("backend type is missing")
	}
	if err := errors.Join(errs...); err != nil {
		return Lease{}, err
	}
	return Lease{Network: n.Name, Slot: slot, Subnets: r.Subnets, Node: r.Node, NodeID: r.NodeID,
		PublicIPs: r.PublicIPs, MTU: r.MTU, Backend: r.Backend}, nil
}

// checkPublicIP refuses addresses that cannot be a host's on the underlay. An
// address inside the overlay would route the overlay into itself.
func checkPublicIP(plan Plan, a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.Zone() != "" || a.Is4In6() ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%w: public ip %s is not a host's unicast address", ErrInvalid, a)
	case slices.ContainsFunc(plan.Prefixes(), func(p netip.Prefix) bool { return p.Contains(a) }):
		return fmt.Errorf("%w: public ip %s is inside the network", ErrInvalid, a)
	}
	return nil
}

// checkName bounds a node name or id: they end up in logs, tables and files.
func checkName(field, name string) error {
	if name == "" {
		return fmt.Errorf("%w: %s is missing", ErrInvalid, field)
	}
	if len(name) > maxNameLen || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return fmt.Errorf("%w: %s is longer than %d bytes or not printable", ErrInvalid, field, maxNameLen)
	}
	return nil
}

// FormatReservation is the value a reservation is stored as.
func FormatReservation(r Reservation) ([]byte, error) {
	return json.Marshal(reservationRecord{Version: Version, Subnet: r.Subnet, Node: r.Node, NodeID: r.NodeID})
}

// ParseReservation reads the value stored under key (the last component) for a
// reservation in n. Errors wrap ErrInvalid.
func ParseReservation(n Network, key string, value []byte) (Reservation, error) {
	subnet, err := ParseSubnetKey(key)
	if err != nil {
		return Reservation{}, err
	}
	var r reservationRecord
	if err := decode(value, &r, &r.Version); err != nil {
		return Reservation{}, err
	}
	if r.Subnet != subnet {
		return Reservation{}, fmt.Errorf("%w: subnet %s contradicts the key", ErrInvalid, r.Subnet)
	}
	return CheckReservation(n, Reservation{Subnet: subnet, Node: r.Node, NodeID: r.NodeID})
}

// CheckReservation holds r against the plan and fills in network and slot. The
// subnet may be any of the slot's; the result has the first. Errors wrap
// ErrInvalid.
func CheckReservation(n Network, r Reservation) (Reservation, error) {
	slot, err := n.Plan.Slot(r.Subnet)
	if err != nil {
		return Reservation{}, err
	}
	if (r.Node == "") == (r.NodeID == "") {
		return Reservation{}, fmt.Errorf("%w: a reservation names either a node or a node_id", ErrInvalid)
	}
	if err := checkName("node", r.Node+r.NodeID); err != nil {
		return Reservation{}, err
	}
	r.Network, r.Slot, r.Subnet = n.Name, slot, n.Plan.Subnets(slot)[0]
	return r, nil
}
