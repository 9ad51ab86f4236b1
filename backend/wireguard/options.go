package wireguard

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
)

// DefaultPort is WireGuard's usual port.
const DefaultPort = 51820

// leastRotation is the shortest time between two key rotations: all hosts must have followed one before the next one.
const leastRotation = time.Hour

// options holds the network's options, which are the same on every host.
type options struct {
	Port      int    `json:"listen_port"`          // UDP, 1..65535
	Spare     int    `json:"rotation_port"`        // UDP, the listen_port of the next keys; 0: the one after listen_port
	Keepalive int    `json:"persistent_keepalive"` // seconds between packets that keep a path through NAT open; 0: none
	Rotate    string `json:"rotate_keys"`          // time between new keys of all hosts, at least an hour; "": never
	MTU       int    `json:"mtu"`                  // largest MTU of the overlay in bytes; 0: what the underlay carries
	KeyFile   string `json:"key_file"`             // absolute, or below the network's state directory
	PSKFile   string `json:"psk_file"`             // absolute; "": no preshared key
}

func defaults() options { return options{Port: DefaultPort, KeyFile: "wireguard.key"} }

// normalize decodes a network's options and fills in the defaults. It returns an OptionError for each invalid or
// unknown option.
var normalize = backend.Normalizer(decode)

// port returns the port of the network's own socket.
func port(raw json.RawMessage) backend.Port {
	o, err := decode(raw)
	if err != nil {
		return backend.Port{}
	}
	return backend.Port{Number: o.Port, Socket: "udp"}
}

// interrupts returns the options on which both ends of a path must agree.
func interrupts() map[string]string {
	return map[string]string{
		"listen_port": "peers send to the old port until they have read of the new one",
		"psk_file":    "hosts with different preshared keys do not hear each other",
		"key_file":    "peers accept packets only from the old key until they have read of the new one",
	}
}

func decode(raw json.RawMessage) (options, error) {
	o := defaults()
	errs := backend.DecodeOptions(Name, raw, map[string]backend.OptionTarget{
		"listen_port":          {Value: &o.Port, Is: "a whole number"},
		"rotation_port":        {Value: &o.Spare, Is: "a whole number"},
		"persistent_keepalive": {Value: &o.Keepalive, Is: "a whole number of seconds"},
		"rotate_keys":          {Value: &o.Rotate, Is: "a duration such as \"720h\""},
		backend.OptionMTU:      backend.MTUTarget(&o.MTU),
		"key_file":             {Value: &o.KeyFile, Is: "a path"},
		"psk_file":             {Value: &o.PSKFile, Is: "a path"},
	})
	// An option of the wrong type has kept its default, which is valid.
	return o, errors.Join(append(errs, o.check()...)...)
}

// spare returns the port that the device with the next keys listens on.
func (o options) spare() int {
	if o.Spare != 0 {
		return o.Spare
	}
	if o.Port == 1<<16-1 {
		return o.Port - 1
	}
	return o.Port + 1
}

// rotateEvery returns how often the network is to get new keys, 0 for never.
func rotateEvery(raw json.RawMessage) time.Duration {
	o, err := decode(raw)
	if err != nil || o.Rotate == "" {
		return 0
	}
	every, _ := time.ParseDuration(o.Rotate) // decode has checked it
	return every
}

// rotate returns the options with which the backend runs after an odd number of rotations: the two ports are swapped.
// Hosts create new keys because the other device has none.
func rotate(raw json.RawMessage) (json.RawMessage, error) {
	o, err := decode(raw)
	if err != nil {
		return nil, err
	}
	if filepath.IsAbs(o.KeyFile) {
		return nil, fmt.Errorf("option key_file names %s on each host, and leno replaces only keys that it has made",
			o.KeyFile)
	}
	o.Port, o.Spare = o.spare(), o.Port
	return json.Marshal(o)
}

