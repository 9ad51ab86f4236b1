package flannel

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/registry"
)

// hostPrefix begins the node name and node id of a host that runs flannel; its first public address follows.
const hostPrefix = "flannel-"

// vtep is the BackendData of a vxlan lease.
type vtep struct {
	VNI     *int64 `json:",omitempty"` // modulo 2^16, see wireVNI
	VtepMAC string
}

// wireVNI returns the VNI as flannel writes it: it has 16 bits for it in a lease, and refuses to read a higher number.
func wireVNI(vni int64) int64 { return int64(uint16(vni)) }

// FormatLease returns the value of a lease:
//
//	{"PublicIP":"192.0.2.34","PublicIPv6":null,"BackendType":"vxlan",
//	 "BackendData":{"VNI":1,"VtepMAC":"0a:58:c0:00:02:22"},"leno":{"version":1,...}}
//
// The member "leno" is what registry.FormatLease returns. The data of vxlan is there for each family of which the
// network has a pool and the host an address: BackendData for IPv4 with the lease's vtep_mac, BackendV6Data for IPv6
// with its vtep_mac_v6, or else the same. The lease of a host that runs flannel (Foreign) has no member "leno".
//
// FormatLease refuses what ParseLease would refuse under SubnetKey(l.Subnets), a lease that would stop flanneld, and
// one of a flannel host with another backend than the network's, of whose data ParseLease keeps not everything. Errors
// wrap registry.ErrInvalid.
func FormatLease(n registry.Network, l registry.Lease) ([]byte, error) {
	// Flannel's host-gw reads PublicIPv6 of every lease with an IPv6 subnet, and panics where it is null.
	if s := unreachable(l); s.IsValid() && l.Backend.Type == hostGW {
		return nil, registry.InvalidRecord(fmt.Sprintf("host-gw needs a public address of the family of %s", s))
	}
	value, err := json.Marshal(attributesOf(n, l))
	if err != nil {
		return nil, err
	}
	if l.Foreign {
		if l.Backend.Type != n.Backend.Type {
			return nil, registry.InvalidRecord(fmt.Sprintf("backend %q is not the network's", l.Backend.Type))
		}
	} else {
		record, err := registry.FormatLease(l)
		if err != nil {
			return nil, registry.InvalidRecord(err.Error())
		}
		value = withRecord(value, record)
	}
	if _, _, err := ParseLease(n, SubnetKey(l.Subnets), value); err != nil {
		return nil, err
	}
	return value, nil
}

// WhyIgnored returns why hosts with flannel ignore a leno host's lease, "" if they use it: with vxlan, flannel needs
// a public address of the family of each subnet, and without it does not send packets of the other family either. Leno
// carries both families over one address.
func WhyIgnored(l registry.Lease) string {
	if s := unreachable(l); s.IsValid() && l.Backend.Type == vxlan {
		return fmt.Sprintf("hosts with flannel would ignore this host: vxlan needs a public address of the family of %s", s)
	}
	return ""
}

// unreachable returns the first subnet of a lease whose host has no public address of its family, or the zero prefix.
func unreachable(l registry.Lease) netip.Prefix {
	for _, s := range l.Subnets {
		sameFamily := func(a netip.Addr) bool { return a.Is4() == s.Addr().Is4() }
		if !slices.ContainsFunc(l.PublicIPs, sameFamily) {
			return s
		}
	}
	return netip.Prefix{}
}

// attributesOf returns the attributes of a leno host's lease.
func attributesOf(n registry.Network, l registry.Lease) Attributes {
	a := addressesOf(l)
	from := n.Backend
	if from.Type != vxlan { // the host has not followed the network yet
		from = l.Backend
	}
	vni := wireVNI(number(from, "vni"))
	for isIPv6, mac := range macsOf(n, l) {
		_, data := a.data(isIPv6)
		*data, _ = json.Marshal(vtep{VNI: &vni, VtepMAC: mac}) // which always succeeds
	}
	return a
}

// addressesOf returns the attributes of a leno host's lease without the backend's data.
func addressesOf(l registry.Lease) Attributes {
	unspecified := netip.IPv4Unspecified() // flannel cannot read a null
	a := Attributes{PublicIP: &unspecified, BackendType: l.Backend.Type}
	if v4 := firstOf(l.PublicIPs, netip.Addr.Is4); v4.IsValid() {
		a.PublicIP = &v4
	}
	if v6 := firstOf(l.PublicIPs, netip.Addr.Is6); v6.IsValid() {
		a.PublicIPv6 = &v6
	}
	return a
}

func firstOf(addrs []netip.Addr, is func(netip.Addr) bool) netip.Addr {
	if i := slices.IndexFunc(addrs, is); i >= 0 {
		return addrs[i]
	}
	return netip.Addr{}
}

