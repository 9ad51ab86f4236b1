// Package keys is the layout of the keys in Consul, which is described in package consul.
package keys

import (
	"net/netip"
	"strings"

	"github.com/lenonet/leno/registry"
)

// Marker is the last component of a marker's key; no network or subnet has this name.
const Marker = "_"

// MarkerValue explains the key to people who find it.
const MarkerValue = "leno keeps this key so that an empty tree can be told from a lost one"

// Layout builds keys.
type Layout struct{ Prefix string }

func (l Layout) Networks() string             { return l.Prefix + "/networks/" }
func (l Layout) Network(name string) string   { return l.Networks() + name }
func (l Layout) Leases(network string) string { return l.Prefix + "/leases/" + network + "/" }
func (l Layout) Reservations(network string) string {
	return l.Prefix + "/reservations/" + network + "/"
}

// Changes returns the prefix of a network's directory of recent changes: see package changelog.
func (l Layout) Changes(network string) string { return l.Prefix + "/changes/" + network + "/" }

func (l Layout) Lease(network string, subnet netip.Prefix) string {
	return l.Leases(network) + registry.SubnetKey(subnet)
}

func (l Layout) Reservation(network string, subnet netip.Prefix) string {
	return l.Reservations(network) + registry.SubnetKey(subnet)
}

// Last returns the part of a key after its last slash.
func Last(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }
