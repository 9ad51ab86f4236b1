// Package transition carries a network with one backend, or with two while the network is switched from one to the
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
// Definitions and leases store this in their backend objects, in members of this package next to the backend's own.
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

// A Direction is the direction of a switch: towards one of its two backends, or none.
type Direction string

// The directions of a switch.
const (
	Forward Direction = ""        // to the next backend
	Stopped Direction = "stopped" // peers stay where they are
	Back    Direction = "back"    // to the current backend
)

// A Spec is a backend with its options, and the device that it uses.
type Spec struct {
	Type    string
	Options json.RawMessage // an object with only the backend's own members
	Other   bool            // it uses the network's other device; see backend.OtherLinkName

	// Encryption is what the network requires once this backend alone carries it; "" for what it requires now. It is used
	// only during a switch.
	Encryption string
}

// A Definition is the part of a network's definition that says which backends carry it.
type Definition struct {
	Current   Spec
	Next      *Spec     // nil unless the network is being switched
	Direction Direction // of the switch

	// Since is when the last switch ended, or the time from which the age of the keys counts; zero if that is not known. It
	// is by the clock of the host that wrote it.
	Since time.Time

	// Switches is the number of switches that have moved the network to its other device. A host that has missed any of
	// them replaces its key.
	Switches int
}

// The device that a backend uses, as definitions and leases name it.
const (
	firstDevice = "a" // left out of definitions and leases, as networks that were never switched have no other
	otherDevice = "b"
)

// members are what this package adds to the backend object of a definition or a lease.
type members struct {
	Type   string          `json:"type,omitempty"`   // of next
	Device string          `json:"device,omitempty"` // firstDevice or otherDevice
	Next   json.RawMessage `json:"next,omitempty"`   // a backend object
	Switch Direction       `json:"switch,omitempty"` // of a definition
	Since  time.Time       `json:"since,omitzero"`   // of a definition
	Sends  string          `json:"sends,omitempty"`  // of a lease: the device over which the host sends to all its peers
	Error  string          `json:"error,omitempty"`  // of next in a lease: why the host cannot use that backend

	Encryption string `json:"encryption,omitempty"` // of either backend of a switch, in a definition
	Switches   int    `json:"switches,omitempty"`   // of a definition, and of the one that a lease's host follows
}

// names lists the JSON names of members.
var names = []string{"type", "device", "next", "switch", "sends", "error", "encryption", "since", "switches"}

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

// device returns the name of the backend's device in definitions and leases.
func (c Spec) device() string {
	if c.Other {
		return otherDevice
	}
	return firstDevice
}

// Link returns the name and the alias of the backend's device.
func (c Spec) Link(network string) (name, alias string) {
	if c.Other {
		return backend.OtherLinkName(network), backend.OtherLinkAlias(network)
	}
	return backend.LinkName(network), backend.LinkAlias(network)
}

// DataDir returns the directory of the backend's files, for a network whose files are in dir.
func (c Spec) DataDir(dir string) string {
	if c.Other {
		return filepath.Join(dir, otherDevice)
	}
	return dir
}

// is reports whether both are the same backend with the same device, regardless of their options.
func (c Spec) is(o Spec) bool { return c.Type == o.Type && c.Other == o.Other }

// Link returns the name of the device of a network's current backend. kind and options are those of the network's
// definition, or empty if the definition is not known.
func Link(network, kind string, options json.RawMessage) string {
	return Links(network, kind, options)[0]
}

// Equal reports whether both are the same backend with the same device and options, in the same spelling.
func (c Spec) Equal(o Spec) bool { return c.is(o) && bytes.Equal(c.Options, o.Options) }

// Parse parses the backend object of a network's definition, of which kind is the type and options are the other
// members. An error about a member of this package is a *backend.OptionError.
func Parse(kind string, options json.RawMessage) (Definition, error) {
	own, m, err := split(options)
	if err != nil {
		return Definition{}, fmt.Errorf("backend %q: %w", kind, err)
	}
	wrong := func(option, format string, args ...any) (Definition, error) {
		return Definition{}, &backend.OptionError{Option: option, Reason: fmt.Sprintf(format, args...)}
	}
	c := Definition{
		Current:   Spec{Type: kind, Options: own, Other: m.Device == otherDevice},
		Direction: m.Switch,
		Since:     m.Since,
		Switches:  m.Switches,
	}
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
	switch {
	case m.Sends != "":
		return wrong("sends", "is no option of a definition")
	case m.Error != "":
		return wrong("error", "is no option of a definition")
	case m.Switches < 0:
		return wrong("switches", "is %d", m.Switches)
	}
	if len(m.Next) == 0 {
		if m.Switch != Forward {
			return wrong("switch", "is %q without a next backend", m.Switch)
		}
		if m.Encryption != "" {
			return wrong("encryption", "is %q without a next backend", m.Encryption)
		}
		return c, nil
	}
	c.Current.Encryption = m.Encryption
	if m.Next[0] != '{' {
		return wrong("next", "is not a backend: %.64s", m.Next)
	}
	own, m, err = split(m.Next)
	switch {
	case err != nil:
		return wrong("next", "is not a backend: %v", err)
	case m.Type == "":
		return wrong("next", "has no type")
	case len(m.Next) > 0 || m.Switch != Forward || !m.Since.IsZero() || m.Sends != "" || m.Error != "" || m.Switches != 0:
		return wrong("next", "has a next backend of its own")
	}
	c.Next = &Spec{Type: m.Type, Options: own, Other: m.Device == otherDevice, Encryption: m.Encryption}
	if c.Next.Other == c.Current.Other {
		return wrong("next", "must use the other device")
	}
	return c, nil
}

