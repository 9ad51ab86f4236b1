package changelog

import (
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
)

// Reading is one answer about the directory. It contains the entries that were not known before; of the others it may
// contain only the key.
type Reading struct {
	Index uint64
	Mark  *api.KVPair // the watermark, nil when it is missing

	// Asked is when the request began, and Answered when its answer arrived; zero where that is not known.
	Asked, Answered time.Time
	// Kept is how long every entry stays in the directory, zero where that is not known.
	Kept time.Duration

	prefix   string
	keys     []string // of all entries
	entries  map[string]*api.KVPair
	keysOnly bool // neither entries nor the watermark have been read yet
}

// NewReading returns the reading of a recursive list of the directory at prefix.
func NewReading(prefix string, pairs api.KVPairs, index uint64) Reading {
	r := Reading{Index: index, prefix: prefix, entries: make(map[string]*api.KVPair, len(pairs))}
	for _, p := range pairs {
		if p.Key == prefix+WatermarkName {
			r.Mark = p
			continue
		}
		r.keys = append(r.keys, p.Key)
		r.entries[p.Key] = p
	}
	return r
}

// NewKeysReading returns the reading of a list of keys, which Complete completes.
func NewKeysReading(prefix string, keys []string, index uint64) Reading {
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == prefix+WatermarkName })
	return Reading{Index: index, prefix: prefix, keys: keys, entries: map[string]*api.KVPair{}, keysOnly: true}
}

// Len returns the number of entries.
func (r Reading) Len() int { return len(r.keys) }

// Complete adds the records that Cursor.Unread named to a reading. Those that do not exist any more have ModifyIndex 0.
func (r *Reading) Complete(pairs []*api.KVPair) {
	for _, pair := range pairs {
		switch {
		case pair.ModifyIndex == 0: // deleted since the keys were read
		case pair.Key == r.prefix+WatermarkName:
			r.Mark = pair
		default:
			r.entries[pair.Key] = pair
		}
	}
	r.keysOnly = false
}

// Follows reports whether the reading was requested so soon after the last one had arrived that no entry in between can
// have been trimmed, whatever the watermark says. Half of the time allows for servers that lag.
func (r Reading) Follows(answered time.Time) bool {
	return !answered.IsZero() && !r.Asked.IsZero() && r.Asked.Sub(answered) < r.Kept/2
}
