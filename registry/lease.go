package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Version is the only version of records that this code reads and writes.
const Version = 1

// EncryptionRequired means that no host may send a packet of the network unencrypted. A host that cannot encrypt does
// not take part.
const EncryptionRequired = "required"

// CheckEncryption returns an error that wraps ErrInvalid if text is no value of Network.Encryption.
func CheckEncryption(text string) error {
	if text != "" && text != EncryptionRequired {
		return fmt.Errorf("%w: encryption %.64q is neither \"\" nor %q", ErrInvalid, text, EncryptionRequired)
	}
	return nil
}

// Network is an address plan that every host agrees on, and the backend that carries it.
type Network struct {
	Name    string
	Plan    Plan
	Backend Backend // of the network; during a switch, the one from which it started
	Switch  *Switch // nil unless the network is being switched
	Epoch   Epoch

	Encryption string // EncryptionRequired, or "" for none required

	Lineage

	// FromBlock means that a host that found no definition has stored the one in its configuration. It may have lost
	// its state, and the store may have lost a later definition.
	FromBlock bool

	// Foreign means that the store has flannel's configuration of the network, without a record of leno's: flannel's
	// operator wrote it. Only the store sets it.
	Foreign bool

	// Restored is when a host last wrote the definition again because the store had lost it or its last change, by that
	// host's clock. The zero time stands for never.
	Restored time.Time

	// RestoredLeases is how many leases there were then as far as that host knew: a host that has none waits until as many
	// are there again. It becomes 0 when all hosts have had the time to claim theirs.
	RestoredLeases int

	CreateIndex uint64 // assigned by the store, 0 before the network was stored
	ModifyIndex uint64
}

// Backend is a backend's type and its options or attributes: one JSON object whose "type" member is the type. The
// registry does not look at the other members.
type Backend struct {
	Type   string
	Object json.RawMessage // the whole object, compact, with "type"
}

// NewBackend returns a Backend with a type and a JSON object of options. A nil or empty object results in the type
// alone; a "type" member in the object is replaced.
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

// Equal reports whether the objects have the same value, regardless of their spelling.
func (b Backend) Equal(o Backend) bool {
	if b.Type != o.Type {
		return false
	}
	return bytes.Equal(canonical(b.Object), canonical(o.Object))
}

// MarshalJSON returns the object.
func (b Backend) MarshalJSON() ([]byte, error) {
	if len(b.Object) == 0 {
		return json.Marshal(map[string]string{"type": b.Type})
	}
	return b.Object, nil
}

// UnmarshalJSON reads the object and its type. Only the member spelled exactly "type" counts, as it does for every
// other program that reads the record.
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

// member is one member of a JSON object; its value is compact.
type member struct {
	name  string
	value json.RawMessage
}

func isType(m member) bool { return m.name == "type" }

// members splits a JSON object (or null, which has no members) and keeps the order of its members, which its author
// chose.
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

// object joins members to a JSON object.
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

// canonical returns data with sorted members and no white space, or data itself when it is not JSON.
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

// FlannelTTL is how long the lease of a host that runs flannel lasts. flanneld writes a record when it starts and an
// hour before the end, so the store cannot tell sooner whether a host is alive whose record it has lost.
const FlannelTTL = 24 * time.Hour

// Lease is one host's claim on one slot.
type Lease struct {
	Network   string
	Slot      uint64
	Subnets   []netip.Prefix // one per pool, IPv4 first; the first is the key
	Node      string
	NodeID    string
	PublicIPs []netip.Addr // at least one, the first is public_ip
	MTU       int
	Backend   Backend
	Foreign   bool // the host runs flannel, which wrote the lease

	// Set from the store's metadata, not part of the value.
	Session     string        // "" once lapsed, UnknownSession where a set does not contain the session
	Lapsed      time.Duration // how long this process has watched it lapsed; 0 while held
	CreateIndex uint64
	ModifyIndex uint64
	// Missing means that the store has lost the record. The lease stays in the set until its host has had time to write
	// it again; whether that host is alive is not known.
	Missing bool
	// Lost means, of a Missing lease, that the store was certainly emptied or set back to an older state, and that there
	// is nothing in place of the record: it may be restored.
	Lost bool
}

// Subnet returns the lease's first subnet, from which its key is made.
func (l Lease) Subnet() netip.Prefix {
	if len(l.Subnets) == 0 {
		return netip.Prefix{}
	}
	return l.Subnets[0]
}

// UnknownSession is the Session of a held lease in a set that does not contain the session.
const UnknownSession = "unknown"

// Held reports whether the session of the lease's host is alive.
func (l Lease) Held() bool { return l.Session != "" }

// Outranks reports whether a lease as it was known stays in place of a different one with a lower index on the same
// slot, which a snapshot has brought back, or which is that of a new cluster. It does not if its host had gone and
// another one holds the slot, or if only the other lease has the type of the network's backend.
func (l Lease) Outranks(o Lease, backend string) bool {
	if !l.Held() && o.Held() {
		return l.NodeID == o.NodeID
	}
	return o.Backend.Type != backend || l.Backend.Type == backend
}

// SameValue reports whether both leases would be written as the same record.
func (l Lease) SameValue(o Lease) bool {
	return slices.Equal(l.Subnets, o.Subnets) && l.Node == o.Node && l.NodeID == o.NodeID &&
		slices.Equal(l.PublicIPs, o.PublicIPs) && l.MTU == o.MTU && l.Backend.Equal(o.Backend)
}

// Reservation keeps a slot for one host, identified by node name or node id, exactly one of which is set.
type Reservation struct {
	Network string
	Slot    uint64
	Subnet  netip.Prefix // the slot's first subnet
	Node    string
	NodeID  string

	// Address is the host's if the reservation is in flannel, which knows hosts by their addresses; Node is then that of a
	// host which runs flannel. The zero Addr stands for a reservation of leno's.
	Address netip.Addr

	ModifyIndex uint64
}

// For reports whether the reservation is kept for the host of the claim.
func (r Reservation) For(c Claim) bool {
	if r.NodeID != "" {
		return strings.EqualFold(r.NodeID, c.NodeID) // hexadecimal digits
	}
	return r.Node == c.Node
}

// BadRecord names a record that was skipped, and the reason.
type BadRecord struct {
	Key     string // the whole key in the store, see BoundedKey
	Reason  string
	Network string // the network whose definition it would be, "" for other records
}

// LeaseSet is all leases of one network at one index.
type LeaseSet struct {
	Leases []Lease
	Bad    []BadRecord
	// SetBack counts how often this client has seen the store emptied, re-created or set back to an older state. Other
	// content of the store may be gone too.
	SetBack uint64
}

// NetworkSet is all networks at one index.
type NetworkSet struct {
	Networks []Network
	Deleted  []Deletion // sorted by name
	Bad      []BadRecord
}

// Add adds the record of a network, as it was parsed.
func (s *NetworkSet) Add(key, name string, n Network, err error) {
	deleted, isDeleted := errors.AsType[*DeletedError](err)
	switch {
	case err == nil:
		s.Networks = append(s.Networks, n)
	case isDeleted:
		s.Deleted = append(s.Deleted, deleted.Deletion)
	default:
		s.Bad = append(s.Bad, BadRecord{Key: key, Reason: Shorten(err.Error(), MaxShownReason), Network: name})
	}
}

// ReservationSet is all reservations of one network.
type ReservationSet struct {
	Reservations []Reservation
	Bad          []BadRecord
}
