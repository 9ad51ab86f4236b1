package dockeropts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// DaemonJSON is where dockerd looks for its configuration.
const DaemonJSON = "/etc/docker/daemon.json"

// Config is the content of a daemon.json.
type Config map[string]any

// byteOrderMark begins a text of some editors. dockerd ignores it.
const byteOrderMark = "\ufeff"

// ParseConfig parses a daemon.json to be replaced. An empty one has no settings.
func ParseConfig(text []byte) (Config, error) {
	all := Config{}
	if len(bytes.TrimSpace(text)) == 0 {
		return all, nil
	}
	if bytes.HasPrefix(text, []byte(byteOrderMark)) {
		return nil, errors.New("begins with a byte order mark: save it without one")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	err := dec.Decode(&all)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nil, fmt.Errorf("is not a JSON object, but of type %s", e.Value)
	}
	if err != nil {
		return nil, fmt.Errorf("is not a JSON object: %s%w; comments and trailing commas are not allowed",
			line(text, err), err)
	}
	if all == nil {
		return nil, errors.New("is not a JSON object, but null")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more after its JSON object")
	}
	return all, nil
}

// ReadConfig parses a daemon.json that stays as it is.
func ReadConfig(text []byte) (Config, error) {
	return ParseConfig(bytes.TrimPrefix(text, []byte(byteOrderMark)))
}

// line returns the line of a syntax error, as "line 3: ", or "" if it is not known.
func line(text []byte, err error) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) || syntax.Offset > int64(len(text)) {
		return ""
	}
	return fmt.Sprintf("line %d: ", 1+bytes.Count(text[:syntax.Offset], []byte("\n")))
}

// Firewall returns the kind of rules that the configuration asks for, "" for none.
func (c Config) Firewall() string { return c.text("firewall-backend") }

// text returns a text of the configuration, "" if there is none.
func (c Config) text(key string) string {
	text, _ := c[key].(string)
	return text
}

// Check returns an error that names all settings with which dockerd would not start, or would not use the network.
func (c Config) Check(n Network) error {
	var errs []error
	if bridge := c.text("bridge"); bridge != "" {
		errs = append(errs, fmt.Errorf("bridge is %q, which excludes bip, and dockerd makes no docker0: remove bridge, or "+
			"leave docker0 alone and make a Docker network (-create)", bridge))
	}
	errs = append(errs, c.checkSubnet(n.gateway(false), "fixed-cidr", "default-gateway"))
	errs = append(errs, c.checkSubnet(n.gateway(true), "fixed-cidr-v6", "default-gateway-v6"))
	for _, pool := range c.addressPools() {
		if i := slices.IndexFunc(n.Pools, pool.Overlaps); i >= 0 {
			errs = append(errs, fmt.Errorf("default-address-pools has %s, which overlaps %s of network %s: "+
				"Docker would give other networks its addresses; take another range", pool, n.Pools[i], n.Name))
		}
	}
	return join(errs)
}

// checkSubnet returns an error if the range for containers or their gateway is not in the subnet of leno's gateway.
func (c Config) checkSubnet(gateway netip.Prefix, rangeKey, gatewayKey string) error {
	if !gateway.IsValid() {
		return nil
	}
	var errs []error
	outside := func(key string, value fmt.Stringer) {
		errs = append(errs, fmt.Errorf("%s is %s, which is not in this host's subnet %s: remove it",
			key, value, gateway.Masked()))
	}
	if p, err := netip.ParsePrefix(c.text(rangeKey)); err == nil && !contains(gateway, p) {
		outside(rangeKey, p)
	}
	if a, err := netip.ParseAddr(c.text(gatewayKey)); err == nil && !gateway.Contains(a) {
		outside(gatewayKey, a)
	}
	return join(errs)
}

// join returns one error on one line, nil if all are nil.
func join(errs []error) error {
	var all error
	for _, err := range errs {
		switch {
		case all == nil:
			all = err
		case err != nil:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

// addressPools returns the ranges from which Docker takes the subnets of further networks.
func (c Config) addressPools() (out []netip.Prefix) {
	list, _ := c["default-address-pools"].([]any)
	for _, entry := range list {
		pool, _ := entry.(map[string]any)
		if p, err := netip.ParsePrefix(Config(pool).text("base")); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// contains reports whether a prefix is part of a subnet.
func contains(subnet, p netip.Prefix) bool {
	return subnet.Contains(p.Addr()) && subnet.Bits() <= p.Bits()
}

// Merge returns the configuration with the options for an engine and a network set. Options of leno that are not set
// now are removed: addresses that are in the network's pools, and allow-direct-routing if the engine is known not to
// have it. Everything else stays.
func (d Daemon) Merge(c Config, e Engine, n Network) Config {
	all := maps.Clone(c)
	if all == nil {
		all = Config{}
	}
	for _, key := range []string{"bip", "bip6", "fixed-cidr-v6"} {
		p, err := netip.ParsePrefix(c.text(key))
		if err != nil || !slices.ContainsFunc(n.Pools, func(pool netip.Prefix) bool { return contains(pool, p) }) {
			continue
		}
		if delete(all, key); key != "bip" {
			delete(all, "ipv6")
		}
	}
	if e.Version.isKnown() {
		delete(all, "allow-direct-routing")
	}
	for _, option := range d.Options {
		all[option.Name] = option.Value
	}
	return all
}

// Beside returns the daemon for a dockerd that has the configuration, too. It does not start if an option is in both,
// so those with the same value are left out. The error names those with another value, and what Check does not allow.
func (d Daemon) Beside(c Config, n Network) (Daemon, error) {
	var options []Option
	var others []string
	for _, option := range d.Options {
		value, found := c[option.Name]
		switch {
		case !found:
			options = append(options, option)
		case fmt.Sprint(value) != fmt.Sprint(option.Value):
			others = append(others, fmt.Sprintf("%s is %v", option.Name, value))
		}
	}
	d.Options = options
	var err error
	if len(others) > 0 {
		err = fmt.Errorf("%s, and dockerd does not start with a flag for a setting of the file: remove it there, or write "+
			"the options into the file (-format=json)", strings.Join(others, ", "))
	}
	return d, join([]error{err, c.Check(n)})
}
