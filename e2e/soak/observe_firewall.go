package soak

import (
	"context"
	"strings"
)

// watchFirewall counts the jumps to leno's chains on a machine repeatedly until ctx ends.
func (r *run) watchFirewall(ctx context.Context, m *machine) {
	for sleep(ctx, r.Every) == nil {
		node, _ := m.now()
		at := r.now()
		rules, err := m.Exec(ctx, "nft", "list", "ruleset")
		if err != nil {
			if ctx.Err() == nil {
				r.trouble("list the rules of %s: %v", node, err)
			}
			continue
		}
		jumps := jumpsIn(rules)
		jumps.Node, jumps.At = node, at
		r.record(func(h *History) { h.Firewalls = append(h.Firewalls, jumps) })
	}
}

// jumpsIn reads what `nft list ruleset` prints.
func jumpsIn(rules string) Jumps {
	out := Jumps{Count: map[string]int{}}
	table, chain := "", ""
	for line := range strings.Lines(rules) {
		f := strings.Fields(line)
		switch {
		case len(f) == 4 && f[0] == "table":
			table = f[1] + " " + f[2]
		case len(f) == 3 && f[0] == "chain":
			chain = f[1]
		case strings.Contains(line, `comment "`+foreignComment+`"`):
			out.Foreign++
		}
		for i, word := range f {
			if word == "jump" && i+1 < len(f) && strings.HasPrefix(f[i+1], "LENO-") {
				out.Count[table+" "+chain+" "+f[i+1]]++
			}
		}
	}
	return out
}
