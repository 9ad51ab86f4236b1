// Package transition carries a network with one backend, or with two while the network is switched from one to the
// other. To the agent, both are one backend.
//
// During a switch every host has both backends, and a device for each. A host first prepares the next backend, and
// then says in its lease what its peers need to send to it that way. A host sends to each peer over the next backend as
// soon as the peer has said so and, if the backend can tell, a packet from the peer has arrived. Until then it sends
// over the current one. Packets are accepted over both all the time, so no host waits for another, and it does not
// matter in which order hosts follow. When a host sends to all its peers over the next backend, its lease says that,
// too. When all leases do, nothing is sent over the current backend any more, and the definition can name the next one
// alone.
//
// What a definition and a lease say is in their backend objects, in members of this package beside the backend's own.
package transition

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/lenonet/leno/backend"
)

// A Heading is where a switch is going.
type Heading string

// The headings of a switch.
const (
	Forward Heading = ""        // to the next backend
	Stopped Heading = "stopped" // peers stay where they are
	Back    Heading = "back"    // to the current backend
)

// A Carrier is a backend with its options, and the device that it uses.
type Carrier struct {
	Type    string
	Options json.RawMessage // an object with only the backend's own members
	Other   bool            // it uses the network's other device; see backend.OtherLinkName

	// Encryption is what the network requires once this backend alone carries it, of a next backend; "" for what it
	// requires now.
	Encryption string
}

// A Course says which backends carry a network.
type Course struct {
	Current Carrier
	Next    *Carrier // nil unless the network is being switched
	Heading Heading  // of the switch

	// Since is when the current backend has been alone, or its keys were new; zero if that is not known.
	Since time.Time
}

// The device that a carrier uses, as definitions and leases name it.
const (
	firstDevice = "a" // left out of definitions and leases, as networks that were never switched have no other
	otherDevice = "b"
)

// members are what this package adds to the backend object of a definition or a lease.
type members struct {
	Device string          `json:"device,omitempty"` // firstDevice or otherDevice
	Next   json.RawMessage `json:"next,omitempty"`   // a backend object
	Switch Heading         `json:"switch,omitempty"` // of a definition
	Since  time.Time       `json:"since,omitzero"`   // of a definition
	Sends  string          `json:"sends,omitempty"`  // of a lease: the device over which the host sends to all its peers
	Error  string          `json:"error,omitempty"`  // of next in a lease: why the host cannot use that backend

	Encryption string `json:"encryption,omitempty"` // of next in a definition
}

// names lists the JSON names of members.
var names = []string{"device", "next", "switch", "sends", "error", "encryption", "since"}

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

// mentions reports whether an object may have members of this package. Most have none, and there is one for each host.
func mentions(object json.RawMessage) bool {
	for _, name := range names {
		if bytes.Contains(object, []byte(`"`+name+`"`)) {
			return true
		}
	}
	return false
}

// join adds members to a backend object.
func (m members) join(own json.RawMessage) (json.RawMessage, error) {
	if m.Device == firstDevice {
		m.Device = ""
	}
	added, err := json.Marshal(m)
	if err != nil || string(added) == "{}" {
		return own, err
	}
	all, extra := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if len(own) > 0 {
		if err := json.Unmarshal(own, &all); err != nil {
			return nil, err
		}
	}
	if err := json.Unmarshal(added, &extra); err != nil {
		return nil, err
	}
	maps.Copy(all, extra)
	return json.Marshal(all)
}

// device returns the name of the carrier's device in definitions and leases.
func (c Carrier) device() string {
	if c.Other {
		return otherDevice
	}
	return firstDevice
}

// Link returns the name and the alias of the carrier's device.
func (c Carrier) Link(network string) (name, alias string) {
	if c.Other {
		return backend.OtherLinkName(network), backend.OtherLinkAlias(network)
	}
	return backend.LinkName(network), backend.LinkAlias(network)
}

// DataDir returns the directory of the carrier's files, for a network whose files are in dir.
func (c Carrier) DataDir(dir string) string {
	if c.Other {
		return filepath.Join(dir, otherDevice)
	}
	return dir
}

// is reports whether two carriers are the same backend with the same device, whatever their options.
func (c Carrier) is(o Carrier) bool { return c.Type == o.Type && c.Other == o.Other }

// Link returns the name of the device of a network's current backend. kind and options are those of the network's
// definition or, for a network of which nothing is known, empty.
func Link(network, kind string, options json.RawMessage) string {
	course, err := Parse(kind, options)
	if err != nil {
		return backend.LinkName(network)
	}
	name, _ := course.Current.Link(network)
	return name
}

// Equal reports whether two carriers are the same backend with the same device and options, in the same spelling.
func (c Carrier) Equal(o Carrier) bool { return c.is(o) && bytes.Equal(c.Options, o.Options) }

