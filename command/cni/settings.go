package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	bridgePlugin = "bridge"
	ptpPlugin    = "ptp"
	ipamPlugin   = "host-local"
)

// bridgeKeys returns the settings of the bridge plugin that are allowed in `delegate`.
func bridgeKeys() []string {
	return []string{"bridge", "enabledad", "forceAddress", "hairpinMode", "ipMasq", "ipMasqBackend", "isDefaultGateway",
		"isGateway", "macspoofchk", "mtu", "portIsolation", "preserveDefaultVlan", "promiscMode", "type", "vlan",
		"vlanTrunk"}
}

// reservedKeys returns leno's own keys, which `delegate` must not contain.
func reservedKeys() []string {
	return []string{"args", "cniVersion", "dns", "ipam", "name", "prevResult", "runtimeConfig"}
}

// delegateSettings are the settings of `delegate` that leno reads.
type delegateSettings struct {
	Type             string `json:"type"`
	Bridge           string `json:"bridge"`
	HairpinMode      bool   `json:"hairpinMode"`
	PromiscMode      bool   `json:"promiscMode"`
	IsGateway        *bool  `json:"isGateway"`
	IsDefaultGateway *bool  `json:"isDefaultGateway"`
	IPMasq           bool   `json:"ipMasq"`
	MTU              int    `json:"mtu"`
	VLAN             int    `json:"vlan"`
}

// parseDelegate parses `delegate`.
func parseDelegate(settings map[string]json.RawMessage) (delegateSettings, error) {
	d := delegateSettings{Type: bridgePlugin}
	text, err := json.Marshal(settings)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		return d, errorf(types.ErrDecodingFailure, "delegate: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return d, nil
}

// checkDelegate returns an error for settings of `delegate` that are not allowed.
func checkDelegate(settings map[string]json.RawMessage) error {
	for _, key := range sortedKeys(settings) {
		if slices.Contains(reservedKeys(), key) {
			return errorf(types.ErrInvalidNetworkConfig,
				"delegate.%s: leno-cni sets it; leave it out, or set it at the top level", key)
		}
	}
	d, err := parseDelegate(settings)
	if err != nil {
		return err
	}
	invalid := func(format string, args ...any) error {
		return errorf(types.ErrInvalidNetworkConfig, format, args...)
	}
	switch {
	case d.Type == "" || strings.ContainsAny(d.Type, "/\x00") || d.Type == "leno" || d.Type == "leno-cni":
		return invalid("delegate.type: %q is not the name of a plugin that makes interfaces", d.Type)
	case d.MTU < 0:
		return invalid("delegate.mtu: %d is not an MTU", d.MTU)
	case d.Type != bridgePlugin:
		return nil // the plugin's settings are not known here
	case d.HairpinMode && d.PromiscMode:
		return invalid("delegate.hairpinMode and delegate.promiscMode cannot be used together")
	case d.Bridge != "" && !isDeviceName(d.Bridge):
		return invalid("delegate.bridge: %q is not the name of a device", d.Bridge)
	case d.IsDefaultGateway != nil && *d.IsDefaultGateway && d.IsGateway != nil && !*d.IsGateway:
		return invalid("delegate.isDefaultGateway is true, so delegate.isGateway cannot be false")
	}
	for _, key := range sortedKeys(settings) {
		if !slices.Contains(bridgeKeys(), key) && !isComment(key) {
			return unsupportedError("delegate."+key, settings[key], bridgeKeys())
		}
	}
	return nil
}

// isDeviceName reports whether the kernel accepts the name.
func isDeviceName(name string) bool {
	return len(name) <= 15 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\x00")
}

// checkIPAM returns an error for settings of `ipam`, and for ranges in `runtimeConfig`, that are not
// allowed: the addresses come from leno.
func checkIPAM(settings map[string]json.RawMessage, runtimeConfig json.RawMessage) error {
	var routes []*types.Route
	var text string
	for _, key := range sortedKeys(settings) {
		var err error
		switch value := settings[key]; key {
		case "type":
			if err = json.Unmarshal(value, &text); err == nil && text != ipamPlugin {
				return errorf(types.ErrInvalidNetworkConfig, "ipam.type: %q; addresses come from %s alone", text, ipamPlugin)
			}
		case "routes":
			err = json.Unmarshal(value, &routes)
		case "resolvConf":
			err = json.Unmarshal(value, &text)
		case "subnet", "ranges", "rangeStart", "rangeEnd", "gateway":
			return errorf(types.ErrInvalidNetworkConfig, "ipam.%s: subnet and gateway come from this host's lease; leave it out",
				key)
		case "dataDir":
			return errorf(types.ErrInvalidNetworkConfig, "ipam.dataDir: set dataDir at the top level instead")
		default:
			if isComment(key) {
				continue
			}
			return unsupportedError("ipam."+key, value, []string{"resolvConf", "routes", "type"})
		}
		if err != nil {
			return errorf(types.ErrDecodingFailure, "ipam.%s: %s has the wrong type: %s", key, shorten(settings[key]), err)
		}
	}
	var runtime struct {
		Ranges json.RawMessage `json:"ipRanges"`
	}
	if len(runtimeConfig) > 0 {
		if err := json.Unmarshal(runtimeConfig, &runtime); err != nil {
			return errorf(types.ErrDecodingFailure, "runtimeConfig: %s", err)
		}
	}
	if len(runtime.Ranges) > 0 {
		return errorf(types.ErrUnsupportedField,
			"runtimeConfig.ipRanges: %s is not supported here: the subnet comes from this host's lease; "+
				"leave the capability ipRanges out", shorten(runtime.Ranges))
	}
	return nil
}

// unsupportedError returns the error for an unknown key; the specification requires it to contain the
// key and the value.
func unsupportedError(key string, value json.RawMessage, known []string) error {
	return errorf(types.ErrUnsupportedField, "%s: %s is not supported here; known are %s", key, shorten(value),
		strings.Join(known, ", "))
}

// parseObject decodes one JSON object, and rejects anything after it.
func parseObject(data []byte) (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&all)
	if err == nil {
		if _, more := dec.Token(); more != io.EOF {
			err = fmt.Errorf("text follows the JSON object")
		} else if all == nil {
			err = fmt.Errorf("null is not a JSON object")
		}
	}
	if err != nil {
		return nil, errorf(types.ErrDecodingFailure, "the network configuration cannot be read: %s", err)
	}
	return all, nil
}

func sortedKeys(m map[string]json.RawMessage) []string { return slices.Sorted(maps.Keys(m)) }

// shorten returns a value shortened for an error message.
func shorten(v json.RawMessage) string {
	const most = 80
	text := string(bytes.ToValidUTF8(v, []byte("�")))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
