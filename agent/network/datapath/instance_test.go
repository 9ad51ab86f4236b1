package datapath

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/lenonet/leno/backend"
)

// changer is a backend that can go on under another definition.
type changer struct {
	backend.Backend
	to []backend.Config
}

func (c *changer) Change(to backend.Config) error {
	if string(to.Options) == `{"colour":"none"}` {
		return errors.New("no such colour")
	}
	c.to = append(c.to, to)
	return nil
}

// TestInstanceTakes: a backend is kept for the configuration that it was built from. For another configuration, a
// backend that can change is changed.
func TestInstanceTakes(t *testing.T) {
	kind := newLab(t).kind("recorder")
	v4, v6 := netip.MustParsePrefix("10.5.0.0/22"), netip.MustParsePrefix("fd00:5::/48")
	from := backend.Config{Pools: []netip.Prefix{v4}, Options: []byte(`{"colour":"red"}`)}
	pools, options, none := from, from, from
	pools.Pools = []netip.Prefix{v4, v6}
	options.Options, none.Options = []byte(`{"colour":"blue"}`), []byte(`{"colour":"none"}`)
	for _, tt := range []struct {
		name    string
		to      backend.Config
		other   bool
		takes   bool // whether a backend that cannot change is kept
		changes bool // whether one that can is kept
	}{
		{"the same", from, false, true, true},
		{"other pools", pools, false, false, true},
		{"other options", options, false, false, true},
		{"options it refuses", none, false, false, false},
		{"another kind", from, true, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := kind
			if tt.other {
				k.Name = "other"
			}
			b, err := kind.New(from)
			if err != nil {
				t.Fatal(err)
			}
			if got := (&Instance{backend: b, kind: kind.Name, config: from}).takes(k, tt.to); got != tt.takes {
				t.Errorf("kept %t, want %t", got, tt.takes)
			}
			c := &Instance{backend: &changer{Backend: b}, kind: kind.Name, config: from}
			if got := c.takes(k, tt.to); got != tt.changes {
				t.Errorf("changed %t, want %t", got, tt.changes)
			}
			if tt.changes && (string(c.config.Options) != string(tt.to.Options) || !slices.Equal(c.config.Pools, tt.to.Pools)) {
				t.Errorf("remembers %+v", c.config)
			}
		})
	}
}
