package backend

import "net/netip"

// PublicIP is the peer's first public address of a's family.
func (p Peer) PublicIP(a netip.Addr) (netip.Addr, bool) {
	for _, ip := range p.PublicIPs {
		if ip.Is4() == a.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

// Family is the address's family in words, for reasons people read.
func Family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
