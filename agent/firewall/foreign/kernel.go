package foreign

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// listKernel lists the tables of nf_tables as the program nft does, on a host without that program. It needs
// CAP_NET_ADMIN and reads the calling thread's network namespace; a kernel without nf_tables has no tables.
func listKernel(ctx context.Context) (out nftListing, err error) {
	if err := ctx.Err(); err != nil {
		return out, err
	}
	err = netfilter.WithConn(func(c *netfilter.Conn) error {
		return c.Settled(func() (err error) {
			out, err = listTables(c)
			return err
		})
	})
	if err != nil && !netfilter.IsNFTMissing(err) {
		return out, fmt.Errorf("nftables: list rules: %w", netfilter.ExplainNFT(err))
	}
	return out, nil
}

func listTables(c *netfilter.Conn) (out nftListing, err error) {
	chains, err := c.ListChains()
	if err != nil {
		return out, err
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
	}
	hooks := hookNames()
	read := map[tableName]bool{}
	for _, chain := range chains {
		base, at := netfilter.BaseOf(chain), tableName{families[chain.Table.Family], chain.Table.Name}
		if chain.Hooknum == nil || at.family == "" || int(base.Hook) >= len(hooks) {
			continue
		}
		policy := "accept"
		if base.Policy == nftables.ChainPolicyDrop {
			policy = "drop"
		}
		out.Objects = append(out.Objects, listedObject{Chain: &listedChain{Family: at.family, Table: at.name,
			Name: chain.Name, Type: string(base.Type), Hook: hooks[base.Hook], Policy: policy, Prio: encode(base.Priority)}})
		if read[at] {
			continue
		}
		read[at] = true
		rules, err := c.Rules(chain.Table.Family, chain.Table.Name)
		if err != nil {
			return out, err
		}
		elements := func(set string) ([]nftables.SetElement, error) {
			return c.GetSetElements(&nftables.Set{Table: chain.Table, Name: set})
		}
		for name, list := range rules {
			for _, r := range list {
				listed := translate(r, at.family, elements)
				listed.Family, listed.Table, listed.Chain = at.family, at.name, name
				out.Objects = append(out.Objects, listedObject{Rule: &listed})
			}
		}
	}
	return out, nil
}

// encode returns a value in JSON. It is of a type that can be encoded.
func encode(v any) json.RawMessage {
	text, _ := json.Marshal(v)
	return text
}

// object is an object of nft's JSON.
type object map[string]any

// translator translates one rule into the statements that nft lists. It translates what it does not understand into
// a statement that nftLines does not know either.
type translator struct {
	registers
	elements func(set string) ([]nftables.SetElement, error)
	out      []map[string]json.RawMessage
	implied  int // the number of statements up to a match that a field of that protocol implies
}

// translate returns a rule of a table of a family in nft's JSON. elements returns the elements of the table's sets.
func translate(r netfilter.NFTRule, family string, elements func(string) ([]nftables.SetElement, error)) listedRule {
	t := translator{registers: registers{loaded: map[uint32]operand{}}, elements: elements}
	if family != "inet" {
		t.network = family
	}
	for _, e := range r.Exprs {
		if !t.load(e) {
			t.add(e)
		}
	}
	comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return listedRule{Comment: comment, Expr: t.out}
}

func (t *translator) emit(name string, v any) {
	t.out = append(t.out, map[string]json.RawMessage{name: encode(v)})
}

func (t *translator) add(e expr.Any) {
	switch e := e.(type) {
	case *expr.Cmp:
		t.compare(e)
	case *expr.Lookup:
		t.lookUp(e)
	case netfilter.VerdictMap:
		t.lookUpVerdict(e)
	case *expr.Verdict:
		t.emit(statementOf(*e))
	case *expr.NAT:
		t.emit(map[bool]string{true: "snat", false: "dnat"}[e.Type == expr.NATTypeSourceNAT], nil)
	case *expr.Masq:
		t.emit("masquerade", nil)
	case *expr.Reject:
		t.emit("reject", nil)
	case *expr.Counter:
		t.emit("counter", object{"packets": e.Packets})
	case *expr.Log, *expr.Meta, *expr.Ct: // the last two set something
		t.emit("log", nil)
	case netfilter.Extension:
		kind, targets := map[bool]string{true: "target", false: "match"}[e.Target],
			map[string]string{"REJECT": "reject", "MASQUERADE": "masquerade", "SNAT": "snat"}
		if target := targets[e.Name]; e.Target && target != "" {
			t.emit(target, nil)
			return
		}
		t.emit("xt", object{"type": kind, "name": e.Name})
	case netfilter.Unknown:
		clear(t.loaded)
		if e.Name != "immediate" { // a value for a later expression
			t.emit(cmp.Or(map[string]string{"redir": "redirect"}[e.Name], e.Name), nil)
		}
	default:
		t.emit("unknown", nil)
	}
}

