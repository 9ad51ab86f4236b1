package flannel

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
)

// DefaultBackend is the type of a network or lease that names none.
const DefaultBackend = "udp"

// Attributes are the value of a lease.
type Attributes struct {
	PublicIP    *netip.Addr // nil on a host without IPv4
	PublicIPv6  *netip.Addr // nil on a host without IPv6
	BackendType string      `json:",omitempty"` // "" for DefaultBackend, and for alloc in a network of alloc
	// BackendData is what peers need of the backend for IPv4 packets, such as VXLAN. BackendV6Data is the same for IPv6.
	BackendData   json.RawMessage `json:",omitempty"`
	BackendV6Data json.RawMessage `json:",omitempty"`
}

// ParseAttributes parses the value of a lease.
func ParseAttributes(value []byte) (Attributes, error) {
	var a Attributes
	if err := json.Unmarshal(value, &a); err != nil {
		return a, fmt.Errorf("the value is not a lease: %w", err)
	}
	if len(a.PublicIPs()) == 0 {
		return a, errors.New("the value has no PublicIP, so its host is unknown")
	}
	if a.PublicIP != nil && a.PublicIP.IsValid() && !a.PublicIP.Unmap().Is4() {
		return a, fmt.Errorf("PublicIP %s is not IPv4", a.PublicIP)
	}
	return a, nil
}

// data returns the data for packets of a family, and the name of that member.
func (a *Attributes) data(isIPv6 bool) (member string, data *json.RawMessage) {
	if isIPv6 {
		return "BackendV6Data", &a.BackendV6Data
	}
	return "BackendData", &a.BackendData
}

// PublicIPs returns the addresses of the host, IPv4 first.
func (a Attributes) PublicIPs() (out []netip.Addr) {
	for _, ip := range []*netip.Addr{a.PublicIP, a.PublicIPv6} {
		if ip != nil && ip.IsValid() && !ip.IsUnspecified() {
			out = append(out, ip.Unmap())
		}
	}
	return out
}
