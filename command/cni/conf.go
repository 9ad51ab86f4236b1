package cni

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
)

// Versions returns the supported versions of the specification, the current one last.
func Versions() []string { return []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

// Defaults of a network configuration.
const (
	defaultWait = 10 * time.Second
	maxWait     = 10 * time.Minute
)

// networkConf is a network configuration of type leno-cni. It does not depend on the subnet, so the file
// stays the same when the subnet changes.
type networkConf struct {
	CNIVersion string
	Name       string // of the configuration
	Network    string // of leno; "" for the only one on this host
	SubnetFile string // read instead of asking the agent; "" for none
	Address    string // of the agent; "" for the default
	Wait       time.Duration
	DataDir    string

	Delegate map[string]json.RawMessage // settings of the plugin that makes the interface
	IPAM     map[string]json.RawMessage // further settings of host-local

	// Passed on unchanged, nil for none.
	Args, DNS, RuntimeConfig, PrevResult json.RawMessage

	// Valid lists the attachments that GC must leave alone.
	Valid []types.GCAttachment
}

// configKeys returns the keys that a configuration may have.
func configKeys() []string {
	return []string{"address", "args", "capabilities", "cniVersion", "dataDir", "delegate", "dns", "ipam", "name",
		"network", "prevResult", "runtimeConfig", "subnetFile", "type", "wait"}
}

// parseConf reads a configuration. Errors have the specification's codes: 6 for undecodable input, 2
// for an unknown key, 7 for invalid values.
func parseConf(data []byte) (networkConf, error) {
	c := networkConf{Wait: defaultWait, DataDir: config.CNIDir}
	all, err := parseObject(data)
	if err != nil {
		return networkConf{}, err
	}
	if err := checkKeys(all); err != nil {
		return networkConf{}, err
	}
	var wait, kind string
	fields := map[string]any{
		"cniVersion":                &c.CNIVersion,
		"name":                      &c.Name,
		"type":                      &kind,
		"network":                   &c.Network,
		"subnetFile":                &c.SubnetFile,
		"address":                   &c.Address,
		"wait":                      &wait,
		"dataDir":                   &c.DataDir,
		"delegate":                  &c.Delegate,
		"ipam":                      &c.IPAM,
		"args":                      &c.Args,
		"dns":                       &c.DNS,
		"runtimeConfig":             &c.RuntimeConfig,
		"prevResult":                &c.PrevResult,
		"cni.dev/valid-attachments": &c.Valid,
		"capabilities":              &map[string]bool{},
	}
	for _, key := range sortedKeys(all) {
		into, known := fields[key]
		if !known { // checkKeys accepts it, and it has no effect here
			continue
		}
		if err := json.Unmarshal(all[key], into); err != nil {
			return networkConf{}, errorf(types.ErrDecodingFailure, "%s: %s has the wrong type: %s", key, shorten(all[key]), err)
		}
	}
	if c.Wait, err = parseWait(wait); err != nil {
		return networkConf{}, err
	}
	return c, c.check()
}

// checkKeys returns an error that names all keys that are not for the top of a configuration, with their values, and
// where they belong.
func checkKeys(all map[string]json.RawMessage) error {
	var delegated, unknown, problems []string
	for _, key := range sortedKeys(all) {
		switch pair := key + ": " + shorten(all[key]); {
		case slices.Contains(configKeys(), key), isComment(key),
			strings.HasPrefix(key, "cni.dev/"): // set by the runtime, which may add more of them
		case slices.Contains(bridgeKeys(), key):
			delegated = append(delegated, pair)
		default:
			unknown = append(unknown, pair+" is not supported here")
		}
	}
	if len(delegated) > 0 {
		problems = append(problems, strings.Join(delegated, ", ")+
			": put them into `delegate`, where the plugin bridge has its settings")
		var ipam map[string]json.RawMessage
		if json.Unmarshal(all["ipam"], &ipam) == nil {
			if err := checkIPAM(ipam, nil); err != nil {
				problems = append(problems, err.Error())
			}
		}
	}
	if len(unknown) > 0 {
		problems = append(problems, strings.Join(unknown, ", ")+"; known are "+strings.Join(configKeys(), ", "))
	}
	if len(problems) == 0 {
		return nil
	}
	return errorf(types.ErrUnsupportedField, "%s", strings.Join(problems, "; "))
}

// isComment reports whether a key only explains the configuration to people.
func isComment(key string) bool {
	return strings.HasPrefix(key, "_") || strings.EqualFold(key, "documentation")
}

// parseForDel reads what DEL needs from a configuration. Errors in the rest must not prevent a
// container from being removed.
func parseForDel(data []byte) (networkConf, error) {
	c, err := parseConf(data)
	if err == nil {
		return c, nil
	}
	some := networkConf{DataDir: config.CNIDir}
	var min struct {
		Name    string `json:"name"`
		DataDir string `json:"dataDir"`
	}
	if json.Unmarshal(data, &min) != nil || min.Name == "" {
		return networkConf{}, err
	}
	some.Name = min.Name
	if filepath.IsAbs(min.DataDir) { // ADD accepts no other
		some.DataDir = min.DataDir
	}
	return some, nil
}

func parseWait(text string) (time.Duration, error) {
	if text == "" {
		return defaultWait, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxWait {
		return 0, errorf(types.ErrInvalidNetworkConfig, `wait: %q is not a time such as "10s", %s at most`, text, maxWait)
	}
	return d, nil
}

// check returns an error for values that are invalid, alone or together.
func (c networkConf) check() error {
	invalid := func(format string, args ...any) error {
		return errorf(types.ErrInvalidNetworkConfig, format, args...)
	}
	switch {
	case !isName(c.Name):
		return invalid("name: %q is not the name of a configuration", c.Name)
	case c.Network != "" && !isName(c.Network):
		return invalid("network: %q is not the name of a network", c.Network)
	case c.SubnetFile != "" && c.Address != "":
		return invalid("subnetFile and address cannot be used together: only without subnetFile, the agent is asked")
	case c.SubnetFile != "" && !filepath.IsAbs(c.SubnetFile):
		return invalid("subnetFile: %q is not an absolute path", c.SubnetFile)
	case c.SubnetFile != "" && !isName(c.networkOfFile()):
		return invalid("subnetFile: %q does not contain a network's name: set network", c.SubnetFile)
	case !filepath.IsAbs(c.DataDir):
		return invalid("dataDir: %q is not an absolute path", c.DataDir)
	}
	if c.Address != "" {
		if _, err := api.New(api.Config{Address: c.Address}); err != nil {
			return invalid("%s", err)
		}
	}
	if err := checkDelegate(c.Delegate); err != nil {
		return err
	}
	return checkIPAM(c.IPAM, c.RuntimeConfig)
}

// networkOfFile returns the name of the network of SubnetFile, "" when neither names one.
func (c networkConf) networkOfFile() string {
	if c.SubnetFile == "" { // filepath.Base would return "."
		return c.Network
	}
	return cmp.Or(c.Network, strings.TrimSuffix(filepath.Base(c.SubnetFile), ".env"))
}

// isName reports whether the text can be a name in a path.
func isName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
