package consul

import (
	"net/netip"
	"strings"

	"github.com/lenonet/leno/registry"
)

// markerName is the last component of a marker's key; no network or subnet has this name.
const markerName = "_"

// markerValue explains the key to people who find it.
const markerValue = "leno keeps this key so that an empty tree can be told from a lost one"

// layout builds keys.
type layout struct{ prefix string }

func (l layout) networks() string             { return l.prefix + "/networks/" }
func (l layout) network(name string) string   { return l.networks() + name }
func (l layout) leases(network string) string { return l.prefix + "/leases/" + network + "/" }
func (l layout) reservations(network string) string {
	return l.prefix + "/reservations/" + network + "/"
}

// changes returns the prefix of a network's directory of recent changes: see package changelog.
func (l layout) changes(network string) string { return l.prefix + "/changes/" + network + "/" }

func (l layout) lease(network string, subnet netip.Prefix) string {
	return l.leases(network) + registry.SubnetKey(subnet)
}

func (l layout) reservation(network string, subnet netip.Prefix) string {
	return l.reservations(network) + registry.SubnetKey(subnet)
}

// lastComponent returns the part of a key after its last slash.
func lastComponent(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }
