// Package switchover carries a network with one backend, or with two while the network is switched from one to the
// other. To the agent, both are one backend.
//
// During a switch, every host runs both backends, each with its own device. A host first prepares the next backend, and
// then publishes in its lease what its peers need to send to it over that backend. A host sends to a peer over the next
// backend as soon as the peer has published this and, if the backend can tell, a packet from the peer has arrived.
// Until then, it sends over the current one. Hosts always accept packets over both backends, so no host waits for
// another, and hosts can follow in any order. When a host sends to all its peers over the next backend, its lease says
// so. When all leases say so, no host sends over the current backend any more, and the definition can name the next one
// alone.
//
// Leases store this in their backend objects, in members of this package next to the backend's own.
package switchover

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/lenonet/leno/backend"
)

// A Direction is the direction of a switch: towards one of its two backends, or none.
type Direction string

// The directions of a switch.
const (
	Forward Direction = ""        // to the next backend
	Stopped Direction = "stopped" // peers stay where they are
	Back    Direction = "back"    // to the current backend
)

// A Spec is a backend with its options, in one epoch of the network.
type Spec struct {
	Type    string
	Options json.RawMessage // an object, as the network's definition has them

	// Epoch is the number of the epoch in which the backend carries the network. Odd epochs have device b of the
	// network; see backend.LinkNameB. A host makes a new key for each epoch.
	Epoch int

	// Rotated means that the backend runs with the options that backend.Type.Rotate returns.
	Rotated bool

	// Encryption is what the network requires once this backend alone carries it; "" for what it requires now. It is used
	// only during a switch.
	Encryption string
}

// A Definition is the part of a network's definition that says which backends carry it.
type Definition struct {
	Current   Spec
	Next      *Spec     // nil unless the network is being switched; its epoch is the one after that of Current
	Direction Direction // of the switch

	// Since is when the last switch ended, or the time from which the age of the keys counts; zero if that is not known.
	// It is by the clock of the host that wrote it.
	Since time.Time
}

// The devices of a network, as leases name them.
const (
	deviceA = "a"
	deviceB = "b"
)

// members are what this package adds to the backend object of a lease.
type members struct {
	Epoch int             `json:"epoch,omitempty"` // of the backend
	Next  json.RawMessage `json:"next,omitempty"`  // the backend object of the next epoch, during a switch
	Type  string          `json:"type,omitempty"`  // of next
	Error string          `json:"error,omitempty"` // of next: why the host cannot use that backend
	Sends string          `json:"sends,omitempty"` // the device over which the host sends to all its peers
}

// names lists the JSON names of members.
var names = []string{"type", "next", "sends", "error", "epoch"}

