package template

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"

	diff "github.com/google/go-cmp/cmp"
	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/command/dockeropts"
	"github.com/lenonet/leno/registry"
)

// hosts is the content of hosts.json.
type hosts struct {
	Network string `json:"network"`
	Hosts   []host `json:"hosts"`
}

type host struct {
	Node      string         `json:"node"`
	NodeID    string         `json:"node_id"`
	Held      bool           `json:"held"`
	Subnets   []netip.Prefix `json:"subnets"`
	PublicIPs []netip.Addr   `json:"public_ips"`
	MTU       int            `json:"mtu"`
	Backend   string         `json:"backend"`
}

// wanted returns what agents make of the current records in Consul.
func (w *world) wanted(network string) (out hosts, n registry.Network, err error) {
	kv, read := w.Consul.Client().KV(), &consul.QueryOptions{Token: operatorToken, RequireConsistent: true}
	definition, _, err := kv.Get("leno/networks/"+network, read)
	if err != nil || definition == nil {
		return out, n, fmt.Errorf("network %s: %v, %v", network, definition, err)
	}
	if n, err = registry.ParseNetwork(network, definition.Value); err != nil {
		return out, n, err
	}
	prefix := "leno/leases/" + network + "/"
	pairs, _, err := kv.List(prefix, read)
	if err != nil {
		return out, n, err
	}
	counts := map[string]*consul.KVPair{} // by node id, the record in use
	leases := map[string]registry.Lease{}
	for _, p := range pairs {
		l, err := registry.ParseLease(n, strings.TrimPrefix(p.Key, prefix), p.Value)
		if err != nil || spelledOddly(p.Value) {
			continue
		}
		before := counts[l.NodeID]
		if before == nil || p.Session != "" && before.Session == "" || (p.Session == "") == (before.Session == "") && p.ModifyIndex > before.ModifyIndex {
			counts[l.NodeID], leases[p.Key] = p, l
		}
	}
	out = hosts{Network: network, Hosts: []host{}}
	for _, p := range pairs { // in the order of their keys
		if l := leases[p.Key]; l.NodeID != "" && counts[l.NodeID] == p {
			out.Hosts = append(out.Hosts, host{l.Node, l.NodeID, p.Session != "", l.Subnets, l.PublicIPs, l.MTU, l.Backend.Type})
		}
	}
	return out, n, nil
}

// spelledOddly reports whether a record has an address in which :: stands for a single group.
// Agents accept such addresses and never write them; nginx refuses them.
func spelledOddly(value []byte) bool {
	for _, word := range regexp.MustCompile(`[0-9a-f:]*::[0-9a-f:]*`).FindAllString(string(value), -1) {
		if a, err := netip.ParseAddr(word); err == nil && !strings.Contains(a.String(), "::") {
			return true
		}
	}
	return false
}

// current returns an error if the files that are the same on every host differ from the records in
// Consul.
func (r *rendering) current() error {
	want, _, err := r.w.wanted(r.network)
	if err != nil {
		return err
	}
	var got hosts
	decoder := json.NewDecoder(strings.NewReader(r.file(hostsFile)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		return fmt.Errorf("%s: %w", hostsFile, err)
	}
	if d := diff.Diff(want, got, diff.Comparer(func(a, b netip.Addr) bool { return a == b }), diff.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		return fmt.Errorf("%s (-Consul +file):\n%s", hostsFile, d)
	}
	allowed, err := allowList(r.file(nginxFile))
	if err != nil {
		return err
	}
	var all []string
	for _, h := range want.Hosts {
		for _, p := range h.Subnets {
			all = append(all, p.String())
		}
		for _, a := range h.PublicIPs {
			all = append(all, a.String())
		}
	}
	if d := diff.Diff(all, allowed); d != "" {
		return fmt.Errorf("%s (-Consul +file):\n%s", nginxFile, d)
	}
	return nil
}

// allowList returns the addresses that a list for nginx allows. The list may contain comments,
// allow lines, and "deny all;" at the end.
func allowList(text string) (out []string, err error) {
	allow := regexp.MustCompile(`^allow ([0-9a-f.:/]+);$`)
	lines := strings.Split(text, "\n")
	if len(lines) < 3 || lines[len(lines)-1] != "" || lines[len(lines)-2] != "deny all;" {
		return nil, fmt.Errorf("%q does not end in deny all;", text)
	}
	for _, line := range lines[:len(lines)-2] {
		switch m := allow.FindStringSubmatch(line); {
		case m != nil:
			a, err := netip.ParseAddr(m[1])
			p, notPrefix := netip.ParsePrefix(m[1])
			if err != nil && notPrefix != nil {
				return nil, fmt.Errorf("line %q", line)
			}
			out = append(out, cmp.Or(strings.TrimPrefix(a.String(), "invalid IP"), p.String())) // as Go formats it
		case !strings.HasPrefix(line, "# "):
			return nil, fmt.Errorf("line %q", line)
		}
	}
	return out, nil
}

// own returns an error if the files for this host differ from what its agent wrote and from what
// `leno docker-opts` makes of that.
func (r *rendering) own() error {
	text, err := os.ReadFile(r.w.Hosts[0].SubnetFile(r.network))
	if err != nil {
		return err
	}
	var want []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "LENO_") && !strings.HasPrefix(line, "LENO_IPMASQ") {
			want = append(want, line)
		}
	}
	if d := diff.Diff(strings.Join(want, ""), r.file(subnetFile)); d != "" {
		return fmt.Errorf("%s (-agent's +file):\n%s", subnetFile, d)
	}
	return r.docker(text, r.file(dockerFile), "28.2.0")
}

// docker returns an error if a daemon.json differs from what `leno docker-opts` makes of a subnet
// file for a version of Docker.
func (r *rendering) docker(subnetFile []byte, got, version string) error {
	n, err := dockeropts.ParseSubnetFile(r.network, string(subnetFile))
	if err != nil {
		return err
	}
	v, err := dockeropts.ParseVersion(version)
	if err != nil {
		return err
	}
	want := map[string]any{}
	for _, option := range dockeropts.ForDocker0(dockeropts.Engine{Version: v}, n).Options {
		want[option.Name] = option.Value
	}
	text, err := json.Marshal(want)
	if err != nil {
		return err
	}
	var a, b any
	if err := json.Unmarshal(text, &a); err != nil {
		return err
	}
	if err := json.NewDecoder(bytes.NewReader([]byte(got))).Decode(&b); err != nil {
		return fmt.Errorf("%s for Docker %s: %w: %q", dockerFile, version, err, got)
	}
	if d := diff.Diff(a, b); d != "" {
		return fmt.Errorf("%s for Docker %s (-docker-opts +file):\n%s", dockerFile, version, d)
	}
	return nil
}
