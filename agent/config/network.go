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
)

// networkDraft is a network while it is read. It does not move in memory, so that loader.by can use the addresses of
// its values as keys.
type networkDraft struct {
	Network
	shape *networkShape
	pools []*poolDraft
}

type poolDraft struct {
	Pool
	shape *poolShape
	valid bool
}

func (l *loader) readNetwork(s *networkShape) {
	for _, other := range l.networks {
		if other.Name == s.Name {
			l.report(s.Place, "Duplicate network", "The network %q is already defined at %s. A network is defined in one place only",
				s.Name, place(other.shape.Named))
			return
		}
	}
	n := &networkDraft{shape: s}
	n.Name, n.Forward, n.SubnetFile = s.Name, true, DefaultSubnetFile(s.Name)
	l.networks = append(l.networks, n)

	if err := l.checkNetworkName(s.Name); err != nil {
		l.report(s.Named, "Invalid network name", "%s", err)
	}
	l.flag(s.IPMasq, &n.IPMasq)
	l.flag(s.Forward, &n.Forward)
	l.rulePriority(s.RulePriority, &n.RulePriority)
	l.text(s.SubnetFile, &n.SubnetFile, checkAbsolute)

	l.readPool(n, s.IPv4, "IPv4", netip.Addr.Is4)
	l.readPool(n, s.IPv6, "IPv6", netip.Addr.Is6)
	if l.o.CheckPlan != nil && len(n.pools) > 0 && !slices.ContainsFunc(n.pools, func(p *poolDraft) bool { return !p.valid }) {
		if err := l.o.CheckPlan(n.plan()); err != nil {
			for _, err := range flatten(err) {
				l.report(s.Place, "Invalid address plan", "%s", err)
			}
		}
	}
	l.readBackend(n)
	l.readEncryption(n)
}

// rulePriority reads the priority of a routing rule between the kernel's own ones, or 0.
func (l *loader) rulePriority(a *hcl.Attribute, dst *int) {
	const mainTable = 32766
	set(l, a, dst, cty.Number, func(n int) (int, error) {
		if n < 0 || n >= mainTable {
			return 0, fmt.Errorf("%d is not a priority from 1 to %d, or 0 for no rules", n, mainTable-1)
		}
		return n, nil
	})
}