// split takes a backend object apart into the backend's own members and those of this package.
func split(object json.RawMessage) (own json.RawMessage, m members, err error) {
	own = object
	if !mentions(object) {
		return own, m, nil
	}
	if err := json.Unmarshal(object, &m); err != nil {
		return own, m, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(object, &all); err != nil {
		return own, m, err
	}
	for _, name := range names {
		delete(all, name)
	}
	own, err = json.Marshal(all)
	return own, m, err
}

// mentions reports whether an object may have members of this package. It is a cheap check, because most objects have
// none, and there is one object for each host.
func mentions(object json.RawMessage) bool {
	return slices.ContainsFunc(names, func(name string) bool { return bytes.Contains(object, []byte(`"`+name+`"`)) })
}

// join adds members to a backend object.
func (m members) join(own json.RawMessage) (json.RawMessage, error) {
	added, err := json.Marshal(m)
	if err != nil || string(added) == "{}" {
		return own, err
	}
	var all map[string]json.RawMessage
	if len(own) > 0 {
		if err := json.Unmarshal(own, &all); err != nil {
			return nil, err
		}
	}
	if err := json.Unmarshal(added, &all); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// IsOnDeviceB reports whether the backend uses device b of the network.
func (c Spec) IsOnDeviceB() bool { return c.Epoch%2 != 0 }

// device returns the name of the backend's device in leases.
func (c Spec) device() string {
	if c.IsOnDeviceB() {
		return deviceB
	}
	return deviceA
}

// Link returns the name and the alias of the backend's device.
func (c Spec) Link(network string) (name, alias string) {
	if c.IsOnDeviceB() {
		return backend.LinkNameB(network), backend.LinkAliasB(network)
	}
	return backend.LinkName(network), backend.LinkAlias(network)
}

// DataDir returns the directory of the backend's files, for a network whose files are in dir.
func (c Spec) DataDir(dir string) string {
	if c.IsOnDeviceB() {
		return DataDirB(dir)
	}
	return dir
}

// DataDirB returns the directory of the files of backends on device b, for a network whose files are in dir.
func DataDirB(dir string) string { return filepath.Join(dir, deviceB) }

// Running returns the options with which the backend runs: those of the definition, unless its keys were rotated, which
// is not possible with all options.
func (c Spec) Running(types map[string]backend.Type) json.RawMessage {
	if rotate := types[c.Type].Rotate; c.Rotated && rotate != nil {
		if options, err := rotate(c.Options); err == nil {
			return options
		}
	}
	return c.Options
}

// Port returns the UDP port on which the backend receives.
func (c Spec) Port(types map[string]backend.Type) backend.Port {
	return types[c.Type].Uses(c.Running(types))
}

// is reports whether both are the same backend with the same device, regardless of their options.
func (c Spec) is(o Spec) bool { return c.Type == o.Type && c.IsOnDeviceB() == o.IsOnDeviceB() }

// Equal reports whether both are the same backend with the same device and options, in the same spelling.
func (c Spec) Equal(o Spec) bool {
	return c.is(o) && c.Rotated == o.Rotated && bytes.Equal(c.Options, o.Options)
}

// IsRotation reports whether the network is being switched to new keys, without another change.
func (c Definition) IsRotation() bool {
	return c.Next != nil && c.Current.Type == c.Next.Type && c.Current.Rotated != c.Next.Rotated &&
		bytes.Equal(c.Current.Options, c.Next.Options)
}

// Normalize returns the definition with all defaults of its backends' options.
func (c Definition) Normalize(types map[string]backend.Type) (Definition, error) {
	all := c.specs()
	for i, s := range all {
		kind, ok := types[s.Type]
		switch {
		case i > 0 && (!ok || !CanSwitch(s.Type)):
			return c, fmt.Errorf("this leno cannot switch to backend %q", s.Type)
		case !ok:
			return c, fmt.Errorf("this leno has no backend %q", s.Type)
		}
		var err error
		if all[i].Options, err = kind.Normalize(s.Options); err != nil {
			return c, fmt.Errorf("backend %q: %w", s.Type, err)
		}
	}
	c.Current = all[0]
	if c.Next != nil {
		c.Next = &all[1]
	}
	return c, nil
}

// specs returns the current backend and, during a switch, the next one.
func (c Definition) specs() []Spec {
	if c.Next == nil {
		return []Spec{c.Current}
	}
	return []Spec{c.Current, *c.Next}
}

// Backends returns the backends of the definition, that which is to carry the network in the end first.
func (c Definition) Backends() []Spec {
	all := c.specs()
	if c.Direction != Back {
		slices.Reverse(all)
	}
	return all
}

// Links returns the names of the devices of a network's backends: that of the current one and, during a switch, that of
// the next one. A backend need not have created its device, and host-gw never does.
func (c Definition) Links(network string) (out []string) {
	for _, s := range c.specs() {
		name, _ := s.Link(network)
		out = append(out, name)
	}
	return out
}

// Ports returns the UDP ports of all backends of a definition with effective options.
func (c Definition) Ports(types map[string]backend.Type) (out []backend.Port) {
	for _, s := range c.specs() {
		out = append(out, s.Port(types))
	}
	return out
}

// Tunnels reports whether packets of other hosts arrive by the network's devices only, with all backends of a
// definition.
func (c Definition) Tunnels(types map[string]backend.Type) bool {
	return !slices.ContainsFunc(c.specs(), func(s Spec) bool { return !types[s.Type].Tunnels })
}

// CanSwitch reports whether networks can be switched from and to a backend. This is not possible with a backend that
// only leases subnets, because other programs carry its packets.
func CanSwitch(kind string) bool { return kind != "alloc" }

// Target returns the backend that is to carry the network in the end.
func (c Definition) Target() Spec { return c.Backends()[0] }

// To returns a definition that begins to switch the network to another backend, or to the same backend with other
// options.
func (c Definition) To(kind string, options json.RawMessage) Definition {
	return Definition{
		Current: c.Current,
		Next:    &Spec{Type: kind, Options: options, Epoch: c.Current.Epoch + 1},
		Since:   c.Since,
	}
}

// ToNewKeys returns a definition that begins to switch the network to new keys.
func (c Definition) ToNewKeys() Definition {
	c = c.To(c.Current.Type, c.Current.Options)
	c.Next.Rotated = !c.Current.Rotated
	return c
}

// Ended returns the definition after a switch that ended at the given time: the target alone.
func (c Definition) Ended(at time.Time) Definition {
	return Definition{Current: c.Target(), Since: at.UTC().Truncate(time.Second)}
}

// Follows reports whether a host with definition c can change to definition o without an interruption: the current
// backend of o is one of the backends of c.
func (c Definition) Follows(o Definition) bool {
	return slices.ContainsFunc(c.specs(), o.Current.is)
}

// isOutdated reports whether the key that a host made for a backend under definition c is outdated under definition o:
// the host has missed switches that have ended in o since it made the key, or c no longer has the backend.
func (c Definition) isOutdated(o Definition, of Spec) bool {
	had := slices.IndexFunc(c.specs(), of.is)
	now := slices.IndexFunc(o.specs(), of.is)
	return had < 0 || now >= 0 && o.specs()[now].Epoch > c.specs()[had].Epoch
}

// IsMoved reports whether a lease says that its host sends to all its peers over the definition's target. attributes
// are the members of the lease's backend object except its type.
func (c Definition) IsMoved(attributes json.RawMessage) bool {
	_, m, err := split(attributes)
	if err != nil || c.Next == nil || c.Direction == Stopped {
		return false
	}
	// The lease of a host that has missed a switch says the same as in an earlier switch to the same device, but not with
	// the same epoch or, after a switch that was reversed, with another type.
	target := c.Target()
	if m.Sends == target.device() && m.Epoch == c.Current.Epoch {
		_, next, err := split(m.Next)
		return c.Direction == Back || err == nil && next.Type == target.Type
	}
	// A lease that names only one backend belongs to a host that is ahead, or that has not followed yet and sends over
	// that backend alone: a host moves no peer before its lease names both.
	return m.Next == nil && m.Epoch == target.Epoch
}

// Ready reports whether a lease says that its host can receive over the backend. If not, fault is the reason that the
// lease gives, or "" if it gives none. kind is the type of the lease's backend object, and attributes are its other
// members.
func (c Spec) Ready(kind string, attributes json.RawMessage) (ready bool, fault string) {
	_, fault, ready = c.entry(kind, attributes)
	return ready, fault
}

// entry returns the attributes that a peer has published for the backend, without members of this package.
func (c Spec) entry(kind string, attributes json.RawMessage) (own json.RawMessage, fault string, ok bool) {
	own, m, err := split(attributes)
	if err != nil {
		return attributes, "", false
	}
	first := Spec{Type: kind, Epoch: m.Epoch}
	if first.is(c) {
		return own, "", true
	}
	if len(m.Next) == 0 {
		return nil, "", false
	}
	own, m, err = split(m.Next)
	if next := (Spec{Type: m.Type, Epoch: first.Epoch + 1}); err != nil || !next.is(c) {
		return nil, "", false
	}
	return own, m.Error, m.Error == ""
}
