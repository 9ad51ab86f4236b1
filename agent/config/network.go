package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// networkDraft is a network while it is read.
type networkDraft struct {
	Network
	block   *hcl.Block
	backend *hcl.Block // nil if there is none
	pools   []*poolDraft
}

type poolDraft struct {
	Pool
	path  string // "network.blue.ipv4"
	valid bool
}

func (n *networkDraft) path() string { return "network." + n.Name }

// named returns the place of the network's name.
func (n *networkDraft) named() hcl.Range { return n.block.LabelRanges[0] }

func (l *loader) readNetwork(b *hcl.Block) {
	name := b.Labels[0]
	for _, other := range l.networks {
		if other.Name == name {
			l.report(b.DefRange, "Duplicate network", "The network %q is already defined at %s. A network is defined in one place only",
				name, place(other.named()))
			return
		}
	}
	n := &networkDraft{block: b, Network: WatchedNetwork(name)}
	l.networks = append(l.networks, n)
	if err := l.checkNetworkName(name); err != nil {
		l.report(n.named(), "Invalid network name", "%s", err)
	}
	four, six := &poolDraft{path: n.path() + ".ipv4"}, &poolDraft{path: n.path() + ".ipv6"}
	settings := slices.Concat(n.settings(name), four.settings(name, ipv4), six.settings(name, ipv6))
	blocks, _ := l.options(b.Body, n.path(), settings)
	byType := blocks.ByType()
	for _, b := range byType["ipv4"] {
		l.readPool(n, four, b, settings, ipv4)
	}
	for _, b := range byType["ipv6"] {
		l.readPool(n, six, b, settings, ipv6)
	}
	if l.o.CheckPlan != nil && len(n.pools) > 0 && !slices.ContainsFunc(n.pools, func(p *poolDraft) bool { return !p.valid }) {
		if err := l.o.CheckPlan(n.plan()); err != nil {
			for _, err := range flatten(err) {
				l.report(b.DefRange, "Invalid address plan", "%s", err)
			}
		}
	}
	for _, b := range byType["backend"] {
		n.backend = b
	}
	l.readBackend(n)
	l.checkEncryption(n)
}

// checkEncryption checks that a backend that must encrypt is able to.
func (l *loader) checkEncryption(n *networkDraft) {
	a := l.by[n.path()+".encryption"]
	switch {
	case n.Encryption == "":
	case len(n.pools) == 0:
		l.at(a, "The network %q has neither an ipv4 nor an ipv6 block. Whether encryption is required is a part of its "+
			"definition, which %s has", n.Name, l.cfg.StoreName())
	case n.Backend != nil && l.o.CheckEncrypts != nil:
		if err := l.o.CheckEncrypts(n.Backend.Type); err != nil {
			l.at(a, "%s", err)
		}
	}
}

func (n *networkDraft) prefixes() (out []netip.Prefix) {
	for _, p := range n.pools {
		out = append(out, p.Prefix)
	}
	return out
}

func (n *networkDraft) plan() []Pool {
	var out []Pool
	for _, p := range n.pools {
		out = append(out, p.Pool)
	}
	return out
}

// checkNetworkName checks a network's name. Without the registry's rule, the name must at least be valid as a file
// name, since one is made from it.
func (l *loader) checkNetworkName(name string) error {
	if l.o.CheckNetworkName != nil {
		return l.o.CheckNetworkName(name)
	}
	if name == "" || name != filepath.Base(name) || name == "." || name == ".." {
		return fmt.Errorf("%q cannot name a network", name)
	}
	return nil
}

func (l *loader) readPool(n *networkDraft, p *poolDraft, b *hcl.Block, settings []Setting, f family) {
	n.pools = append(n.pools, p)
	before := len(l.diags)
	l.options(b.Body, p.path, settings)
	if !p.Prefix.IsValid() && len(l.diags) == before {
		l.report(b.DefRange, "Missing prefix", "The address pool needs a prefix, such as prefix = %s", f.prefix)
	}
	if len(l.diags) == before {
		l.checkPool(p)
	}
	p.valid = len(l.diags) == before
}

// checkPool applies the registry's limits. They concern the pool as a whole. To report one line, checkPool adds the
// attributes one after the other and blames the first one that makes the pool invalid.
func (l *loader) checkPool(p *poolDraft) {
	if l.o.CheckPool == nil {
		return
	}
	blame := func(a *hcl.Attribute, pool Pool) bool {
		if a == nil {
			return true
		}
		err := l.o.CheckPool(pool)
		for _, e := range flatten(err) {
			if e != nil {
				l.at(a, "%s", e)
			}
		}
		return err == nil
	}
	subnetLen, first, last := l.by[p.path+".subnet_len"], l.by[p.path+".min"], l.by[p.path+".max"]
	part := Pool{Prefix: p.Prefix}
	if subnetLen != nil {
		part.SubnetLen = p.Prefix.Bits() + 2 // every valid prefix has room for this one, unlike the default
	}
	if !blame(l.by[p.path+".prefix"], part) {
		return
	}
	part.SubnetLen = p.SubnetLen
	if !blame(subnetLen, part) {
		return
	}
	withMin, withMax := part, part
	withMin.Min, withMax.Max = p.Min, p.Max
	okMin, okMax := blame(first, withMin), blame(last, withMax)
	if okMin && okMax && first != nil {
		blame(last, p.Pool)
	}
}

