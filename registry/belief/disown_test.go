package belief

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

// TestDisown: of the usable records with a subnet in common, only the oldest counts, held or not.
func TestDisown(t *testing.T) {
	v4, v6, other := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("fd00:5:0:1::/64"),
		netip.MustParsePrefix("fd00:5:0:2::/64")
	record := func(key string, created uint64, subnets ...netip.Prefix) *Record {
		return &Record{Key: key, Lease: registry.Lease{Session: "s", CreateIndex: created, Subnets: subnets}}
	}
	away, broken := record("away", 1, v4), record("broken", 1, v4)
	away.Lease.Session, broken.Err = "", errors.New("nonsense")
	for name, tt := range map[string]struct {
		records []*Record
		want    string // the usable ones by age
	}{
		"none":                       {nil, ""},
		"nothing in common":          {[]*Record{record("a", 2, v4), record("b", 1, v6)}, "b a"},
		"the first subnet":           {[]*Record{record("a", 2, v4), record("b", 1, v4, v6)}, "b"},
		"the second subnet":          {[]*Record{record("a", 1, v4, v6), record("b", 2, v6)}, "a"},
		"of the same age":            {[]*Record{record("b", 1, v4), record("a", 1, v4)}, "a"},
		"the older host is away":     {[]*Record{record("a", 2, v4), away}, "away"},
		"the older one is broken":    {[]*Record{record("a", 2, v4), broken}, "a"},
		"beside one that is ignored": {[]*Record{record("a", 1, v4), record("b", 2, v4, v6), record("c", 3, v6)}, "a c"},
		"other subnets":              {[]*Record{record("a", 1, v4, v6), record("b", 2, other)}, "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tt.records)
			list := List{Records: map[string]*Record{}}
			for _, r := range before {
				list.Records[r.Key] = r
			}
			list.Disown()
			var usable []string
			for _, r := range Disown(tt.records) {
				if r.Err == nil {
					usable = append(usable, r.Key)
				} else if !slices.Contains(before, r) && !strings.Contains(r.Err.Error(), "is that of "+usable[0]) {
					t.Errorf("%s: %v", r.Key, r.Err)
				}
				if (list.Records[r.Key].Err == nil) != (r.Err == nil) {
					t.Errorf("the list has %+v", list.Records[r.Key])
				}
			}
			if got := strings.Join(usable, " "); got != tt.want {
				t.Errorf("usable: %s, want %s", got, tt.want)
			}
			for _, r := range before {
				if r.Err != nil && r != broken {
					t.Errorf("record %s was changed", r.Key)
				}
			}
		})
	}
}
