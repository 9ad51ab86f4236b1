package registry

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Keys consist only of lower-case letters, digits, '.', '_', '-' and '/'. Some releases of Consul refuse other
// characters on /v1/kv (hashicorp/consul#22822).
var networkName = regexp.MustCompile(`^[a-z0-9]([a-z0-9_.-]{0,62}[a-z0-9])?$`)

// CheckNetworkName returns an error that wraps ErrInvalid if name is not a valid network name. The name becomes a
// component of keys, file names and device names.
func CheckNetworkName(name string) error {
	if !networkName.MatchString(name) {
		return fmt.Errorf("network name %.80q: %w: a name has 1 to 64 lower-case letters, digits, '_', '.' and '-', "+
			"and begins and ends with a letter or digit", name, ErrInvalid)
	}
	return nil
}

// SubnetKey returns the last component of the key of the lease or reservation whose first subnet is p: "10.5.34.0-24"
// or, with dots in place of the colons of IPv6, "fd00.5.0.22..-64".
func SubnetKey(p netip.Prefix) string {
	return strings.ReplaceAll(p.Addr().String(), ":", ".") + "-" + fmt.Sprint(p.Bits())
}

// ParseSubnetKey is the inverse of SubnetKey. It accepts no other spelling.
func ParseSubnetKey(key string) (netip.Prefix, error) {
	dash := strings.LastIndexByte(key, '-')
	if dash < 0 {
		return netip.Prefix{}, fmt.Errorf("key %.64q: %w: not ADDRESS-LENGTH", key, ErrInvalid)
	}
	addr, length := key[:dash], key[dash+1:]
	// An IPv4 address has three dots, never two in a row. An IPv6 address has seven, or two in a row.
	if strings.Count(addr, ".") != 3 || strings.Contains(addr, "..") {
		addr = strings.ReplaceAll(addr, ".", ":")
	}
	p, err := netip.ParsePrefix(addr + "/" + length)
	if err != nil || SubnetKey(p) != key || p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("key %.64q: %w: not the first address and length of a subnet", key, ErrInvalid)
	}
	return p, nil
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
	Carriage

	Encryption string `json:"encryption,omitempty"`
	Lineage
	FromBlock      bool      `json:"from_block,omitempty"`
	Restored       time.Time `json:"restored,omitzero"`
	RestoredLeases int       `json:"restored_leases,omitempty"`
	Deleted        time.Time `json:"deleted,omitzero"` // of a Deletion, which has neither pools nor backend
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

// FormatNetwork returns the value under which a network is stored, with effective values and no defaults left out. It
// refuses what ParseNetwork would refuse; errors wrap ErrInvalid.
func FormatNetwork(n Network) ([]byte, error) {
	plan, err := n.Plan.Normalize()
	if err != nil {
		return nil, err
	}
	r := networkRecord{Version: Version, Name: n.Name, Carriage: n.Carriage(), Encryption: n.Encryption,
		Lineage: n.Lineage, FromBlock: n.FromBlock, Restored: n.Restored, RestoredLeases: n.RestoredLeases}
	for _, p := range plan {
		r.Pools = append(r.Pools, poolRecord(p))
	}
	value, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := ParseNetwork(n.Name, value); err != nil {
		return nil, err
	}
	return value, nil
}

// ParseNetwork parses the value stored for the network called name. The error is a *DeletedError, without the indexes,
// when the value records a deletion, and wraps ErrInvalid otherwise.
func ParseNetwork(name string, value []byte) (Network, error) {
	if err := CheckNetworkName(name); err != nil {
		return Network{}, err
	}
	var r networkRecord
	if err := decode(value, &r, &r.Version); err != nil {
		return Network{}, err
	}
	if r.Name != name {
		return Network{}, fmt.Errorf("%w: name %.64q in the value of %q", ErrInvalid, r.Name, name)
	}
	if !r.Deleted.IsZero() {
		if len(r.Pools) > 0 || r.Backend.Type != "" {
			return Network{}, fmt.Errorf("%w: a network with a definition and \"deleted\"", ErrInvalid)
		}
		if err := r.Lineage.check(); err != nil {
			return Network{}, err
		}
		return Network{}, &DeletedError{Deletion{Network: name, Time: r.Deleted, Lineage: r.Lineage}}
	}
	if err := r.Carriage.check(); err != nil {
		return Network{}, err
	}
	if len(r.Pools) > maxPools {
		return Network{}, fmt.Errorf("%w: %d pools, at most one an address family", ErrInvalid, len(r.Pools))
	}
	var plan Plan
	for _, p := range r.Pools {
		plan = append(plan, Pool(p))
	}
	plan, err := plan.Normalize()
	if err != nil {
		return Network{}, InvalidRecord(err.Error())
	}
	if err := CheckEncryption(r.Encryption); err != nil {
		return Network{}, err
	}
	if err := r.Lineage.check(); err != nil {
		return Network{}, err
	}
	n := Network{Name: name, Plan: plan, Encryption: r.Encryption, Lineage: r.Lineage, FromBlock: r.FromBlock,
		Restored: r.Restored, RestoredLeases: r.RestoredLeases}
	return n.WithCarriage(r.Carriage), nil
}

