package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"
)

// Carriage says which backends carry a network.
type Carriage struct {
	Backend Backend `json:"backend"`          // during a switch, the one from which the switch started
	Switch  *Switch `json:"switch,omitempty"` // nil unless the network is being switched
	Epoch   Epoch   `json:"epoch,omitzero"`   // of Backend
}

// A Switch is that of a network to another backend, to other options, or to new keys.
type Switch struct {
	To        Backend `json:"to"`                  // equal to Carriage.Backend for new keys
	Rotated   bool    `json:"rotated,omitempty"`   // as in Epoch, of To
	Direction string  `json:"direction,omitempty"` // "" to To, "stopped", or "back" to Carriage.Backend

	// Encryption is what the network requires once To alone carries it, and EncryptionBack once Carriage.Backend does
	// so again; "" for what the network requires now.
	Encryption     string `json:"encryption,omitempty"`
	EncryptionBack string `json:"encryption_back,omitempty"`
}

// An Epoch is the time in which one backend carries a network, with the same keys.
type Epoch struct {
	// Number grows with each epoch. The device and the keys follow from it: epochs with an odd number have the network's
	// other device, and a host that has missed an epoch replaces its key.
	Number int `json:"number,omitempty"`

	// Rotated means that keys were rotated an odd number of times: the backend uses its two ports in reverse order.
	Rotated bool `json:"rotated,omitempty"`

	// Since is when the epoch began, or the time from which the age of the keys counts; zero if that is not known. It is
	// by the clock of the host that wrote it.
	Since time.Time `json:"since,omitzero"`
}

// Carriage returns the backends of the network.
func (n Network) Carriage() Carriage { return Carriage{n.Backend, n.Switch, n.Epoch} }

// WithCarriage returns the network with other backends.
func (n Network) WithCarriage(c Carriage) Network {
	n.Backend, n.Switch, n.Epoch = c.Backend, c.Switch, c.Epoch
	return n
}

// Objects returns the backends as JSON objects with "type": that of the network and, during a switch, the next one.
func (c Carriage) Objects() []json.RawMessage {
	if c.Switch == nil {
		return []json.RawMessage{c.Backend.Object}
	}
	return []json.RawMessage{c.Backend.Object, c.Switch.To.Object}
}

// Equal reports whether both would be written as the same record, regardless of the spelling of options.
func (c Carriage) Equal(o Carriage) bool {
	if !c.Backend.Equal(o.Backend) || (c.Switch == nil) != (o.Switch == nil) ||
		c.Epoch.Number != o.Epoch.Number || c.Epoch.Rotated != o.Epoch.Rotated || !c.Epoch.Since.Equal(o.Epoch.Since) {
		return false
	}
	if c.Switch == nil {
		return true
	}
	s, t := *c.Switch, *o.Switch
	return s.To.Equal(t.To) && s.Direction == t.Direction && s.Rotated == t.Rotated &&
		s.Encryption == t.Encryption && s.EncryptionBack == t.EncryptionBack
}

// check checks what package registry knows of backends.
func (c Carriage) check() error {
	if err := checkName("backend type", c.Backend.Type); err != nil {
		return err
	}
	if c.Epoch.Number < 0 || c.Epoch.Number > MaxGeneration {
		return fmt.Errorf("%w: epoch %d, want 0 to %d", ErrInvalid, c.Epoch.Number, uint64(MaxGeneration))
	}
	s := c.Switch
	if s == nil {
		return nil
	}
	if err := checkName("type of the switch's backend", s.To.Type); err != nil {
		return err
	}
	switch s.Direction {
	case "", "stopped", "back":
	default:
		return fmt.Errorf(`%w: direction of the switch is %.64q, and must be "stopped" or "back"`, ErrInvalid, s.Direction)
	}
	return cmp.Or(CheckEncryption(s.Encryption), CheckEncryption(s.EncryptionBack))
}
