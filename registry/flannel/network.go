package flannel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/lenonet/leno/registry"
)

// FormatNetwork returns the value of ConfigKey for a network:
//
//	{"Network":"10.5.0.0/16","SubnetLen":24,"SubnetMin":"10.5.1.0","SubnetMax":"10.5.255.0",
//	 "Backend":{"Port":8472,"Type":"vxlan","VNI":1},"leno":{"version":1,...}}
//
// The member "leno" is what registry.FormatNetwork returns. A backend that flannel and leno do not have in common keeps
// its type, without options. FormatNetwork refuses what ParseNetwork would refuse. Errors wrap registry.ErrInvalid.
func FormatNetwork(n registry.Network) ([]byte, error) {
	record, err := registry.FormatNetwork(n)
	if err != nil {
		return nil, err
	}
	plan, err := n.Plan.Normalize()
	if err != nil {
		return nil, err
	}
	c := configOf(plan)
	if c.Backend, err = formatBackend(n.Backend); err != nil {
		return nil, registry.InvalidRecord(err.Error())
	}
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	value := withRecord(config, record)
	if _, err := ParseNetwork(n.Name, value); err != nil {
		return nil, err
	}
	return value, nil
}

// configOf returns the configuration of a normalized plan, without Backend.
func configOf(plan registry.Plan) Config {
	no, yes := false, true
	c := Config{EnableIPv4: &no}
	for _, p := range plan {
		if p.Prefix.Addr().Is4() {
			c.EnableIPv4 = nil // true
			c.Network, c.SubnetLen, c.SubnetMin, c.SubnetMax = p.Prefix, p.SubnetLen, p.Min, p.Max
		} else {
			c.EnableIPv6 = &yes
			c.IPv6Network, c.IPv6SubnetLen, c.IPv6SubnetMin, c.IPv6SubnetMax = p.Prefix, p.SubnetLen, p.Min, p.Max
		}
	}
	return c
}

// withRecord adds leno's record to a JSON object.
func withRecord(object, record []byte) []byte {
	out := object[: len(object)-1 : len(object)-1]
	if len(out) > 1 {
		out = append(out, ',')
	}
	out = append(out, `"`+lenoMember+`":`...)
	return append(append(out, record...), '}')
}

// FormatDeletion returns the value of ConfigKey that records the deletion of a network:
// {"leno":{"version":1,"name":"blue","deleted":"2026-11-22T21:40:00Z"}}. Flannel finds no network in it.
func FormatDeletion(d registry.Deletion) ([]byte, error) {
	record, err := registry.FormatDeletion(d)
	if err != nil {
		return nil, err
	}
	return withRecord([]byte(`{}`), record), nil
}

// ParseNetwork parses the value of ConfigKey for the network that leno calls name. With a member "leno", that record is
// the network, and flannel's members must have the same plan, backend type and options. Without it, the network is
// flannel's configuration, where all options of the backend that flannel has are explicit, its defaults included; what
// leno has not, such as Learning, is left out.
//
// The error is a *registry.DeletedError, without the indexes, when the value records a deletion, and wraps
// registry.ErrInvalid otherwise.
func ParseNetwork(name string, value []byte) (registry.Network, error) {
	all, ok := parseObject(value)
	if !ok {
		n, err := registry.ParseNetwork(name, value)
		if comment := FindComment(value); err != nil && comment != nil {
			err = registry.InvalidRecord(comment.Error())
		}
		return n, err
	}
	if err := registry.CheckNetworkName(name); err != nil {
		return registry.Network{}, err
	}
	record, own := all[lenoMember]
	if !own {
		return parseConfigured(name, value)
	}
	n, err := registry.ParseNetwork(name, record)
	if _, isDeleted := errors.AsType[*registry.DeletedError](err); isDeleted && IsConfig(all) {
		return registry.Network{}, registry.InvalidRecord(`flannel's configuration contradicts the member "leno", which ` +
			`records that the network was deleted: ` + removeLeno)
	}
	if err != nil {
		return registry.Network{}, err
	}
	if err := checkConfig(n, value); err != nil {
		return registry.Network{}, registry.InvalidRecord(err.Error())
	}
	return n, nil
}

const removeLeno = `remove "leno" from the value to let flannel's configuration apply`

// HasRecord reports whether a value has leno's record in its member "leno".
func HasRecord(value []byte) bool {
	all, ok := parseObject(value)
	_, own := all[lenoMember]
	return ok && own
}

