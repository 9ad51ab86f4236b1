// Package carriage converts between the backends of a network as definitions have them and as hosts run them.
package carriage

import (
	"cmp"

	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/registry"
)

// Of returns the backends as hosts run them.
func Of(c registry.Carriage) switchover.Definition {
	d := switchover.Definition{
		Current: switchover.Spec{Type: c.Backend.Type, Options: c.Backend.Options(), Epoch: c.Epoch.Number,
			Rotated: c.Epoch.Rotated},
		Since: c.Epoch.Since,
	}
	if s := c.Switch; s != nil {
		d.Current.Encryption, d.Direction = s.EncryptionBack, switchover.Direction(s.Direction)
		d.Next = &switchover.Spec{Type: s.To.Type, Options: s.To.Options(), Epoch: c.Epoch.Number + 1, Rotated: s.Rotated,
			Encryption: s.Encryption}
	}
	return d
}

// Set returns network n with the backends of d. At the end of a switch, the network requires the encryption that was
// postponed until then because one of the backends did not encrypt.
func Set(n registry.Network, d switchover.Definition) (registry.Network, error) {
	var err error
	c := registry.Carriage{Epoch: registry.Epoch{Number: d.Current.Epoch, Rotated: d.Current.Rotated, Since: d.Since}}
	if c.Backend, err = registry.NewBackend(d.Current.Type, d.Current.Options); err != nil {
		return n, err
	}
	if d.Next == nil {
		n.Encryption = cmp.Or(d.Current.Encryption, n.Encryption)
		return n.WithCarriage(c), nil
	}
	c.Switch = &registry.Switch{
		Rotated:        d.Next.Rotated,
		Direction:      string(d.Direction),
		Encryption:     d.Next.Encryption,
		EncryptionBack: d.Current.Encryption,
	}
	c.Switch.To, err = registry.NewBackend(d.Next.Type, d.Next.Options)
	return n.WithCarriage(c), err
}