// macsOf returns the VTEP MAC addresses of a leno host for each family of which the network has a pool and the host an
// address: with the key true for IPv6. There are none for backends other than vxlan.
func macsOf(n registry.Network, l registry.Lease) map[bool]string {
	all := members(l.Backend)
	mac := macOf(all["vtep_mac"])
	if l.Backend.Type != vxlan || mac == "" {
		return nil
	}
	macs := map[bool]string{}
	for _, p := range n.Plan {
		switch isIPv4 := p.Prefix.Addr().Is4(); {
		case isIPv4 && firstOf(l.PublicIPs, netip.Addr.Is4).IsValid():
			macs[false] = mac
		case !isIPv4 && firstOf(l.PublicIPs, netip.Addr.Is6).IsValid(): // flannel panics on data without PublicIPv6
			macs[true] = cmp.Or(macOf(all["vtep_mac_v6"]), mac)
		}
	}
	return macs
}

// macOf returns the MAC address in an attribute of a lease, "" if there is none that flannel could read.
func macOf(attribute json.RawMessage) (text string) {
	_ = json.Unmarshal(attribute, &text)
	return canonicalMAC(text)
}

// canonicalMAC returns an Ethernet address in lower case with colons, or "".
func canonicalMAC(text string) string {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return ""
	}
	return mac.String()
}

// ParseLease parses the value of a lease of n; name is the last component of its key, such as 10.5.34.0-24. The name
// must have a subnet of every pool of the network. Errors wrap registry.ErrInvalid.
//
// With a member "leno", that record is the lease, and flannel's members must have the same addresses, backend type and
// VTEP MAC address. The name's subnets must be those of one slot.
//
// Without it, foreign and the lease's Foreign are true: flannel wrote the lease. Its Slot is that of the first subnet,
// and the IPv6 subnet may be of another slot. Node and NodeID are "flannel-192.0.2.9", after the host's first public
// address. MTU is the overlay's over an underlay of 1500 bytes, because flannel does not publish it. Backend has the
// attributes that leno's backend of that type publishes: for vxlan vni, port and vtep_mac, and vtep_mac_v6 if the host
// has another MAC address for IPv6. With own_family: true, vxlan's tell that the host has a device for each family, and
// receives IPv4 packets over IPv4 and IPv6 packets over IPv6; a leno host receives both over the family of its first
// public address. With ipv4_only: true, udp's tell that the host has an IPv6 subnet and carries no packets of it.
func ParseLease(n registry.Network, name string, value []byte) (l registry.Lease, foreign bool, err error) {
	subnets, err := parseLeaseName(n, name)
	if err != nil {
		return registry.Lease{}, false, err
	}
	key := registry.SubnetKey(subnets[0])
	all, ok := parseObject(value)
	if !ok {
		l, err = registry.ParseLease(n, key, value)
		return l, false, err
	}
	record, own := all[lenoMember]
	if !own {
		l, err = parseForeign(n, subnets, value)
		return l, true, err
	}
	if l, err = registry.ParseLease(n, key, record); err != nil {
		return registry.Lease{}, false, err
	}
	if err := checkAttributes(n, l, subnets, value); err != nil {
		return registry.Lease{}, false, registry.InvalidRecord(err.Error())
	}
	return l, false, nil
}

// parseLeaseName returns the subnets in the name of a lease: one of each pool, in the plan's order.
func parseLeaseName(n registry.Network, name string) ([]netip.Prefix, error) {
	subnets, err := ParseSubnetKey(name)
	if err != nil {
		subnet, err := registry.ParseSubnetKey(name)
		if err != nil {
			_, err = registry.ParseLease(n, name, nil) // has a reason for keys with a slash, too
			return nil, err
		}
		subnets = []netip.Prefix{subnet}
	}
	for _, s := range subnets {
		if _, err := n.Plan.Slot(s); err != nil {
			return nil, err
		}
	}
	// A lease may be older than the network's second pool.
	if len(subnets) > len(n.Plan) || !n.Plan[0].Prefix.Contains(subnets[0].Addr()) || name != SubnetKey(subnets) {
		first, _ := n.Plan.Range()
		return nil, fmt.Errorf("key %.80q: %w: not a subnet of each pool, as in %s", name, registry.ErrInvalid,
			SubnetKey(n.Plan.Subnets(first)))
	}
	return subnets, nil
}

// checkAttributes returns an error if the key or flannel's members of a value contradict l, the member "leno".
func checkAttributes(n registry.Network, l registry.Lease, subnets []netip.Prefix, value []byte) error {
	if !slices.Equal(l.Subnets, subnets) {
		return fmt.Errorf(`subnets %s in the key contradict the member "leno", which has %s`, subnets, l.Subnets)
	}
	have, err := ParseAttributes(value)
	if err != nil {
		return err
	}
	want := addressesOf(l)
	all := []comparison{
		{"PublicIP", addrText(have.PublicIP), addrText(want.PublicIP)},
		{"PublicIPv6", addrText(have.PublicIPv6), addrText(want.PublicIPv6)},
		{"BackendType", have.kind(n), want.BackendType},
	}
	if l.Backend.Type == vxlan {
		macs := macsOf(n, l)
		for _, isIPv6 := range []bool{false, true} {
			member, data := have.data(isIPv6)
			v, err := parseVTEP(*data)
			if err != nil {
				return fmt.Errorf("%s: %w", member, err)
			}
			all = append(all, comparison{member + ".VtepMAC", v.VtepMAC, macs[isIPv6]})
		}
	}
	for _, each := range all {
		if err := each.check(); err != nil {
			return err
		}
	}
	return nil
}