// readEncryption reads whether encryption is required, which the backend must then be able to do.
func (l *loader) readEncryption(n *networkDraft) {
	a := n.shape.Encryption
	l.text(a, &n.Encryption, oneOf(choices()["network.*.encryption"]...))
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

func (l *loader) readPool(n *networkDraft, s *poolShape, family string, is func(netip.Addr) bool) {
	if s == nil {
		return
	}
	p := &poolDraft{shape: s}
	n.pools = append(n.pools, p)
	before := len(l.diags)

	set(l, s.Prefix, &p.Prefix, cty.String, func(text string) (netip.Prefix, error) {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return prefix, fmt.Errorf("%q is not a prefix, such as \"10.5.0.0/16\" or \"fd00:5::/48\"", text)
		case !is(prefix.Addr()):
			return prefix, fmt.Errorf("%s is not %s, which is what the block is for", prefix, family)
		}
		return prefix, nil
	})
	l.count(s.SubnetLen, &p.SubnetLen)
	l.addr(s.Min, &p.Min)
	l.addr(s.Max, &p.Max)
	if !p.Prefix.IsValid() && len(l.diags) == before {
		l.report(s.Place, "Missing prefix", "The address pool needs a prefix, such as prefix = %q", map[string]string{"IPv4": "10.5.0.0/16", "IPv6": "fd00:5::/48"}[family])
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
	s, part := p.shape, Pool{Prefix: p.Prefix}
	if s.SubnetLen != nil {
		part.SubnetLen = p.Prefix.Bits() + 2 // every valid prefix has room for this one, unlike the default
	}
	if !blame(s.Prefix, part) {
		return
	}
	part.SubnetLen = p.SubnetLen
	if !blame(s.SubnetLen, part) {
		return
	}
	withMin, withMax := part, part
	withMin.Min, withMax.Max = p.Min, p.Max
	okMin, okMax := blame(s.Min, withMin), blame(s.Max, withMax)
	if okMin && okMax && s.Min != nil {
		blame(s.Max, p.Pool)
	}
}

// readBackend converts the block to a type and a JSON object. A network with pools and no backend gets the default
// one.
func (l *loader) readBackend(n *networkDraft) {
	s := n.shape.Backend
	switch {
	case s == nil && len(n.pools) == 0:
		return // joined as the store has it
	case s == nil:
		options := json.RawMessage(`{}`)
		if normalize := l.o.Backends[DefaultBackend]; normalize != nil {
			var err error
			if options, err = normalize(options); err != nil {
				l.report(n.shape.Place, "Invalid default backend", "%s", err)
			}
		}
		n.Backend = &Backend{Type: DefaultBackend, Options: options}
		return
	}

	attrs, diags := s.Body.JustAttributes()
	l.diags = append(l.diags, diags...)
	options := l.object(attrs)
	if l.o.Backends != nil {
		normalize := l.o.Backends[s.Type]
		if normalize == nil {
			l.report(s.Named, "Unknown backend", "There is no backend %q. The backends are %s", s.Type,
				quoted(slices.Sorted(maps.Keys(l.o.Backends))))
			return
		}
		effective, err := normalize(options)
		if err == nil && l.o.CheckMTU != nil {
			err = l.o.CheckMTU(effective, n.prefixes())
		}
		if err != nil {
			l.reportOptions(s, attrs, err)
			return
		}
		options = effective
	}
	n.Backend = &Backend{Type: s.Type, Options: options}
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
func (l *loader) reportOptions(s *backendShape, attrs hcl.Attributes, err error) {
	for _, err := range flatten(err) {
		var named interface{ OptionName() string }
		if errors.As(err, &named) {
			if a := attrs[named.OptionName()]; a != nil {
				l.at(a, "%s", strings.TrimPrefix(err.Error(), a.Name+": "))
				continue
			}
		}
		l.report(s.Place, "Invalid backend", "Backend %q: %s", s.Type, err)
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
		if backend := n.shape.Backend; backend != nil && len(n.pools) == 0 {
			l.report(backend.Place, "Backend without addresses", "The network %q has a backend but neither an ipv4 nor an "+
				"ipv6 block. Give both to define the network, or none of them to join it as %s has it",
				n.Name, l.cfg.StoreName())
		}
		n.Pools = n.plan()
		l.cfg.Networks = slices.DeleteFunc(l.cfg.Networks, func(o Network) bool { return o.Name == n.Name })
		l.cfg.Networks = append(l.cfg.Networks, n.Network)
		l.cfg.NetworkFiles[n.Name] = n.shape.Place.Filename
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
	if n.shape.Backend != nil {
		return n.shape.Backend.Place
	}
	return n.shape.Place
}

// checkPair reports what two networks on one host cannot share.
func (l *loader) checkPair(first, second *networkDraft) {
	for _, p := range second.pools {
		for _, q := range first.pools {
			if p.Prefix.IsValid() && q.Prefix.IsValid() && p.Prefix.Overlaps(q.Prefix) {
				l.at(p.shape.Prefix, "%s overlaps %s of network %q at %s", p.Prefix, q.Prefix, first.Name, place(q.shape.Prefix.Range))
			}
		}
	}
	if SamePath(first.SubnetFile, second.SubnetFile) {
		where := second.shape.Place
		if a := l.by[&second.SubnetFile]; a != nil {
			where = a.Expr.Range()
		}
		l.report(where, "Subnet file used twice", "%s is already the subnet file of network %q at %s",
			second.SubnetFile, first.Name, place(first.shape.Named))
	}
}

// place returns the start of a range, for use inside a sentence.
func place(r hcl.Range) string { return fmt.Sprintf("%s:%d", r.Filename, r.Start.Line) }
