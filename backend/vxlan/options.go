// Package vxlan implements the backend that carries packets in the kernel's VXLAN (RFC 7348),
// without learning: each peer has a forwarding entry, and a permanent neighbour and an onlink route
// per subnet. It owns the network's device and the routes with our protocol inside the network's
// pools.
//
// leno hosts send the packets of both families through one device, over one family of the underlay.
// A host that runs flannel has a device for each family instead, and receives IPv4 packets over
// IPv4 and IPv6 packets over IPv6. Where the first device cannot reach such a peer, this host has a
// second one with the same VNI, port and MAC address, bound to its address of the other family. The
// kernel allows that for one device of each family.
package vxlan

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// Name is the type's name in a network's record.
const Name = "vxlan"

// The values of checksum_offload.
const (
	checksumAuto = "auto" // on, except where a fault is known
	checksumOn   = "on"
	checksumOff  = "off" // compute checksums before the packet enters the device
)

// options holds the network's options, which are the same on every host.
type options struct {
	VNI           int    `json:"vni"`            // 1..2^24-1
	Port          int    `json:"port"`           // UDP
	GBP           bool   `json:"gbp"`            // group based policy extension
	DirectRouting bool   `json:"direct_routing"` // plain routes to peers on the same layer 2
	Checksum      string `json:"checksum_offload"`
	MTU           int    `json:"mtu"` // largest MTU of the overlay in bytes; 0: what the underlay carries
}

func defaults() options {
	return options{VNI: 1, Port: 8472, Checksum: checksumAuto}
}

// normalize decodes a network's options. Each wrong or unknown one is an OptionError.
var normalize = backend.Normalizer(decode)

// interrupts returns the options whose change needs another device (device.needsNew), or that peers
// must agree on (planner.vtep).
func interrupts() map[string]string {
	return map[string]string{
		"vni":  "the device is recreated, and hosts with different VNIs do not hear each other",
		"port": "the device is recreated, and hosts with different ports do not hear each other",
		"gbp":  "the device is recreated",
	}
}

// port returns the VNI on its port. The kernel accepts each pair once, and has one socket per port,
// with the GBP extension or without.
func port(raw json.RawMessage) backend.Port {
	o, err := decode(raw)
	if err != nil {
		return backend.Port{}
	}
	p := backend.Port{Number: o.Port, Socket: Name, Part: fmt.Sprintf("vni %d", o.VNI)}
	if o.GBP {
		p.Socket += " with gbp"
	}
	return p
}

func decode(raw json.RawMessage) (options, error) {
	o := defaults()
	errs := backend.DecodeOptions(Name, raw, map[string]backend.OptionTarget{
		"vni":              {Value: &o.VNI, Is: "a whole number"},
		"port":             {Value: &o.Port, Is: "a whole number"},
		"gbp":              {Value: &o.GBP, Is: "true or false"},
		"direct_routing":   {Value: &o.DirectRouting, Is: "true or false"},
		"checksum_offload": {Value: &o.Checksum, Is: `"auto", "on" or "off"`},
		backend.OptionMTU:  backend.MTUTarget(&o.MTU),
	})
	// An option of the wrong type has kept its default, which is valid.
	return o, errors.Join(append(errs, o.check()...)...)
}

func (o options) check() (errs []error) {
	wrong := func(option, format string, args ...any) {
		errs = append(errs, &backend.OptionError{Option: option, Reason: fmt.Sprintf(format, args...)})
	}
	if o.VNI < 1 || o.VNI > 1<<24-1 {
		wrong("vni", "must be 1 to %d, is %d", 1<<24-1, o.VNI)
	}
	if o.Port < 1 || o.Port > 1<<16-1 {
		wrong("port", "must be 1 to %d, is %d", 1<<16-1, o.Port)
	}
	if !slices.Contains([]string{checksumAuto, checksumOn, checksumOff}, o.Checksum) {
		wrong("checksum_offload", `must be "auto", "on" or "off", is %q`, o.Checksum)
	}
	return append(errs, backend.CheckMTU(o.MTU))
}

// attributes holds what a host publishes for its peers.
type attributes struct {
	VNI  int    `json:"vni"`
	Port int    `json:"port"`
	MAC  string `json:"vtep_mac"`

	// OwnFamily is true for a host that runs flannel: it receives the packets of each family over
	// that family. MACv6 is the MAC address that receives IPv6 packets over IPv6, "" for MAC. Other
	// hosts send those to a host that runs flannel, or run flannel themselves.
	OwnFamily bool   `json:"own_family,omitempty"`
	MACv6     string `json:"vtep_mac_v6,omitempty"`
}

// vtepMAC returns a host's MAC address on the network, the same after every restart: 0a (locally
// administered, unicast) and 40 bits of a hash. The probability that two of 5,000 hosts share one
// is 1 in 90,000; the second is then skipped and named in the report.
func vtepMAC(nodeID, network string) kernel.MAC {
	sum := sha256.Sum256([]byte("leno vtep\x00" + network + "\x00" + nodeID))
	mac := kernel.MAC{0x0a}
	copy(mac[1:], sum[:])
	return mac
}
