package flannel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Nodes maps addresses to names of hosts. An address may have several names; that is an error only
// where exactly one is needed.
type Nodes map[netip.Addr][]string

func (n Nodes) add(a netip.Addr, name string) {
	if a = a.Unmap(); !slices.Contains(n[a], name) {
		n[a] = append(n[a], name)
	}
}

// ReadNodes reads which host has which address: the table that `consul catalog nodes` prints, the
// JSON of Consul's /v1/catalog/nodes, or lines of an address and a name as in /etc/hosts. The
// error names unusable lines.
func ReadNodes(file string, data []byte) (Nodes, error) {
	text := bytes.TrimSpace(data)
	if len(text) > 0 && text[0] == '[' {
		return readCatalog(file, text)
	}
	out := Nodes{}
	var bad []string
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "Node" && slices.Contains(fields, "Address") {
			continue
		}
		name, at := fields[0], slices.IndexFunc(fields, isAddr)
		if at == 0 && len(fields) > 1 {
			name = fields[1]
		}
		if at < 0 || len(fields) < 2 {
			bad = append(bad, fmt.Sprintf("%s:%d: %q is no address and name, such as 192.0.2.11 host-a", file, number,
				strings.TrimSpace(line)))
			continue
		}
		out.add(netip.MustParseAddr(fields[at]), name)
	}
	if more := len(bad) - maxBad; more > 0 {
		bad = append(bad[:maxBad], fmt.Sprintf("%s: and %d more lines", file, more))
	}
	if len(bad) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(bad, "\n"))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: names no host", file)
	}
	return out, nil
}

// maxBad is how many unusable lines an error names: in a file of another kind, all lines are
// unusable.
const maxBad = 5

func isAddr(word string) bool {
	_, err := netip.ParseAddr(word)
	return err == nil
}

// readCatalog reads Consul's list; all addresses of a node count.
func readCatalog(file string, text []byte) (Nodes, error) {
	var list []struct {
		Node, Address   string
		TaggedAddresses map[string]string
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%s: not a list of nodes as /v1/catalog/nodes has it: %w", file, err)
	}
	out := Nodes{}
	for _, n := range list {
		addrs := []string{n.Address}
		for _, a := range n.TaggedAddresses {
			addrs = append(addrs, a)
		}
		for _, text := range addrs {
			if a, err := netip.ParseAddr(text); err == nil && n.Node != "" {
				out.add(a, n.Node)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: names no host", file)
	}
	return out, nil
}

// Name applies -node=192.0.2.11=host-a, which takes precedence over other names of the address.
func (n Nodes) Name(text string) error {
	addr, name, _ := strings.Cut(text, "=")
	a, err := netip.ParseAddr(addr)
	if err != nil || name == "" {
		return fmt.Errorf("%q is not ADDRESS=NAME, such as 192.0.2.11=host-a", text)
	}
	n[a.Unmap()] = []string{name}
	return nil
}
