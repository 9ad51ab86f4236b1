package consul

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry/consul/keys"
)

// pairsAt returns records, given as modify indexes by subnet key, and a marker that was created at the given index, 0 for
// none.
func pairsAt(marker uint64, records map[string]uint64) (pairs api.KVPairs) {
	if marker > 0 {
		pairs = append(pairs, &api.KVPair{Key: viewPrefix + keys.Marker, CreateIndex: marker, ModifyIndex: marker})
	}
	for name, modified := range records {
		pairs = append(pairs, &api.KVPair{Key: viewPrefix + name, Value: []byte(name), CreateIndex: 3, ModifyIndex: modified})
	}
	return pairs
}

// TestListIsJudged: which lists need a confirmation, and which may be of a store that was set back.
func TestListIsJudged(t *testing.T) {
	t.Parallel()
	type records = map[string]uint64
	known := records{"a": 10, "b": 11, "c": 12, "d": 13}
	for _, tt := range []struct {
		name                string
		evidence            evidence
		marker, index       uint64
		records             records
		doubtful, isSetBack bool
	}{
		{"the same", evidence{}, 2, 20, known, false, false},
		{"one more", evidence{}, 2, 30, records{"a": 10, "b": 11, "c": 12, "d": 13, "e": 30}, false, false},
		{"one less", evidence{}, 2, 30, records{"a": 10, "b": 11, "c": 12}, false, false},
		{"half of it", evidence{}, 2, 30, records{"a": 10, "b": 11}, false, false},
		{"less than half", evidence{}, 2, 30, records{"a": 10}, true, false},
		{"no marker", evidence{}, 0, 30, known, true, true},
		{"nothing", evidence{}, 0, 1, nil, true, true},
		{"another marker", evidence{}, 25, 30, known, false, true},
		{"another marker, one less", evidence{}, 25, 30, records{"a": 10, "b": 11, "c": 12}, true, true},
		{"a lower index", evidence{}, 2, 19, known, false, true},
		{"a lower index, one less", evidence{}, 2, 19, records{"a": 10, "b": 11, "c": 12}, true, true},
		{"the directory went back, one less", evidence{setBack: true}, 2, 30, records{"a": 10, "b": 11, "c": 12}, true, true},
		{"a suspected loss, one less", evidence{suspectLoss: true}, 2, 30, records{"a": 10, "b": 11, "c": 12}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newTestFollower()
			f.accept(f.newList(pairsAt(2, known), 20))
			f.evidence = tt.evidence
			l := f.newList(pairsAt(tt.marker, tt.records), tt.index)
			if got := f.isDoubtful(l); got != tt.doubtful {
				t.Errorf("doubtful: %t", got)
			}
			if got := f.mayBeSetBack(l); got != tt.isSetBack {
				t.Errorf("may be set back: %t", got)
			}
		})
	}
}