// parseObject returns the members of a value. ok is false for a value that is no JSON object, or that is outside the
// limits for records: then the parsers of package registry give the reason.
func parseObject(value []byte) (all map[string]json.RawMessage, ok bool) {
	if len(value) > registry.MaxRecordSize || !utf8.Valid(value) {
		return nil, false
	}
	err := json.Unmarshal(value, &all)
	return all, err == nil && all != nil
}

// parseConfigured returns the network of flannel's configuration.
func parseConfigured(name string, value []byte) (registry.Network, error) {
	c, err := ParseConfig(value)
	if err != nil {
		return registry.Network{}, registry.InvalidRecord(err.Error())
	}
	n := registry.Network{Name: name}
	if n.Plan, err = c.Plan(); err != nil {
		return registry.Network{}, registry.InvalidRecord(err.Error())
	}
	t, err := c.TranslateBackend()
	if err == nil {
		n.Backend, err = t.backend()
	}
	if err != nil {
		return registry.Network{}, registry.InvalidRecord(err.Error())
	}
	return n, nil
}

// comparison is one property of a record as flannel's members and leno's record have it, "" for not at all.
type comparison struct{ member, flannel, leno string }

// check returns an error that names both values if they differ.
func (c comparison) check() error {
	if c.flannel == c.leno {
		return nil
	}
	return fmt.Errorf(`%s %s contradicts the member "leno", which has %s`, c.member, cmp.Or(c.flannel, "none"),
		cmp.Or(c.leno, "none"))
}

// checkConfig returns an error that names all values in which flannel's members contradict the network in the member
// "leno".
func checkConfig(n registry.Network, value []byte) error {
	c, err := ParseConfig(value)
	if err != nil {
		return err
	}
	plan, err := c.Plan()
	if err != nil {
		return fmt.Errorf(`%w; the member "leno" has %s`, err, n.Plan.Prefixes())
	}
	kind, _, err := c.backendType()
	if err != nil {
		return err
	}
	all := append(comparePlans(plan, n.Plan), comparison{"Backend.Type", kind, strings.ToLower(n.Backend.Type)})
	if known, _ := settings(kind); len(known) > 0 && kind == n.Backend.Type {
		t, err := c.TranslateBackend()
		if err != nil {
			return err
		}
		all = append(all, compareOptions(known, t, n.Backend)...)
	}
	var differing []string
	for _, each := range all {
		if each.flannel != each.leno {
			has, want := cmp.Or(each.leno, "none"), cmp.Or(each.flannel, "none")
			differing = append(differing, fmt.Sprintf("%s %s instead of %s", each.member, has, want))
		}
	}
	if len(differing) == 0 {
		return nil
	}
	return fmt.Errorf(`the member "leno" has %s: %s`, strings.Join(differing, ", "), removeLeno)
}

// compareOptions compares the options that flannel has of flannel's backend with those of leno's, of the same type. An
// MTU is the underlay's in both.
func compareOptions(known []setting, flannel Translation, leno registry.Backend) (out []comparison) {
	for _, s := range known {
		if s.option != "" {
			theirs := cmp.Or(flannel.Options[s.option], s.preset)
			out = append(out, comparison{"Backend." + s.name, s.text(theirs), s.text(s.valueIn(leno))})
		}
	}
	return out
}

// comparePlans compares flannel's plan with leno's, pool by pool.
func comparePlans(flannel, leno registry.Plan) (out []comparison) {
	for _, family := range []struct {
		prefix string
		isIt   func(netip.Addr) bool
	}{{"", netip.Addr.Is4}, {"IPv6", netip.Addr.Is6}} {
		theirs, mine := poolTexts(flannel, family.isIt), poolTexts(leno, family.isIt)
		for i, member := range []string{"Network", "SubnetLen", "SubnetMin", "SubnetMax"} {
			out = append(out, comparison{family.prefix + member, theirs[i], mine[i]})
			if i == 0 && theirs[0] != mine[0] {
				break // the rest follows from the pool, or means something else in it
			}
		}
	}
	return out
}

// poolTexts returns the prefix, subnet length, minimum and maximum of a family's pool, each "" if there is none.
func poolTexts(plan registry.Plan, isFamily func(netip.Addr) bool) (out [4]string) {
	for _, p := range plan {
		if isFamily(p.Prefix.Addr()) {
			out = [4]string{p.Prefix.String(), fmt.Sprint(p.SubnetLen), p.Min.String(), p.Max.String()}
		}
	}
	return out
}
