// Package definition says what a network's definition means: which network a configuration block defines, where two
// definitions differ, and what a change does to every host. It works on values only and does no I/O.
package definition

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// FromBlock returns the network that a configuration block defines. The block must have pools and a backend with
// effective options.
func FromBlock(local config.Network) (registry.Network, error) {
	n := registry.Network{Name: local.Name, Encryption: local.Encryption}
	for _, p := range local.Pools {
		n.Plan = append(n.Plan, registry.Pool(p))
	}
	var err error
	if n.Plan, err = n.Plan.Normalize(); err != nil {
		return n, err
	}
	if local.Backend == nil {
		return n, fmt.Errorf("network %s: %w: no backend", local.Name, registry.ErrInvalid)
	}
	n.Backend, err = registry.NewBackend(local.Backend.Type, local.Backend.Options)
	return n, err
}

// Intended returns the network as its definition intends it: at the end of a switch to another backend. The epoch of
// the backend is not part of it.
func Intended(n registry.Network) registry.Network {
	target := registry.Carriage{Backend: n.Backend}
	if s := n.Switch; s != nil {
		encryption := s.Encryption
		if s.Direction == "back" {
			encryption = s.EncryptionBack
		} else {
			target.Backend = s.To
		}
		n.Encryption = cmp.Or(encryption, n.Encryption)
	}
	return n.WithCarriage(target)
}

// DifferencesOfBlock describes where the network that a configuration block defines differs from what its definition in
// the store intends. An option that the store lacks has its default there, for example in a definition that flannel or
// an older leno wrote.
func DifferencesOfBlock(block, stored registry.Network, kinds map[string]backend.Type) []string {
	intended := Intended(stored)
	intended.Backend = WithDefaults(intended.Backend, kinds)
	return Differences(block, intended)
}

// WithDefaults returns a backend with its effective options, or unchanged if this leno does not have it.
func WithDefaults(b registry.Backend, kinds map[string]backend.Type) registry.Backend {
	out, err := registry.NewBackend(b.Type, typeSet(kinds).spec(b).Options)
	if err != nil {
		return b
	}
	return out
}

// CheckEncryption returns an error if n requires encryption, and its backend, or that to which it is being switched,
// does not encrypt. The error wraps registry.ErrInvalid. A backend that this leno does not have does not encrypt.
func CheckEncryption(n registry.Network, kinds map[string]backend.Type) error {
	if n.Encryption == "" {
		return nil
	}
	plain := n.Backend.Type
	if kinds[plain].Encrypts {
		if n.Switch == nil || kinds[n.Switch.To.Type].Encrypts {
			return nil
		}
		plain = n.Switch.To.Type
	}
	var encrypting []string
	for name, kind := range kinds {
		if kind.Encrypts {
			encrypting = append(encrypting, name)
		}
	}
	slices.Sort(encrypting)
	return fmt.Errorf("%w: encryption is %s, and backend %s does not encrypt; those that do: %s",
		registry.ErrInvalid, n.Encryption, plain, strings.Join(encrypting, ", "))
}

// CheckCarried returns an error if n requires encryption and its packets would not be encrypted: by its backends or, if
// this leno cannot run these, by left, those of the datapath that then stays.
func CheckCarried(n registry.Network, left registry.Carriage, kinds map[string]backend.Type) error {
	if err := CheckEncryption(n, kinds); err != nil || CheckEncryption(n.WithCarriage(left), kinds) == nil {
		return err
	}
	return checkBackends(n, kinds)
}

// CheckReplacement returns an error if this leno cannot run the backends of n, the definition after known, so that the
// latter stays in force. It returns nil if it cannot run those of known either, or they lack the encryption that n
// requires.
func CheckReplacement(known, n registry.Network, kinds map[string]backend.Type) error {
	if checkBackends(known, kinds) != nil || CheckEncryption(n.WithCarriage(known.Carriage()), kinds) != nil {
		return nil
	}
	return checkBackends(n, kinds)
}

// checkBackends returns an error if this leno does not have the backends of n, or not with their options.
func checkBackends(n registry.Network, kinds map[string]backend.Type) error {
	_, err := carriage.Of(n.Carriage()).Normalize(kinds)
	return err
}

// Differences describes where want differs from have, the definition in the store. The options of backends of different
// types are not compared.
func Differences(want, have registry.Network) (out []string) {
	w, h := want.Carriage(), have.Carriage()
	if want.Backend.Type != have.Backend.Type {
		want.Backend, have.Backend = registry.Backend{Type: want.Backend.Type}, registry.Backend{Type: have.Backend.Type}
	}
	for _, d := range registry.Differences(want, have) {
		a, b := cmp.Or(d.A, "not set"), cmp.Or(d.B, "not set")
		out = append(out, fmt.Sprintf("%s is %s, and %s in the store", d.Field, a, b))
	}
	if w.Backend = h.Backend; !w.Equal(h) {
		out = append(out, "its switch to another backend or to new keys is in another state in the store")
	}
	return out
}

// DescribeChanges describes what becomes of a network when to replaces from, each value by name.
func DescribeChanges(from, to registry.Network, kinds map[string]backend.Type) (out []string) {
	for _, d := range (Change{Old: from, New: to, Backends: kinds}).differences() {
		out = append(out, fmt.Sprintf("%s: %s becomes %s", d.Field, cmp.Or(d.From, "none"), cmp.Or(d.To, "none")))
	}
	if len(out) == 0 {
		return Differences(to, from)
	}
	return out
}
