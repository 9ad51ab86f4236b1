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
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/lenonet/leno/agent/files"
)

// networkDraft is a network while it is read.
type networkDraft struct {
	Network
	block   *hcl.Block
	backend *hcl.Block // nil if there is none
}

func (n *networkDraft) path() string { return "network." + n.Name }

// named returns the place of the network's name.
func (n *networkDraft) named() hcl.Range { return n.block.LabelRanges[0] }

// A networkLoader reads the blocks of networks for a loader.
type networkLoader struct {
	*loader
	drafts []*networkDraft
}

func (l *networkLoader) read(b *hcl.Block) {
	name := b.Labels[0]
	if i := slices.IndexFunc(l.drafts, func(n *networkDraft) bool { return n.Name == name }); i >= 0 {
		l.report(b.DefRange, "Duplicate network", "The network %q is already defined at %s. "+
			"A network is defined in one place only", name, place(l.drafts[i].named()))
		return
	}
	n := &networkDraft{block: b, Network: WatchedNetwork(name)}
	l.drafts = append(l.drafts, n)
	if err := l.o.checkNetworkName(name); err != nil {
		l.report(n.named(), "Invalid network name", "%s", err)
	}
	pools := slices.Concat(new(Pool).settings(name, ipv4), new(Pool).settings(name, ipv6))
	blocks, _ := l.options(b.Body, n.path(), append(n.settings(name), pools...))
	before := len(l.diags)
	for _, f := range []family{ipv4, ipv6} {
		for _, b := range blocks.ByType()[f.block] {
			n.Pools = append(n.Pools, l.readPool(name, b, f))
		}
	}
	if l.o.CheckPlan != nil && len(n.Pools) > 0 && len(l.diags) == before {
		for _, err := range flatten(l.o.CheckPlan(n.Pools)) {
			l.report(b.DefRange, "Invalid address plan", "%s", err)
		}
	}
	for _, b := range blocks.ByType()["backend"] {
		n.backend = b
	}
	l.readBackend(n)
	l.checkEncryption(n)
}

// checkEncryption checks that a backend that must encrypt is able to.
func (l *networkLoader) checkEncryption(n *networkDraft) {
	a := l.by[n.path()+".encryption"]
	switch {
	case n.Encryption == "":
	case len(n.Pools) == 0:
		l.at(a, "The network %q has neither an ipv4 nor an ipv6 block. Whether encryption is required is a part of its "+
			"definition, which %s has", n.Name, l.cfg.StoreName())
	case n.Backend != nil && l.o.CheckEncrypts != nil:
		if err := l.o.CheckEncrypts(n.Backend.Type); err != nil {
			l.at(a, "%s", err)
		}
	}
}

// checkNetworkName checks a network's name. Without the registry's rule, the name must at least be valid as a file
// name, since one is made from it.
func (o Options) checkNetworkName(name string) error {
	if o.CheckNetworkName != nil {
		return o.CheckNetworkName(name)
	}
	if name == "" || name != filepath.Base(name) || name == "." || name == ".." {
		return fmt.Errorf("%q cannot name a network", name)
	}
	return nil
}

func (l *networkLoader) readPool(network string, b *hcl.Block, f family) (p Pool) {
	before := len(l.diags)
	l.options(b.Body, poolPath(network, f), p.settings(network, f))
	if !p.Prefix.IsValid() && len(l.diags) == before {
		l.report(b.DefRange, "Missing prefix", "The address pool needs a prefix, such as prefix = %s", f.prefix)
	}
	if l.o.CheckPool != nil && len(l.diags) == before {
		l.checkPool(p, poolPath(network, f))
	}
	return p
}

func poolPath(network string, f family) string { return "network." + network + "." + f.block }

// checkPool applies the registry's limits. They concern the pool as a whole. To report one line, checkPool adds the
// attributes one after the other and blames the first one that makes the pool invalid.
func (l *networkLoader) checkPool(p Pool, path string) {
	subnetLen, first, last := l.by[path+".subnet_len"], l.by[path+".min"], l.by[path+".max"]
	blame := func(a *hcl.Attribute, pool Pool) bool {
		if a == nil {
			return true
		}
		err := l.o.CheckPool(pool)
		l.refuse(a, err)
		return err == nil
	}
	part := Pool{Prefix: p.Prefix}
	if subnetLen != nil {
		part.SubnetLen = p.Prefix.Bits() + 2 // every valid prefix has room for this one, unlike the default
	}
	if !blame(l.by[path+".prefix"], part) {
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
		blame(last, p)
	}
}