// Options returns the members of the backend object except its type: the reverse of Parse.
func (c Definition) Options() (json.RawMessage, error) {
	m := members{Device: c.Current.device(), Switch: c.Direction, Since: c.Since, Switches: c.Switches}
	if c.Next != nil {
		m.Encryption = c.Current.Encryption
		next := members{Type: c.Next.Type, Device: c.Next.device(), Encryption: c.Next.Encryption}
		var err error
		if m.Next, err = next.join(c.Next.Options); err != nil {
			return nil, err
		}
	}
	return m.join(c.Current.Options)
}

// Target returns the backend that is to carry the network in the end.
func (c Definition) Target() Spec {
	if c.Next == nil || c.Direction == Back {
		return c.Current
	}
	return *c.Next
}

// To returns a definition that begins to switch the network to another backend, or to the same backend with other
// options.
func (c Definition) To(kind string, options json.RawMessage) Definition {
	return Definition{
		Current:  c.Current,
		Next:     &Spec{Type: kind, Options: options, Other: !c.Current.Other},
		Since:    c.Since,
		Switches: c.Switches,
	}
}

// Ended returns the definition after a switch that ended at the given time: the target alone.
func (c Definition) Ended(at time.Time) Definition {
	switches := c.Switches + 1
	if c.Direction == Back {
		switches = c.Switches
	}
	return Definition{Current: c.Target(), Since: at.UTC().Truncate(time.Second), Switches: switches}
}

// Follows reports whether a host with definition c can change to definition o without an interruption: the current
// backend of o is one of the backends of c.
func (c Definition) Follows(o Definition) bool {
	return c.Current.is(o.Current) || c.Next != nil && c.Next.is(o.Current)
}

// generation returns the value that Switches has when a backend of the definition carries the network alone: the
// present value for the current backend, and one more for the next backend. It returns false for a backend that the
// definition does not have. A host makes a new key for each generation of a device.
func (c Definition) generation(of Spec) (n int, ok bool) {
	switch {
	case c.Current.is(of):
		return c.Switches, true
	case c.Next != nil && c.Next.is(of):
		return c.Switches + 1, true
	}
	return 0, false
}

// isOutdated reports whether the key that a host made for a backend under definition c is outdated under definition o:
// the host has missed switches that have ended in o since it made the key, or c no longer has the backend.
func (c Definition) isOutdated(o Definition, of Spec) bool {
	had, ok := c.generation(of)
	now, _ := o.generation(of)
	return !ok || now > had
}

// IsMoved reports whether a lease says that its host sends to all its peers over the definition's target. attributes
// are the members of the lease's backend object except its type.
func (c Definition) IsMoved(attributes json.RawMessage) bool {
	_, m, err := split(attributes)
	if err != nil || c.Next == nil || c.Direction == Stopped {
		return false
	}
	// The lease of a host that has missed a switch says the same as in an earlier switch to the same device, but not with
	// the same count or, after a switch that was reversed, with another type.
	target := c.Target()
	if m.Sends == target.device() && m.Switches == c.Switches {
		_, next, err := split(m.Next)
		return c.Direction == Back || err == nil && next.Type == target.Type
	}
	// A lease that names only one backend belongs to a host that is ahead, or that has not followed yet and sends over
	// that backend alone: a host moves no peer before its lease names both.
	switches, _ := c.generation(target)
	return m.Next == nil && deviceOf(m) == target.device() && m.Switches == switches
}

func deviceOf(m members) string {
	if m.Device == "" {
		return firstDevice
	}
	return m.Device
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
	if kind == c.Type && deviceOf(m) == c.device() {
		return own, "", true
	}
	if len(m.Next) == 0 {
		return nil, "", false
	}
	own, m, err = split(m.Next)
	if err != nil || m.Type != c.Type || deviceOf(m) != c.device() {
		return nil, "", false
	}
	return own, m.Error, m.Error == ""
}
