package firewall

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// String returns the change as a list of actions, for tests.
func (c nftChange) String() string {
	var out []string
	if c.drop {
		out = append(out, "drop")
	}
	for _, chain := range c.fill {
		out = append(out, fmt.Sprintf("fill %s with %d", chain.name, len(chain.rules)))
	}
	for _, name := range c.remove {
		out = append(out, "remove "+name)
	}
	return strings.Join(out, ", ")
}

// random returns the rules that networks want with random ports.
func random(networks []Network) rules {
	return desiredRules(State{RandomFully: true, Networks: networks})
}

func TestNFTChange(t *testing.T) {
	want := nftChains(random(two()))
	// The state is built again each time: only equal values may count.
	right := func() nftState { return nftState{exists: true, chains: nftChains(random(two()))} }
	expect := func(have nftState) string { return nftChangeOf(have, want).String() }
	const all = "fill overlay with 6, fill postrouting with 12, fill forward with 13"

	for _, tt := range []struct {
		name   string
		damage func(s *nftState)
		change string
	}{
		{"all agrees", func(*nftState) {}, ""},
		{"no table", func(s *nftState) { *s = nftState{} }, all},
		{"an empty table", func(s *nftState) { s.chains = nil }, all},
		{"chains in another order", func(s *nftState) { slices.Reverse(s.chains) }, ""},
		{"a chain is missing", func(s *nftState) { s.chains = s.chains[:2] }, "fill forward with 13"},
		{"rules in another order", func(s *nftState) { slices.Reverse(s.chains[2].rules) }, "fill forward with 13"},
		{"the last rule is missing", func(s *nftState) { s.chains[1].rules = s.chains[1].rules[:11] }, "fill postrouting with 12"},
		{"a rule twice", func(s *nftState) { s.chains[2].rules = append(s.chains[2].rules, s.chains[2].rules[5]) }, "fill forward with 13"},
		{"another comment", func(s *nftState) { s.chains[1].rules[0].UserData[3] = 'L' }, "fill postrouting with 12"},
		{"another source is kept", func(s *nftState) {
			s.chains[0].rules[1].Exprs[7].(*expr.NAT).RegAddrMin++
		}, "fill overlay with 6"},
		{"another address", func(s *nftState) { s.chains[1].rules[0].Exprs[3].(*expr.Cmp).Data[1] = 6 }, "fill postrouting with 12"},
		{"the opposite comparison", func(s *nftState) { s.chains[1].rules[0].Exprs[3].(*expr.Cmp).Op = expr.CmpOpNeq }, "fill postrouting with 12"},
		{"another verdict", func(s *nftState) {
			s.chains[2].rules[0].Exprs[4].(*expr.Verdict).Kind = expr.VerdictDrop
		}, "fill forward with 13"},
		{"ports not random", func(s *nftState) { s.chains[1].rules[3].Exprs[4].(*expr.Masq).FullyRandom = false }, "fill postrouting with 12"},
		{"one expression more", func(s *nftState) {
			s.chains[2].rules[0].Exprs = append([]expr.Any{netfilter.Unknown{Name: "socket"}}, s.chains[2].rules[0].Exprs...)
		}, "fill forward with 13"},
		{"another priority", func(s *nftState) { s.chains[1].base.Priority-- }, "drop, " + all},
		{"another hook", func(s *nftState) { s.chains[1].base.Hook-- }, "drop, " + all},
		{"another type", func(s *nftState) { s.chains[2].base.Type = nftables.ChainTypeRoute }, "drop, " + all},
		{"policy drop", func(s *nftState) { s.chains[2].base.Policy = nftables.ChainPolicyDrop }, "drop, " + all},
		{"no base chain", func(s *nftState) { s.chains[2].base = netfilter.Base{} }, "drop, " + all},
		{"a dormant table", func(s *nftState) { s.flags = 1 }, "drop, " + all},
		{"chains of an older version", func(s *nftState) {
			s.chains = []nftChain{{name: "MASQ", base: s.chains[1].base, rules: s.chains[1].rules}, {name: "sub"}}
		}, all + ", remove MASQ, remove sub"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			have := right()
			tt.damage(&have)
			if got := expect(have); got != tt.change {
				t.Errorf("got %q, want %q", got, tt.change)
			}
			if change := nftChangeOf(have, want); change.isEmpty() != (len(change.wrong) == 0) {
				t.Errorf("it says %q", change.wrong)
			}
		})
	}

	t.Run("nothing wanted", func(t *testing.T) {
		if got := nftChangeOf(right(), nil).String(); got != "drop" {
			t.Errorf("got %q of a table that is there", got)
		}
		if got := nftChangeOf(nftState{}, nil).String(); got != "" {
			t.Errorf("got %q of no table", got)
		}
	})
	t.Run("forwarding only", func(t *testing.T) {
		networks := two()
		for i := range networks {
			networks[i].IPMasq = false
		}
		// A chain of type nat would make the kernel track connections.
		if got := nftChangeOf(right(), nftChains(random(networks))).String(); got != "remove overlay, remove postrouting" {
			t.Errorf("got %q", got)
		}
	})
}

func TestNFTPrefix(t *testing.T) {
	for _, tt := range []struct {
		prefix string
		len    uint32
		mask   []byte
		data   []byte
	}{
		{"10.5.34.0/24", 3, nil, []byte{10, 5, 34}},
		{"10.5.34.2/32", 4, nil, []byte{10, 5, 34, 2}},
		{"10.5.34.77/16", 2, nil, []byte{10, 5}}, // bits of the host do not count
		{"224.0.0.0/4", 4, []byte{0xf0, 0, 0, 0}, []byte{224, 0, 0, 0}},
		{"10.5.37.1/21", 4, []byte{255, 255, 0xf8, 0}, []byte{10, 5, 32, 0}},
		{"0.0.0.0/0", 4, []byte{0, 0, 0, 0}, []byte{0, 0, 0, 0}},
		{"fd00:5::/48", 6, nil, []byte{0xfd, 0, 0, 5, 0, 0}},
	} {
		t.Run(tt.prefix, func(t *testing.T) {
			want := []expr.Any{&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: tt.len, DestRegister: unix.NFT_REG_1}}
			if tt.mask != nil {
				want = append(want, &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: tt.len, Mask: tt.mask, Xor: make([]byte, tt.len)})
			}
			want = append(want, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: tt.data})
			if diff := cmp.Diff(want, nftPrefix(8, prefixes(tt.prefix)[0])); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