// readBackend converts the block to a type and a JSON object. A network with pools and no backend gets the default
// one.
func (l *networkLoader) readBackend(n *networkDraft) {
	b := n.backend
	switch {
	case b == nil && len(n.Pools) == 0:
		return // joined as the store has it
	case b == nil:
		var err error
		if n.Backend, err = l.o.defaultBackend(); err != nil {
			l.report(n.block.DefRange, "Invalid default backend", "%s", err)
		}
		return
	}
	kind := b.Labels[0]
	attrs, diags := b.Body.JustAttributes()
	l.diags = append(l.diags, diags...)
	for name, a := range attrs {
		l.by[n.path()+".backend."+name] = a
	}
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
			var prefixes []netip.Prefix
			for _, p := range n.Pools {
				prefixes = append(prefixes, p.Prefix)
			}
			err = l.o.CheckMTU(effective, prefixes)
		}
		if err != nil {
			l.reportOptions(b, attrs, err)
			return
		}
		options = effective
	}
	n.Backend = &Backend{Type: kind, Options: options}
}

// defaultBackend returns the backend of a network whose block names none, with its effective options.
func (o Options) defaultBackend() (*Backend, error) {
	b := &Backend{Type: DefaultBackend, Options: json.RawMessage(`{}`)}
	normalize := o.Backends[b.Type]
	if normalize == nil {
		return b, nil
	}
	var err error
	b.Options, err = normalize(b.Options)
	return b, err
}

// object returns the attributes as one JSON object. It leaves out null attributes, and those without a value, which
// it reports.
func (l *networkLoader) object(attrs hcl.Attributes) json.RawMessage {
	values := map[string]cty.Value{}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		v, diags := attrs[name].Expr.Value(nil)
		l.diags = append(l.diags, diags...)
		if !diags.HasErrors() && !v.IsNull() {
			values[name] = v
		}
	}
	all := cty.ObjectVal(values)
	out, err := ctyjson.Marshal(all, all.Type())
	if err != nil { // never: expressions without variables have known values
		return nil
	}
	return out
}

// reportOptions reports each of the backend's errors at the line of the option it names, else at the block.
func (l *networkLoader) reportOptions(b *hcl.Block, attrs hcl.Attributes, err error) {
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

// addToConfig checks the networks against each other and adds them to the configuration. A network of the file
// replaces a built-in one of the same name.
func (l *networkLoader) addToConfig() {
	for i, n := range l.drafts {
		for _, other := range l.drafts[:i] {
			l.checkPair(other, n)
		}
		l.checkBackends(n, l.drafts[:i])
		if only := l.cfg.Kubernetes.Network; l.cfg.Store() == StoreKubernetes && n.Name != only {
			l.report(n.named(), "Another network", "Kubernetes has only the network %q, which kubernetes.network names", only)
		}
		if n.backend != nil && len(n.Pools) == 0 {
			l.report(n.backend.DefRange, "Backend without addresses", "The network %q has a backend but neither an ipv4 nor an "+
				"ipv6 block. Give both to define the network, or none of them to join it as %s has it",
				n.Name, l.cfg.StoreName())
		}
		l.cfg.Networks = slices.DeleteFunc(l.cfg.Networks, func(o Network) bool { return o.Name == n.Name })
		l.cfg.Networks = append(l.cfg.Networks, n.Network)
		l.cfg.NetworkFiles[n.Name] = n.block.DefRange.Filename
	}
}

// checkBackends reports a network whose backend needs what that of another one has.
func (l *networkLoader) checkBackends(n *networkDraft, others []*networkDraft) {
	if l.o.Collision == nil || n.Backend == nil {
		return
	}
	for _, other := range others {
		if other.Backend == nil {
			continue
		}
		name := fmt.Sprintf("%q at %s", other.Name, place(other.backendPlace()))
		if taken := l.o.Collision(*n.Backend, *other.Backend, name); taken != "" {
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
func (l *networkLoader) checkPair(first, second *networkDraft) {
	for _, p := range second.Pools {
		for _, q := range first.Pools {
			if p.Prefix.IsValid() && q.Prefix.IsValid() && p.Prefix.Overlaps(q.Prefix) {
				l.at(l.prefix(second, p), "%s overlaps %s of network %q at %s", p.Prefix, q.Prefix, first.Name,
					place(l.prefix(first, q).Range))
			}
		}
	}
	if files.IsSame(first.SubnetFile, second.SubnetFile) {
		where := second.block.DefRange
		if a := l.by[second.path()+".subnet_file"]; a != nil {
			where = a.Expr.Range()
		}
		l.report(where, "Subnet file used twice", "%s is already the subnet file of network %q at %s",
			second.SubnetFile, first.Name, place(first.named()))
	}
}

// prefix returns where the prefix of a pool is set.
func (l *networkLoader) prefix(n *networkDraft, p Pool) *hcl.Attribute {
	f := ipv4
	if !f.has(p.Prefix.Addr()) {
		f = ipv6
	}
	return l.by[poolPath(n.Name, f)+".prefix"]
}

// place returns the start of a range, for use inside a sentence.
func place(r hcl.Range) string { return fmt.Sprintf("%s:%d", r.Filename, r.Start.Line) }
