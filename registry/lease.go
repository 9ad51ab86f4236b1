package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Version is the only version of records this code reads and writes.
const Version = 1

// Network is an address plan every host agrees on and the backend that carries it.
type Network struct {
	Name    string
	Plan    Plan
	Backend Backend

	CreateIndex uint64 // the store's, 0 before it was stored
	ModifyIndex uint64
}

// Backend is a backend's type and its options or attributes: one JSON object
// whose "type" member is the type. The registry never looks further in.
type Backend struct {
	Type   string
	Object json.RawMessage // the whole object, compact, with "type"
}

// NewBackend builds a Backend from a type and a JSON object of options. A nil
// or empty object is the type alone; a "type" member in it is replaced.
func NewBackend(kind string, options json.RawMessage) (Backend, error) {
	options = bytes.TrimSpace(options)
	if len(options) == 0 {
		options = json.RawMessage(`{}`)
	}
	given, err := members(options)
	if err != nil {
		return Backend{}, fmt.Errorf("options of backend %q: %w: %w", kind, ErrInvalid, err)
	}
	name, err := json.Marshal(kind)
	if err != nil {
		return Backend{}, err
	}
	all := append([]member{{"type", name}}, slices.DeleteFunc(given, isType)...)
	return Backend{Type: kind, Object: object(all)}, nil
}

// Options returns the object without its "type" member.
func (b Backend) Options() json.RawMessage {
	all, err := members(b.Object)
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return object(slices.DeleteFunc(all, isType))
}

// Equal compares the objects by value, not by spelling.
func (b Backend) Equal(o Backend) bool {
	if b.Type != o.Type {
		return false
	}
	return bytes.Equal(canonical(b.Object), canonical(o.Object))
}

// MarshalJSON writes the object.
func (b Backend) MarshalJSON() ([]byte, error) {
	if len(b.Object) == 0 {
		return json.Marshal(map[string]string{"type": b.Type})
	}
	return b.Object, nil
}

// UnmarshalJSON reads the object and its type. Only the member spelled "type"
// counts, as for every other program that reads the record.
func (b *Backend) UnmarshalJSON(data []byte) error {
	all, err := members(data)
	if err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	var kind string
	for _, m := range all {
		if !isType(m) {
			continue
		}
		if err := json.Unmarshal(m.value, &kind); err != nil {
			return fmt.Errorf("backend type is not a string")
		}
	}
	b.Type, b.Object = kind, object(all)
	return nil
}

// member is one member of a JSON object, its value compact.
type member struct {
	name  string
	value json.RawMessage
}

func isType(m member) bool { return m.name == "type" }

// members takes a JSON object (or null, which has none) apart and keeps its
// order, which people who read it chose.
func members(data []byte) ([]member, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return nil, err
	}
	data = compact.Bytes()
	if string(data) == "null" {
		return nil, nil
	}
	if data[0] != '{' {
		return nil, fmt.Errorf("not a JSON object")
	}
	var out []member
	err := parts(data, func(name string, value []byte) error {
		out = append(out, member{name, value})
		return nil
	})
	return out, err
}

// object puts members together again.
func object(all []member) json.RawMessage {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, m := range all {
		if i > 0 {
			out.WriteByte(',')
		}
		name, _ := json.Marshal(m.name) // a string always marshals
		out.Write(name)
		out.WriteByte(':')
		out.Write(m.value)
	}
	out.WriteByte('}')
	return out.Bytes()
}

// canonical is data with members sorted and no white space; data itself when
// it is not JSON.
func canonical(data []byte) json.RawMessage {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return data
	}
	out, err := json.Marshal(v)
	if err != nil {
		return data
	}
	return out
}

// Lease is one host's claim on one slot.
type Lease struct {
	Network   string
	Slot      uint64
	Subnets   []netip.Prefix // one a pool, IPv4 first; the first is the key
	Node      string
	NodeID    string
	PublicIPs []netip.Addr // at least one, the first is public_ip
	MTU       int
	Backend   Backend

	// What the store says of the record, not part of its value.
	Session     string        // "" once lapsed, UnknownSession where a set does not tell
	Lapsed      time.Duration // how long this process has watched it lapsed; 0 while held
	CreateIndex uint64
	ModifyIndex uint64
	// Missing says that the store has lost the record. It stays in the set until its
	// host has had time to write it again, and whether that host lives is not known. A
	// set has one of a host at most, which is later than all that are stored of it.
	Missing bool
}

// Subnet is the lease's first subnet, the one its key is made of.
func (l Lease) Subnet() netip.Prefix {
	if len(l.Subnets) == 0 {
		return netip.Prefix{}
	}
	return l.Subnets[0]
}

// UnknownSession is the Session of a lease that is held, when a set does not
// tell by which one.
const UnknownSession = "unknown"

// Held says whether its host's session lives.
func (l Lease) Held() bool { return l.Session != "" }

// SameValue says whether both leases would be written as the same record.
func (l Lease) SameValue(o Lease) bool {
	return slices.Equal(l.Subnets, o.Subnets) && l.Node == o.Node && l.NodeID == o.NodeID &&
		slices.Equal(l.PublicIPs, o.PublicIPs) && l.MTU == o.MTU && l.Backend.Equal(o.Backend)
}

// Reservation keeps a slot for one host, by node name or node id, exactly one
// of which is set.
type Reservation struct {
	Network string
	Slot    uint64
	Subnet  netip.Prefix // the slot's first subnet
	Node    string
	NodeID  string

	ModifyIndex uint64
}

// For says whether the reservation is kept for the host of the claim.
func (r Reservation) For(c Claim) bool {
	if r.NodeID != "" {
		return strings.EqualFold(r.NodeID, c.NodeID) // hexadecimal digits
	}
	return r.Node == c.Node
}

// BadRecord names a record that was skipped and why.
type BadRecord struct {
	Key    string // the whole key in the store
	Reason string
}

// LeaseSet is all leases of one network at one index.
type LeaseSet struct {
	Leases []Lease
	Bad    []BadRecord
	// SetBack counts how often this client has seen the store emptied, made anew
	// or set back to an older state. What else was in the store may be gone too.
	SetBack uint64
}

// NetworkSet is all networks at one index.
type NetworkSet struct {
	Networks []Network
	Deleted  []Deletion // sorted by name
	Bad      []BadRecord
}

// ReservationSet is all reservations of one network.
type ReservationSet struct {
	Reservations []Reservation
	Bad          []BadRecord
}
