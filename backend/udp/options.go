package udp

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lenonet/leno/backend"
)

// DefaultPort is flannel's port for the same wire format.
const DefaultPort = 8285

// options holds the effective options of a network for this backend.
type options struct {
	Port uint16 `json:"port"` // UDP port of this host's socket, 1..65535
	MTU  int    `json:"mtu"`  // largest MTU of the overlay in bytes; 0: what the underlay carries
}

// normalize decodes a network's options and fills in the defaults. A wrong or unknown option is a
// *backend.OptionError; several are joined, in the order of their names.
var normalize = backend.Normalizer(decodeOptions)

// port returns the port of the network's own socket.
func port(raw json.RawMessage) backend.Port {
	opts, err := decodeOptions(raw)
	if err != nil {
		return backend.Port{}
	}
	return backend.Port{Number: int(opts.Port), Socket: Name}
}

func decodeOptions(raw json.RawMessage) (options, error) {
	opts := options{Port: DefaultPort}
	errs := backend.DecodeOptions(Name, raw, map[string]backend.OptionTarget{
		"port":            {Value: &opts.Port, Is: "a whole number from 1 to 65535"},
		backend.OptionMTU: backend.MTUTarget(&opts.MTU),
	})
	if opts.Port == 0 {
		errs = append(errs, &backend.OptionError{Option: "port", Reason: "must be a whole number from 1 to 65535, is 0"})
	}
	return opts, errors.Join(append(errs, backend.CheckMTU(opts.MTU))...)
}

// attributes holds what a host publishes in its lease. Fields added by a later version are ignored,
// so that hosts of two versions can still communicate.
type attributes struct {
	Port     json.RawMessage `json:"port"`
	IPv4Only bool            `json:"ipv4_only"` // the host runs flannel, whose udp carries no IPv6
}

func parseAttributes(raw json.RawMessage) (attrs attributes, err error) {
	if err = json.Unmarshal(raw, &attrs); err != nil {
		err = fmt.Errorf("attributes: %w", err)
	}
	return attrs, err
}

// published returns the attributes of a host with a port.
func published(port uint16) json.RawMessage { return fmt.Appendf(nil, `{"port":%d}`, port) }

// peerPort returns the port in another host's attributes.
func (attrs attributes) peerPort() (uint16, error) {
	var port *uint16 // nil for null, which would leave a number unchanged
	if err := json.Unmarshal(attrs.Port, &port); err != nil || port == nil || *port == 0 {
		return 0, errors.New("attributes: port is not a whole number from 1 to 65535")
	}
	return *port, nil
}
