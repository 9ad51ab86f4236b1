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
	forged, err := r.chooseForgedRecords(ctx, s)
	if err != nil {
		return err
	}
	put := func(ctx context.Context) error {
		return r.onLeader(ctx, "write forged records", func(ctx context.Context) error {
			var errs []error
			for _, b := range forged {
				errs = append(errs, r.store.forge(ctx, b.key, []byte(b.bad)))
			}
			return errors.Join(errs...)
		})
	}
	i := 0
	r.record(func(h *History) {
		i = len(h.Forgeries)
		h.Forgeries = append(h.Forgeries, Forgery{Span{r.now(), forever}, s.Network})
	})
	defer func() { r.record(func(h *History) { h.Forgeries[i].To = r.now() }) }()
	return between(ctx, s.For, put, func(ctx context.Context) error { return r.putGood(ctx, forged, false) })
}

// chooseForgedRecords forges a lease of a running host on a subnet that no one uses, and with Consul an entry in the
// directory of changes that gives a host another address, and one that says that a host's record was removed.
func (r *run) chooseForgedRecords(ctx context.Context, s Step) (out []badRecord, err error) {
	n := findNetwork(s.Network)
	held, unused, err := r.heldLeases(ctx, n, func(node string) bool { return !r.silentNow(node) })
	if err != nil || len(held) == 0 {
		return nil, err
	}
	victim := func(i int) pair { return held[(s.Pick+i)%len(held)] }
	slot, err := n.slotOf(victim(0).key)
	if err != nil {
		return nil, err
	}
	if unused > 0 { // the network is not full
		// A lease names its subnets in its key and in its value.
		var rename []string
		for _, form := range []string{"10.%d.%d.0", "fd00:%d:0:%x::", "fd00.%d.0.%x.."} {
			rename = append(rename, fmt.Sprintf(form, n.number, slot), fmt.Sprintf(form, n.number, unused))
		}
		moved := strings.NewReplacer(rename...)
		out = append(out, badRecord{moved.Replace(victim(0).key), moved.Replace(string(victim(0).value)), nil})
		r.say("network %s: forged %s %s", n.name, out[0].key, out[0].bad)
	}
	if !r.hasConsul() { // etcd has no directory of changes
		return out, nil
	}
	var record map[string]any
	if err := json.Unmarshal(victim(1).value, &record); err != nil {
		return nil, err
	}
	record["public_ip"], record["public_ips"] = "203.0.113.66", []string{"203.0.113.66"}
	redirected, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	entry := func(of pair, value string) badRecord {
		_, subnets, _ := leaseKeyOf(of.key)
		return badRecord{fmt.Sprintf("leno/changes/%s/%016x%08x_%s", n.name, time.Now().UnixNano(), s.Pick, subnets), value, nil}
	}
	return append(out, entry(victim(1), string(redirected)), entry(victim(2), "")), nil
}

// heldLeases returns the leases that some of a network's hosts hold, and a slot that no record names, or 0.
func (r *run) heldLeases(ctx context.Context, n network, of func(node string) bool) (held []pair, unused int, err error) {
	err = r.onLeader(ctx, "answer a read of everything", func(ctx context.Context) error {
		leader, err := r.store.leader(ctx)
		if err != nil {
			return err
		}
		pairs, err := r.store.list(ctx, leader)
		held = nil
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
		for unused = 1; taken[unused]; unused++ {
		}
		if !n.carries && unused > min(n.slots(r.Options, 0), n.slots(r.Options, 1)) { // which every plan has
			unused = 0
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
