package registry

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
)

// Difference is a value in which two definitions of a network differ.
type Difference struct {
	Field string // for example "ipv4.prefix" or "backend.vni"
	A, B  string // "" for none
}

// Differences compares the plans, the backends and the encryption of two definitions. The result is sorted by field.
func Differences(a, b Network) (out []Difference) {
	if a.Backend.Equal(b.Backend) {
		b.Backend = a.Backend // in the same spelling
	}
	ours, theirs := a.Fields(), b.Fields()
	all := maps.Clone(ours)
	maps.Copy(all, theirs)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if ours[name] != theirs[name] {
			out = append(out, Difference{name, ours[name], theirs[name]})
		}
	}
	return out
}

// Fields returns the values of a definition by name.
func (n Network) Fields() map[string]string {
	out := map[string]string{"backend.type": n.Backend.Type, "encryption": n.Encryption}
	options, _ := members(n.Backend.Options()) // an object
	for _, m := range options {
		text := string(m.value)
		if text != "null" {
			_ = json.Unmarshal(m.value, &text) // of other values than strings, the text stays
		}
		out["backend."+m.name] = text
	}
	for _, p := range n.Plan {
		family := "ipv4."
		if p.Prefix.Addr().Is6() {
			family = "ipv6."
		}
		out[family+"prefix"] = p.Prefix.String()
		out[family+"subnet_len"] = strconv.Itoa(p.SubnetLen)
		out[family+"min"] = p.Min.String()
		out[family+"max"] = p.Max.String()
	}
	return out
}