// FormatLease returns the value under which a lease is stored.
func FormatLease(l Lease) ([]byte, error) {
	r := leaseRecord{Version: Version, Subnet: l.Subnet(), Subnets: l.Subnets, Node: l.Node, NodeID: l.NodeID,
		PublicIPs: l.PublicIPs, MTU: l.MTU, Backend: l.Backend}
	if len(l.PublicIPs) > 0 {
		r.PublicIP = l.PublicIPs[0]
	}
	return json.Marshal(r)
}

// slotOfKey parses the key of a lease or reservation. Only the first subnet of a slot is valid as its key: two records
// of one slot would be two holders.
func slotOfKey(n Network, key string) (netip.Prefix, uint64, error) {
	if key == "" || strings.Contains(key, "/") {
		return netip.Prefix{}, 0, fmt.Errorf("key %.64q: %w: a record must not be a folder or inside one",
			key, ErrInvalid)
	}
	subnet, err := ParseSubnetKey(key)
	if err != nil {
		return netip.Prefix{}, 0, err
	}
	slot, err := n.Plan.Slot(subnet)
	if err != nil {
		return netip.Prefix{}, 0, err
	}
	if first := n.Plan.Subnets(slot)[0]; first != subnet {
		return netip.Prefix{}, 0, fmt.Errorf("key %q: %w: the slot's key is %s", key, ErrInvalid, SubnetKey(first))
	}
	return subnet, slot, nil
}

// checkKeyed compares the subnet in a value with the one in its key.
func checkKeyed(key, value netip.Prefix) error {
	switch {
	case !value.IsValid():
		return fmt.Errorf("%w: subnet is missing", ErrInvalid)
	case value != key:
		return fmt.Errorf("%w: subnet %s contradicts the key", ErrInvalid, value)
	}
	return nil
}

// ParseLease parses the value stored under key (the last component) for a lease of n, and checks it against the plan
// and the key. Errors wrap ErrInvalid.
func ParseLease(n Network, key string, value []byte) (Lease, error) {
	return parseLease(n, key, value, false)
}

// ParseForeignLease does what ParseLease does for a host that runs flannel, which may have a subnet of another slot in
// each pool.
func ParseForeignLease(n Network, key string, value []byte) (Lease, error) {
	return parseLease(n, key, value, true)
}