// statementOf returns nft's statement for a verdict.
func statementOf(v expr.Verdict) (name string, target any) {
	switch v.Kind {
	case expr.VerdictJump:
		return "jump", object{"target": v.Chain}
	case expr.VerdictGoto:
		return "goto", object{"target": v.Chain}
	case expr.VerdictReturn:
		return "return", nil
	case expr.VerdictDrop:
		return "drop", nil
	case expr.VerdictAccept:
		return "accept", nil
	case expr.VerdictContinue:
		return "continue", nil
	}
	return "queue", nil
}

// emitMatch adds a comparison with one of the values. Like nft, it omits a match before it that the field implies.
func (t *translator) emitMatch(o operand, isEqual bool, values ...string) {
	if o.isField && t.implied > 0 && t.implied == len(t.out) {
		t.out, t.implied = t.out[:t.implied-1], 0
	}
	op := map[bool]string{true: "==", false: "!="}[isEqual]
	t.emit("match", object{"op": op, "left": o.left, "right": object{"set": values}})
	if isProtocol := o.size <= 2; isEqual && len(values) == 1 && isProtocol {
		t.noteProtocol(values[0])
	}
}

// noteProtocol notes that the rule is only for packets of a protocol, if the value of the last match is one.
func (t *translator) noteProtocol(value string) {
	network, isNetwork := map[string]string{"ipv4": "ip", "ip": "ip", "ipv6": "ip6", "ip6": "ip6"}[value]
	switch _, isTransport := protocolNumber(value); {
	case isNetwork:
		t.network, t.implied = network, len(t.out)
	case isTransport:
		t.transport, t.implied = value, len(t.out)
	}
}

func (t *translator) compare(e *expr.Cmp) {
	o, isEqual := t.loaded[e.Register], e.Op == expr.CmpOpEq
	switch isNone := strings.Trim(string(e.Data), "\x00") == ""; {
	case !isEqual && e.Op != expr.CmpOpNeq, o.format == nil, len(e.Data) > o.size, o.selected != nil && !isNone:
		t.emit("unknown", nil)
	case o.selected != nil: // whether one of the flags is set
		t.emitMatch(o, !isEqual, o.selected...)
	default:
		t.emitMatch(o, isEqual, o.value(e.Data))
	}
}

func (t *translator) lookUp(e *expr.Lookup) {
	o := t.loaded[e.SourceRegister]
	var values []string
	isKnown := t.eachElement(o, e.SetName, func(value string, _ []byte) { values = append(values, value) })
	if !isKnown {
		t.emit("unknown", nil)
		return
	}
	slices.Reverse(values)
	t.emitMatch(o, !e.Invert, values...)
}

func (t *translator) lookUpVerdict(m netfilter.VerdictMap) {
	o := t.loaded[m.Register]
	pairs, areVerdicts := [][]any{}, true
	isKnown := t.eachElement(o, m.Name, func(value string, data []byte) {
		verdict, ok := netfilter.ParseVerdict(data)
		areVerdicts = areVerdicts && ok
		name, target := statementOf(verdict)
		pairs = append(pairs, []any{value, object{name: target}})
	})
	if !isKnown || !areVerdicts {
		t.emit("vmap", nil)
		return
	}
	t.emit("vmap", object{"key": o.left, "data": object{"set": pairs}})
}

// eachElement calls f for each element of a set, the highest first. It returns false if it does not understand all of
// them.
func (t *translator) eachElement(o operand, set string, f func(value string, data []byte)) bool {
	elements, err := t.elements(set)
	if err != nil || o.format == nil || o.ignored != nil || o.selected != nil {
		return false
	}
	order := map[bool]int{false: 1} // an end before the beginning of the next one
	slices.SortFunc(elements, func(a, b nftables.SetElement) int {
		return cmp.Or(bytes.Compare(a.Key, b.Key), order[a.IntervalEnd]-order[b.IntervalEnd])
	})
	isInterval := slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return e.IntervalEnd })
	end := make([]byte, o.size) // of the last one
	for _, e := range slices.Backward(elements) {
		last := e.Key
		if len(e.Key) != o.size || e.KeyEnd != nil || isInterval && !o.ordered {
			return false
		}
		if isInterval { // up to the next element
			last, end = previous(end), e.Key
		}
		if !e.IntervalEnd {
			f(o.format(e.Key, last), e.Val)
		}
	}
	return true
}

// previous returns the number before a number.
func previous(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range slices.Backward(out) {
		if out[i]--; out[i] != 0xff {
			break
		}
	}
	return out
}