// readBackend converts the block to a type and a JSON object. A network with pools and no backend gets the default
// one.
func (l *loader) readBackend(n *networkDraft) {
	b := n.backend
	switch {
	case b == nil && len(n.pools) == 0:
		return // joined as the store has it
	case b == nil:
		options := json.RawMessage(`{}`)
		if normalize := l.o.Backends[DefaultBackend]; normalize != nil {
			var err error
			if options, err = normalize(options); err != nil {
				l.report(n.block.DefRange, "Invalid default backend", "%s", err)
			}
		}
		n.Backend = &Backend{Type: DefaultBackend, Options: options}
		return
	}
	kind := b.Labels[0]
	attrs, diags := b.Body.JustAttributes()
	l.diags = append(l.diags, diags...)
	options := l.object(attrs)
	if l.o.Backends != nil {
		normalize := l.o.Backends[kind]
		if normalize == nil {
			l.report(b.LabelRanges[0], "Unknown backend", "There is no backend %q. The backends are %s", kind,
				quoted(slices.Sorted(maps.Keys(l.o.Backends))))
			return
		}
		effective, err := normalize(options)
		if err == nil && l.o.CheckMTU != nil {
			err = l.o.CheckMTU(effective, n.prefixes())
		}
		if err != nil {
			l.reportOptions(b, attrs, err)
			return
		}
		options = effective
	}
	n.Backend = &Backend{Type: kind, Options: options}
}

// object returns the attributes as one JSON object. It leaves out null attributes, and those without a value, which
// it reports.
func (l *loader) object(attrs hcl.Attributes) json.RawMessage {
	members := map[string]json.RawMessage{}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		v, diags := attrs[name].Expr.Value(nil)
		l.diags = append(l.diags, diags...)
		if diags.HasErrors() || v.IsNull() {
			continue
		}
		text, err := ctyjson.Marshal(v, v.Type())
		if err != nil {
			l.at(attrs[name], "%s", err)
			continue
		}
		members[name] = text
	}
	out, err := json.Marshal(members)
	if err != nil { // never: each is JSON already
		return nil
	}
	return out
}

// reportOptions reports each of the backend's errors at the line of the option it names, else at the block.
func (l *loader) reportOptions(b *hcl.Block, attrs hcl.Attributes, err error) {
	for _, err := range flatten(err) {
		var named interface{ OptionName() string }
		if errors.As(err, &named) {
			if a := attrs[named.OptionName()]; a != nil {
				l.at(a, "%s", strings.TrimPrefix(err.Error(), a.Name+": "))
				continue
			}
		}
		l.report(b.DefRange, "Invalid backend", "Backend %q: %s", b.Labels[0], err)
	}
}

// finishNetworks checks the networks against each other and adds them to the configuration. A network of the file
// replaces a built-in one of the same name.
func (l *loader) finishNetworks() {
	for i, n := range l.networks {
		for _, other := range l.networks[:i] {
			l.checkPair(other, n)
		}
		l.checkBackends(n, l.networks[:i])
		if n.backend != nil && len(n.pools) == 0 {
			l.report(n.backend.DefRange, "Backend without addresses", "The network %q has a backend but neither an ipv4 nor an "+
				"ipv6 block. Give both to define the network, or none of them to join it as %s has it",
				n.Name, l.cfg.StoreName())
		}
		n.Pools = n.plan()
		l.cfg.Networks = slices.DeleteFunc(l.cfg.Networks, func(o Network) bool { return o.Name == n.Name })
		l.cfg.Networks = append(l.cfg.Networks, n.Network)
		l.cfg.NetworkFiles[n.Name] = n.block.DefRange.Filename
	}
}

// checkBackends reports a network whose backend needs what that of another one has.
func (l *loader) checkBackends(n *networkDraft, others []*networkDraft) {
	if l.o.Collision == nil || n.Backend == nil {
		return
	}
	for _, other := range others {
		if other.Backend == nil {
			continue
		}
		if taken := l.o.Collision(*n.Backend, *other.Backend, fmt.Sprintf("%q at %s", other.Name, place(other.backendPlace()))); taken != "" {
			l.report(n.backendPlace(), "Backends collide", "The network %q needs %s: "+
				"a host can carry only one of them. Choose another in the backend's options", n.Name, taken)
			return
		}
	}
}

// backendPlace returns the place of the network's backend block, else that of the network.
func (n *networkDraft) backendPlace() hcl.Range {
	if n.backend != nil {
		return n.backend.DefRange
	}
	return n.block.DefRange
}

// checkPair reports what two networks on one host cannot share.
func (l *loader) checkPair(first, second *networkDraft) {
	for _, p := range second.pools {
		for _, q := range first.pools {
			if p.Prefix.IsValid() && q.Prefix.IsValid() && p.Prefix.Overlaps(q.Prefix) {
				l.at(l.by[p.path+".prefix"], "%s overlaps %s of network %q at %s", p.Prefix, q.Prefix, first.Name,
					place(l.by[q.path+".prefix"].Range))
			}
		}
	}
	if SamePath(first.SubnetFile, second.SubnetFile) {
		where := second.block.DefRange
		if a := l.by[second.path()+".subnet_file"]; a != nil {
			where = a.Expr.Range()
		}
		l.report(where, "Subnet file used twice", "%s is already the subnet file of network %q at %s",
			second.SubnetFile, first.Name, place(first.named()))
	}
}

// place returns the start of a range, for use inside a sentence.
func place(r hcl.Range) string { return fmt.Sprintf("%s:%d", r.Filename, r.Start.Line) }