func parseLease(n Network, key string, value []byte, foreign bool) (Lease, error) {
	subnet, slot, err := slotOfKey(n, key)
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
	var reasons []string
	invalid := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	also := func(err error) {
		if err != nil {
			reasons = append(reasons, strings.TrimPrefix(err.Error(), ErrInvalid.Error()+": "))
		}
	}
	also(checkKeyed(subnet, r.Subnet))
	// A lease from before the network gained a family has fewer subnets. A lease with more subnets, or with those of
	// another slot, would take addresses of another host.
	whole := n.Plan.Subnets(slot)
	for i := 1; foreign && i < min(len(r.Subnets), len(whole)); i++ {
		_, err := n.Plan[i : i+1].Slot(r.Subnets[i])
		also(err)
		whole[i] = r.Subnets[i]
	}
	if len(r.Subnets) > len(whole) {
		invalid("%d subnets, the network has %d pools", len(r.Subnets), len(whole))
	} else if !slices.Equal(r.Subnets, whole[:len(r.Subnets)]) {
		invalid("subnets %v are not those of slot %d, %v", r.Subnets, slot, whole)
	}
	also(checkName("node", r.Node))
	also(checkName("node_id", r.NodeID))
	switch {
	case len(r.PublicIPs) == 0:
		invalid("public_ip is missing")
	case len(r.PublicIPs) > maxAddresses:
		invalid("%d public_ips, at most %d", len(r.PublicIPs), maxAddresses)
	case r.PublicIP.IsValid() && r.PublicIP != r.PublicIPs[0]:
		invalid("public_ip %s is not the first of public_ips", r.PublicIP)
	}
	for i, a := range r.PublicIPs {
		if i == maxAddresses {
			break
		}
		also(checkPublicIP(n.Plan, a))
		if slices.Contains(r.PublicIPs[:i], a) {
			invalid("public ip %s is there twice", a)
		}
	}
	if r.MTU < minMTU || r.MTU > maxMTU {
		invalid("mtu %d is not within %d..%d", r.MTU, minMTU, maxMTU)
	}
	also(checkName("backend type", r.Backend.Type))
	if len(reasons) > 0 {
		return Lease{}, InvalidRecord(strings.Join(reasons, "; "))
	}
	// encoding/json makes room for four elements, of which most leases need one.
	return Lease{
		Network:   n.Name,
		Slot:      slot,
		Subnets:   whole[:len(r.Subnets):len(r.Subnets)],
		Node:      r.Node,
		NodeID:    r.NodeID,
		PublicIPs: slices.Clone(r.PublicIPs),
		MTU:       r.MTU,
		Backend:   r.Backend,
		Foreign:   foreign,
	}, nil
}

// ReadableLease returns what can be read of the value of a lease, whatever else is wrong with the record.
func ReadableLease(value []byte) (l Lease) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(value, &members)
	for name, field := range map[string]any{
		"subnets": &l.Subnets, "node": &l.Node, "node_id": &l.NodeID, "public_ips": &l.PublicIPs, "backend": &l.Backend,
	} {
		_ = json.Unmarshal(members[name], field)
	}
	return l
}

// NodeIDOf returns the node id in the value of a lease, or "" if it cannot be read.
func NodeIDOf(value []byte) string { return ReadableLease(value).NodeID }

// FormatReservation returns the value under which a reservation is stored.
func FormatReservation(r Reservation) ([]byte, error) {
	return json.Marshal(reservationRecord{Version: Version, Subnet: r.Subnet, Node: r.Node, NodeID: r.NodeID})
}

// ParseReservation parses the value stored under key (the last component) for a reservation in n, which has no plan
// when it is not defined. Errors wrap ErrInvalid.
func ParseReservation(n Network, key string, value []byte) (Reservation, error) {
	subnet, err := ParseSubnetKey(key)
	if len(n.Plan) > 0 {
		subnet, _, err = slotOfKey(n, key)
	}
	if err != nil {
		return Reservation{}, err
	}
	var r reservationRecord
	if err := decode(value, &r, &r.Version); err != nil {
		return Reservation{}, err
	}
	if err := checkKeyed(subnet, r.Subnet); err != nil {
		return Reservation{}, err
	}
	kept := Reservation{Network: n.Name, Subnet: subnet, Node: r.Node, NodeID: r.NodeID}
	if len(n.Plan) == 0 {
		return kept, checkKeptFor(kept)
	}
	return CheckReservation(n, kept)
}

// CheckReservation checks r against the plan and fills in network and slot. The subnet may be any subnet of the slot;
// the result has the first. Errors wrap ErrInvalid.
func CheckReservation(n Network, r Reservation) (Reservation, error) {
	slot, err := n.Plan.Slot(r.Subnet)
	if err != nil {
		return Reservation{}, err
	}
	if err := checkKeptFor(r); err != nil {
		return Reservation{}, err
	}
	r.Network, r.Slot, r.Subnet = n.Name, slot, n.Plan.Subnets(slot)[0]
	return r, nil
}

// checkKeptFor checks the host that a reservation is for.
func checkKeptFor(r Reservation) error {
	if (r.Node == "") == (r.NodeID == "") {
		return fmt.Errorf("%w: a reservation names either a node or a node_id", ErrInvalid)
	}
	return checkName("node", r.Node+r.NodeID)
}
