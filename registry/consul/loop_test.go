package consul

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/consul/changelog"
)

// TestNextRound: a round waits for the audit, or for the end of the first kept record if that is earlier.
func TestNextRound(t *testing.T) {
	t.Parallel()
	now := time.Now()
	minute, hour := now.Add(time.Minute), now.Add(time.Hour)
	kv := &kv{conf: &Config{Audit: time.Hour}}
	for _, tt := range []struct {
		name  string
		audit time.Time
		kept  []time.Time
		due   time.Time
	}{
		{"nothing kept", hour, nil, hour},
		{"kept for longer", hour, []time.Time{now.Add(2 * time.Hour)}, hour},
		{"kept for less", hour, []time.Time{now.Add(3 * time.Minute), minute}, minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newTestFollower()
			f.schedule = schedule{audit: tt.audit, notBefore: now, failures: 3}
			for i, until := range tt.kept { // the second list lacks a record each time
				index := uint64(i + 1)
				pair := &api.KVPair{Key: fmt.Sprint(viewPrefix, i), ModifyIndex: index}
				f.belief.Accept(f.newList(api.KVPairs{pair}, index), now, belief.Options{})
				f.evidence.suspectLoss = true
				f.belief.Accept(f.newList(nil, index), now, belief.Options{Settle: until.Sub(now)})
			}
			want := round{notBefore: now, due: tt.due, failures: 3, spread: perLease * time.Duration(f.belief.Len())}
			if got := f.nextRound(kv); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	t.Run("the first audit is at a random time", func(t *testing.T) {
		f := newTestFollower()
		got := f.nextRound(kv)
		latest := time.Now().Add(kv.conf.Audit + time.Millisecond)
		if got.due.Before(now) || got.due.After(latest) || got.due != f.schedule.audit {
			t.Errorf("due %s, planned for %s", got.due, f.schedule.audit)
		}
		if again := f.nextRound(kv); again.due != got.due {
			t.Errorf("due %s, and then %s", got.due, again.due)
		}
	})
	t.Run("of a large directory the keys are read first", func(t *testing.T) {
		f := newTestFollower()
		mark := &api.KVPair{Key: f.changes + changelog.WatermarkName, Value: []byte("0"), CreateIndex: 1, ModifyIndex: 1}
		for _, entries := range []int{fewEntries, fewEntries + 1} {
			pairs := api.KVPairs{mark}
			for i := range entries {
				pairs = append(pairs, &api.KVPair{Key: f.changes + string(rune('a'+i)), ModifyIndex: 2})
			}
			f.cursor.Adopt(changelog.NewReading(f.changes, pairs, 5), now)
			if got := f.nextRound(kv); got.index != 5 || got.keysOnly != (entries > fewEntries) {
				t.Errorf("%d entries: %+v", entries, got)
			}
		}
	})
}

// TestAuditPeriod: hosts take turns, and records that no host has written do not make the turns rarer.
func TestAuditPeriod(t *testing.T) {
	t.Parallel()
	n := network("default", "10.5.0.0/16")
	f := newTestFollower()
	f.use(n)
	pairs := api.KVPairs{}
	for i := range uint64(3) {
		key := viewPrefix + registry.SubnetKey(n.Plan.Subnets(i + 1)[0])
		pairs = append(pairs, &api.KVPair{Key: key, Value: leaseRecord(t, n, i+1, int(i)), Session: "s", ModifyIndex: 1})
	}
	for i := range 100 {
		pairs = append(pairs, &api.KVPair{Key: fmt.Sprint(viewPrefix, "bad-", i), Value: []byte("{"), ModifyIndex: 1})
	}
	f.accept(f.newList(pairs, 1))
	f.belief.Leases()
	if got, want := f.auditPeriod(&kv{conf: &Config{Audit: time.Second}}), 3*time.Second; got != want {
		t.Errorf("every %s, want %s", got, want)
	}
}