func (o options) check() (errs []error) {
	wrong := func(option, format string, args ...any) {
		errs = append(errs, &backend.OptionError{Option: option, Reason: fmt.Sprintf(format, args...)})
	}
	if o.Port < 1 || o.Port > 1<<16-1 {
		wrong("listen_port", "must be 1 to %d, is %d", 1<<16-1, o.Port)
	}
	switch {
	case o.Spare < 0 || o.Spare > 1<<16-1:
		wrong("rotation_port", "must be 0 to %d, is %d", 1<<16-1, o.Spare)
	case o.Spare != 0 && o.Spare == o.Port:
		wrong("rotation_port", "must differ from listen_port")
	}
	if o.Keepalive < 0 || o.Keepalive > 1<<16-1 {
		wrong("persistent_keepalive", "must be 0 to %d seconds, is %d", 1<<16-1, o.Keepalive)
	}
	if every, err := time.ParseDuration(o.Rotate); o.Rotate != "" && (err != nil || every < leastRotation) {
		wrong("rotate_keys", "must be a duration of at least %s, is %q", leastRotation, o.Rotate)
	} else if o.Rotate != "" && filepath.IsAbs(o.KeyFile) {
		wrong("rotate_keys", "leno replaces only keys that it has made, and key_file is %s", o.KeyFile)
	}
	errs = append(errs, backend.CheckMTU(o.MTU))
	if o.KeyFile == "" {
		wrong("key_file", "must not be empty")
	} else if !filepath.IsAbs(o.KeyFile) && !filepath.IsLocal(o.KeyFile) {
		wrong("key_file", "must be an absolute path or one below the state directory, is %q", o.KeyFile)
	}
	if o.PSKFile != "" && !filepath.IsAbs(o.PSKFile) {
		wrong("psk_file", "must be an absolute path, is %q", o.PSKFile)
	}
	return errs
}

// attributes holds what a host publishes for its peers. Members that a later version adds are ignored.
type attributes struct {
	PublicKey  string `json:"public_key"`            // base64, as `wg pubkey` prints it
	Port       int    `json:"listen_port"`           // UDP
	PublicPort int    `json:"public_port,omitempty"` // UDP, of the public addresses; 0: the same
	// the host's own addresses behind NAT, where it receives at Port
	LocalIPs []netip.Addr `json:"local_ips,omitempty"`
}

// published decodes a peer's attributes, which another host wrote. reason says why they cannot be used. PublicPort is
// set in the result.
func published(raw json.RawMessage) (key wgtypes.Key, a attributes, reason string) {
	if err := json.Unmarshal(raw, &a); err != nil {
		return key, a, "attributes are not valid: " + err.Error()
	}
	key, err := parseKey(a.PublicKey)
	switch {
	case a.PublicKey == "":
		return key, a, "attributes lack public_key"
	case err != nil:
		return key, a, fmt.Sprintf("public_key %.64q: %v", a.PublicKey, err)
	case a.Port < 1 || a.Port > 1<<16-1:
		return key, a, fmt.Sprintf("listen_port is %d, and must be 1 to %d", a.Port, 1<<16-1)
	case a.PublicPort < 0 || a.PublicPort > 1<<16-1:
		return key, a, fmt.Sprintf("public_port is %d, and must be 1 to %d", a.PublicPort, 1<<16-1)
	case len(a.LocalIPs) > maxLocal:
		return key, a, fmt.Sprintf("%d local_ips, at most %d", len(a.LocalIPs), maxLocal)
	}
	for i, addr := range a.LocalIPs {
		if a.LocalIPs[i] = addr.Unmap(); !addr.IsValid() || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() ||
			addr.Zone() != "" {
			return key, a, fmt.Sprintf("local_ips: %s is not an address of a host", addr)
		}
	}
	a.PublicPort = cmp.Or(a.PublicPort, a.Port)
	return key, a, ""
}

// maxLocal is the number of local addresses that a peer may publish: one for each family, and some for later versions.
const maxLocal = 8

// parseKey parses a key in base64. A key of zeros is an error: WireGuard treats it as no key.
func parseKey(text string) (wgtypes.Key, error) {
	key, err := wgtypes.ParseKey(strings.TrimSpace(text))
	switch {
	case err != nil:
		return wgtypes.Key{}, errors.New("is not 32 bytes in base64")
	case key == wgtypes.Key{}:
		return wgtypes.Key{}, errors.New("is all zeros")
	}
	return key, nil
}
