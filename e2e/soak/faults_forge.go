package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// forgeRecords makes a stranger, who may write to the store, lie about running hosts for a time.
func (r *run) forgeRecords(ctx context.Context, s Step) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	forged, leases, err := r.chooseForgedRecords(ctx, s)
	if err != nil {
		return err
	}
	put := func(ctx context.Context) error {
		return r.onLeader(ctx, "write forged records", func(ctx context.Context) error {
			var errs []error
			for _, b := range forged {
				errs = append(errs, r.store.forge(ctx, b.key, []byte(b.bad), b.session))
			}
			return errors.Join(errs...)
		})
	}
	i := 0
	r.record(func(h *History) {
		i = len(h.Forgeries)
		h.Forgeries = append(h.Forgeries, Forgery{Span{r.now(), forever}, s.Network, leases})
	})
	defer func() { r.record(func(h *History) { h.Forgeries[i].To = r.now() }) }()
	return between(ctx, s.For, put, func(ctx context.Context) error {
		var records []badRecord
		for _, b := range forged {
			records = append(records, b.badRecord)
		}
		return r.putGood(ctx, records, false)
	})
}

// A forgedRecord is a stranger's record, held by a session or by none.
type forgedRecord struct {
	badRecord
	session string
}

// watermark is the name of a record in the directory of changes: up to which index entries were deleted.
const watermark = "_"

// chooseForgedRecords forges leases of running hosts on subnets that no one uses: without the host's session, and with it,
// which is no secret. With Consul, it also forges one with a session of the stranger's own, an entry in the directory of
// changes that gives a host another address, one that says that a host's record was removed, and the watermark.
func (r *run) chooseForgedRecords(ctx context.Context, s Step) (out []forgedRecord, leases []Entry, err error) {
	n := findNetwork(s.Network)
	held, unused, err := r.heldLeases(ctx, n, func(node string) bool { return !r.silentNow(node) })
	if err != nil || len(held) == 0 {
		return nil, nil, err
	}
	victim := func(i int) pair { return held[(s.Pick+i)%len(held)] }
	sessions := []string{"", victim(1).session}
	if r.hasConsul() {
		sessions = append(sessions, ownSession)
	}
	for i, session := range sessions[:min(len(sessions), len(unused))] {
		slot, err := n.slotOf(victim(i).key)
		if err != nil {
			return nil, nil, err
		}
		// A lease names its subnets in its key and in its value.
		var rename []string
		for _, form := range []string{"10.%d.%d.0", "fd00:%d:0:%x::", "fd00.%d.0.%x.."} {
			rename = append(rename, fmt.Sprintf(form, n.number, slot), fmt.Sprintf(form, n.number, unused[i]))
		}
		moved := strings.NewReplacer(rename...)
		lease := badRecord{moved.Replace(victim(i).key), moved.Replace(string(victim(i).value)), nil}
		out = append(out, forgedRecord{lease, session})
		record, _ := recordOf(strings.TrimPrefix(lease.key, leasesKey(n.name)),
			pair{record: []byte(moved.Replace(string(victim(i).record)))})
		leases = append(leases, record.Entry)
		r.say("network %s: forged %s %s with session %q", n.name, lease.key, lease.bad, session)
	}
	if !r.hasConsul() { // etcd has no directory of changes
		return out, leases, nil
	}
	var record map[string]any
	if err := json.Unmarshal(victim(1).value, &record); err != nil {
		return nil, nil, err
	}
	record["public_ip"], record["public_ips"] = "203.0.113.66", []string{"203.0.113.66"}
	redirected, err := json.Marshal(record)
	if err != nil {
		return nil, nil, err
	}
	change := func(name, value string) {
		out = append(out, forgedRecord{badRecord{"leno/changes/" + n.name + "/" + name, value, nil}, ""})
	}
	entryOf := func(p pair) string {
		_, subnets, _ := leaseKeyOf(p.key)
		return fmt.Sprintf("%016x%08x_%s", time.Now().UnixNano(), s.Pick, subnets)
	}
	change(entryOf(victim(1)), string(redirected))
	change(entryOf(victim(2)), "")
	change(watermark, "18446744073709551615")
	return out, leases, nil
}

// heldLeases returns the leases that some of a network's hosts hold, and the slots that no record names.
func (r *run) heldLeases(ctx context.Context, n network, of func(node string) bool) (held []pair, unused []int, err error) {
	err = r.onLeader(ctx, "answer a read of everything", func(ctx context.Context) error {
		leader, err := r.store.leader(ctx)
		if err != nil {
			return err
		}
		pairs, err := r.store.list(ctx, leader)
		held, unused = nil, nil
		taken := map[int]bool{}
		for _, p := range pairs {
			slot, bad := n.slotOf(p.key)
			if bad != nil {
				continue
			}
			taken[slot] = true
			var value struct{ Node string }
			if p.session != "" && json.Unmarshal(p.record, &value) == nil && of(value.Node) {
				held = append(held, p)
			}
		}
		last := 254
		if !n.carries {
			last = min(n.slots(r.Options, 0), n.slots(r.Options, 1)) // which every plan has
		}
		for slot := 1; slot <= last; slot++ {
			if !taken[slot] {
				unused = append(unused, slot)
			}
		}
		return err
	})
	return held, unused, err
}

// slotOf returns the slot of a lease of the network.
func (n network) slotOf(key string) (int, error) {
	network, subnets, _ := leaseKeyOf(key)
	subnet, ok := strings.CutPrefix(subnets, fmt.Sprintf("10.%d.", n.number))
	if network != n.name || !ok {
		return 0, fmt.Errorf("%s is not a lease of %s", key, n.name)
	}
	slot, _, _ := strings.Cut(subnet, ".")
	return strconv.Atoi(slot)
}

// startInLoss makes the store lose its records, and starts a host that has never run, before, during or after that:
// another one dies for good and leaves its place to it.
func (r *run) startInLoss(ctx context.Context, s Step) error {
	before := s.For / 2 * time.Duration(s.Pick/2%4)
	var both errgroup.Group
	both.Go(func() error {
		return guarded(func() error {
			if err := sleep(ctx, before); err != nil {
				return err
			}
			if s.Pick%2 == 1 {
				return r.restore(ctx, RestoreStore, r.snapshot)
			}
			return r.empty(ctx, EmptyStore)
		})
	})
	both.Go(func() error {
		return guarded(func() error { return errors.Join(sleep(ctx, s.For), r.startAnother(ctx, s)) })
	})
	return both.Wait()
}

// startAnother replaces a host that does not carry packets and has no fault.
func (r *run) startAnother(ctx context.Context, s Step) error {
	for i := range r.machines {
		m := r.machines[(s.Pick+i)%len(r.machines)]
		if m.carries || !m.faults.TryLock() {
			continue
		}
		defer m.faults.Unlock()
		if !m.disabled {
			return r.replace(ctx, m)
		}
	}
	return nil
}

// restartAll kills the agents of all hosts without a fault, and starts them together.
func (r *run) restartAll(ctx context.Context, s Step) error {
	var killed []*machine
	kill := func(m *machine, _ context.Context) error {
		killed = append(killed, m)
		m.setProcess(nil)
		return m.KillAgent()
	}
	started := func(*machine, context.Context) error { return nil }
	return r.silencing(ctx, s, kill, started, func(ctx context.Context) error {
		if err := sleep(ctx, s.For); err != nil {
			return err
		}
		var starting errgroup.Group
		for _, m := range killed {
			starting.Go(func() error { return r.startAgent(ctx, m) })
		}
		return starting.Wait()
	})
}