// Parse returns the course in a definition's backend object, of which kind is the type and options are the other
// members. Errors are *backend.OptionError.
func Parse(kind string, options json.RawMessage) (Course, error) {
	own, m, err := split(options)
	if err != nil {
		return Course{}, fmt.Errorf("backend %q: %w", kind, err)
	}
	wrong := func(option, format string, args ...any) (Course, error) {
		return Course{}, &backend.OptionError{Option: option, Reason: fmt.Sprintf(format, args...)}
	}
	c := Course{Current: Carrier{Type: kind, Options: own, Other: m.Device == otherDevice}, Heading: m.Switch, Since: m.Since}
	switch m.Device {
	case "", firstDevice, otherDevice:
	default:
		return wrong("device", "is %q, and must be %q or %q", m.Device, firstDevice, otherDevice)
	}
	switch m.Switch {
	case Forward, Stopped, Back:
	default:
		return wrong("switch", "is %q, and must be %q or %q", m.Switch, Stopped, Back)
	}
	if m.Sends != "" || m.Error != "" || m.Encryption != "" {
		return wrong("sends", "is no option of a definition")
	}
	if len(m.Next) == 0 {
		if m.Switch != Forward {
			return wrong("switch", "is %q without a next backend", m.Switch)
		}
		return c, nil
	}
	var next struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(m.Next, &next); err != nil {
		return wrong("next", "is not a backend: %v", err)
	}
	own, m, err = split(m.Next)
	switch {
	case err != nil:
		return wrong("next", "is not a backend: %v", err)
	case next.Type == "":
		return wrong("next", "has no type")
	case len(m.Next) > 0 || m.Switch != Forward || !m.Since.IsZero() || m.Sends != "" || m.Error != "":
		return wrong("next", "has a next backend of its own")
	}
	c.Next = &Carrier{Type: next.Type, Options: withoutType(own), Other: m.Device == otherDevice, Encryption: m.Encryption}
	if c.Next.Other == c.Current.Other {
		return wrong("next", "must use the other device")
	}
	return c, nil
}

func withoutType(object json.RawMessage) json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(object, &all) != nil {
		return object
	}
	delete(all, "type")
	out, err := json.Marshal(all)
	if err != nil {
		return object
	}
	return out
}

// withType returns a backend object.
func withType(kind string, own json.RawMessage, m members) (json.RawMessage, error) {
	object, err := m.join(own)
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	if len(object) > 0 {
		if err := json.Unmarshal(object, &all); err != nil {
			return nil, err
		}
	}
	if all["type"], err = json.Marshal(kind); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// Options returns the members of a definition's backend object except its type: the reverse of Parse.
func (c Course) Options() (json.RawMessage, error) {
	m := members{Device: c.Current.device(), Switch: c.Heading, Since: c.Since}
	if c.Next != nil {
		var err error
		if m.Next, err = withType(c.Next.Type, c.Next.Options, members{Device: c.Next.device(), Encryption: c.Next.Encryption}); err != nil {
			return nil, err
		}
	}
	return m.join(c.Current.Options)
}

// Target returns the backend that is to carry the network in the end.
func (c Course) Target() Carrier {
	if c.Next == nil || c.Heading == Back {
		return c.Current
	}
	return *c.Next
}

// To returns a course that begins to switch the network to another backend, or to the same with other options.
func (c Course) To(kind string, options json.RawMessage) Course {
	return Course{
		Current: c.Current,
		Next:    &Carrier{Type: kind, Options: options, Other: !c.Current.Other},
		Since:   c.Since,
	}
}

// Ended returns the course after a switch that ended at the given time: the target alone.
func (c Course) Ended(at time.Time) Course {
	if c.Heading == Back {
		at = c.Since
	}
	return Course{Current: c.Target(), Since: at.UTC().Truncate(time.Second)}
}

// Follows reports whether a host on course c can take course o without an interruption: o's current backend is one of
// c's.
func (c Course) Follows(o Course) bool {
	return c.Current.is(o.Current) || c.Next != nil && c.Next.is(o.Current)
}

// IsMoved reports whether a host sends to all its peers over the course's target, as far as its lease says. attributes
// are the members of the lease's backend object except its type.
func (c Course) IsMoved(attributes json.RawMessage) bool {
	_, m, err := split(attributes)
	if err != nil || c.Next == nil || c.Heading == Stopped {
		return false
	}
	// A lease that names only one backend is of a host that is ahead, or has not followed yet.
	return m.Sends == c.Target().device() || m.Next == nil && deviceOf(m) == c.Target().device()
}

func deviceOf(m members) string {
	if m.Device == "" {
		return firstDevice
	}
	return m.Device
}

// Ready reports whether a host can receive over the carrier, as far as its lease says, or else why it cannot use it, ""
// if it does not say. kind is the type of the lease's backend object, and attributes are the other members.
func (c Carrier) Ready(kind string, attributes json.RawMessage) (ready bool, fault string) {
	_, fault, ready = c.entry(kind, attributes)
	return ready, fault
}

// entry returns the attributes that a peer published for a carrier, without members of this package.
func (c Carrier) entry(kind string, attributes json.RawMessage) (own json.RawMessage, fault string, ok bool) {
	own, m, err := split(attributes)
	if err != nil {
		return attributes, "", false
	}
	if kind == c.Type && deviceOf(m) == c.device() {
		return own, "", true
	}
	if len(m.Next) == 0 {
		return nil, "", false
	}
	var next struct {
		Type string `json:"type"`
	}
	own, m, err = split(m.Next)
	if err != nil || json.Unmarshal(own, &next) != nil || next.Type != c.Type || deviceOf(m) != c.device() {
		return nil, "", false
	}
	return withoutType(own), m.Error, m.Error == ""
}