// addrText returns a public address of flannel's, "" if the host has none.
func addrText(a *netip.Addr) string {
	if a == nil || !a.IsValid() || a.IsUnspecified() {
		return ""
	}
	return a.Unmap().String()
}

// kind returns the type of the backend that the lease's host runs. Flannel's udp and alloc write none.
func (a Attributes) kind(n registry.Network) string {
	switch {
	case a.BackendType != "":
		return a.BackendType
	case n.Backend.Type == alloc:
		return alloc
	}
	return DefaultBackend
}

// parseVTEP parses the data of a vxlan lease, which has no VTEP MAC address if there is no data.
func parseVTEP(data json.RawMessage) (v vtep, err error) {
	if len(data) == 0 {
		return v, nil
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("not what vxlan publishes: %w", err)
	}
	mac := canonicalMAC(v.VtepMAC)
	if v.VtepMAC != "" && mac == "" {
		return v, fmt.Errorf("VtepMAC %q is no Ethernet address", v.VtepMAC)
	}
	v.VtepMAC = mac
	return v, nil
}

// parseForeign parses the value of a lease that flannel wrote.
func parseForeign(n registry.Network, subnets []netip.Prefix, value []byte) (registry.Lease, error) {
	a, err := ParseAttributes(value)
	if err != nil {
		return registry.Lease{}, registry.InvalidRecord(err.Error())
	}
	l := registry.Lease{Subnets: subnets, PublicIPs: a.PublicIPs(), MTU: assumedMTU(a.kind(n))}
	l.Node = hostPrefix + l.PublicIPs[0].String()
	l.NodeID = l.Node
	if l.Backend, err = foreignBackend(n, a, subnets); err != nil {
		return registry.Lease{}, registry.InvalidRecord(err.Error())
	}
	record, err := registry.FormatLease(l)
	if err != nil {
		return registry.Lease{}, registry.InvalidRecord(err.Error())
	}
	return registry.ParseForeignLease(n, registry.SubnetKey(subnets[0]), record)
}

// assumedMTU returns the overlay's MTU of a flannel host whose underlay has an MTU of 1500.
func assumedMTU(kind string) int {
	const ethernet = 1500
	switch kind {
	case vxlan:
		return ethernet - 50
	case udp:
		return ethernet - 28
	}
	return ethernet
}

// foreignBackend returns the attributes of a flannel host as leno's backend of the same type publishes them.
func foreignBackend(n registry.Network, a Attributes, subnets []netip.Prefix) (registry.Backend, error) {
	kind := a.kind(n)
	options := map[string]any{}
	if kind == n.Backend.Type {
		for _, s := range numbers(kind) { // flannel hosts have them from the configuration
			options[s.option] = number(n.Backend, s.option)
		}
		// After a switch, leno's hosts name the epoch of the network's present backend. A flannel host has no other.
		if n.Epoch.Number != 0 {
			options["epoch"] = n.Epoch.Number
		}
	}
	hasIPv6 := slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if kind == udp && hasIPv6 {
		options["ipv4_only"] = true
	}
	if kind == vxlan {
		macs, err := foreignMACs(n, a, subnets)
		if err != nil {
			return registry.Backend{}, err
		}
		options["own_family"] = true
		options["vtep_mac"] = macs[0]
		if last := macs[len(macs)-1]; last != macs[0] {
			options["vtep_mac_v6"] = last
		}
	}
	encoded, err := json.Marshal(options)
	if err != nil {
		return registry.Backend{}, err
	}
	return registry.NewBackend(kind, encoded)
}

// foreignMACs returns the MAC address of a flannel host's device for each subnet. Flannel has a device for each family.
func foreignMACs(n registry.Network, a Attributes, subnets []netip.Prefix) (macs []string, err error) {
	for _, s := range subnets {
		member, data := a.data(s.Addr().Is6())
		v, err := parseVTEP(*data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", member, err)
		}
		if v.VtepMAC == "" {
			return nil, fmt.Errorf("%s has no VtepMAC for %s", member, s)
		}
		vni := number(n.Backend, "vni")
		if n.Backend.Type == vxlan && v.VNI != nil && *v.VNI != vni && *v.VNI != wireVNI(vni) {
			return nil, fmt.Errorf("%s.VNI is %d, the network's is %d", member, *v.VNI, vni)
		}
		macs = append(macs, v.VtepMAC)
	}
	return macs, nil
}
