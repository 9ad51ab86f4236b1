package etcd

import (
	"net/netip"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// layout builds keys. Flannel's network is directly below the prefix, and every other network is in the same layout
// below leno/networks. What flannel does not know is below leno:
//
//	PREFIX/config                          flannel's network
//	PREFIX/subnets/10.5.34.0-24            a lease in it
//	PREFIX/leno/networks/NAME/config       another network, with subnets/ beside config
//	PREFIX/leno/markers/NAME               tells a network without leases from one whose records were lost
//	PREFIX/leno/sessions/NAME/ID           the session of the host whose lease is attached to the etcd lease ID
//	PREFIX/leno/reservations/NAME/SUBNET   a reservation
//	PREFIX/leno/revoked/NAME/SUBNET        a lease that was revoked recently
type layout struct {
	prefix  string // "/coreos.com/network"
	network string // the name of flannel's network
}

func (l layout) root() string     { return l.prefix + "/" }
func (l layout) networks() string { return l.prefix + "/leno/networks/" }

// base returns the prefix below which a network is in flannel's layout.
func (l layout) base(network string) string {
	if network == l.network {
		return l.prefix
	}
	return l.networks() + network
}

func (l layout) definition(network string) string { return l.base(network) + "/" + flannel.ConfigKey }

func (l layout) leases(network string) string {
	return l.base(network) + "/" + flannel.SubnetsDir + "/"
}

func (l layout) lease(network string, subnets []netip.Prefix) string {
	return l.leases(network) + flannel.SubnetKey(subnets)
}

func (l layout) marker(network string) string   { return l.prefix + "/leno/markers/" + network }
func (l layout) sessions(network string) string { return l.prefix + "/leno/sessions/" + network + "/" }
func (l layout) reservations(network string) string {
	return l.prefix + "/leno/reservations/" + network + "/"
}

func (l layout) reservation(network string, first netip.Prefix) string {
	return l.reservations(network) + registry.SubnetKey(first)
}

func (l layout) revoked(network string, first netip.Prefix) string {
	return l.prefix + "/leno/revoked/" + network + "/" + registry.SubnetKey(first)
}

// session returns the key of the session of the host whose lease is attached to the etcd lease id.
func (l layout) session(network string, id clientv3.LeaseID) string {
	return l.sessions(network) + formatLeaseID(id)
}

// definedIn returns the name of the network that a key defines, and reports whether the key defines one. The name may
// not be a valid one.
func (l layout) definedIn(key string) (name string, ok bool) {
	if key == l.definition(l.network) {
		return l.network, true
	}
	name, below := strings.CutPrefix(key, l.networks())
	if !below || strings.Contains(name, "/"+flannel.SubnetsDir+"/") {
		return "", false
	}
	return strings.TrimSuffix(name, "/"+flannel.ConfigKey), true
}

// A session consists of two etcd leases: the first ends when the host has been silent for a TTL, and the second, to
// which the host's lease is attached, when the lease has been kept for its host for long enough.
type session struct {
	alive, kept clientv3.LeaseID
}

// String returns the session as registry.Lease has it, such as "694d9b3c1a2b3c04-694d9b3c1a2b3c06".
func (s session) String() string { return formatLeaseID(s.alive) + "-" + formatLeaseID(s.kept) }

// parseSession is the inverse of String. ok is false if text is no session of this store.
func parseSession(text string) (s session, ok bool) {
	alive, kept, _ := strings.Cut(text, "-")
	var okKept bool
	s.alive, ok = parseLeaseID(alive)
	s.kept, okKept = parseLeaseID(kept)
	return s, ok && okKept
}

func formatLeaseID(id clientv3.LeaseID) string { return strconv.FormatInt(int64(id), 16) }

func parseLeaseID(text string) (clientv3.LeaseID, bool) {
	id, err := strconv.ParseInt(text, 16, 64)
	return clientv3.LeaseID(id), err == nil && id != 0
}
