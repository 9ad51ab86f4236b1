package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// operatorPatience is the time limit of one command of an operator.
const operatorPatience = time.Minute

// An operator defines, changes and deletes networks.
type operator struct {
	one sync.Mutex // held during a change of a network

	mu      sync.Mutex
	defined map[string]bool
	variant map[string]int
	turn    int // counts commands
}

func (r *run) isDefined(network string) bool {
	r.operator.mu.Lock()
	defer r.operator.mu.Unlock()
	return r.operator.defined[network]
}

func (r *run) setDefined(network string, defined bool) {
	r.operator.mu.Lock()
	defer r.operator.mu.Unlock()
	r.operator.defined[network] = defined
}

// operate runs a leno command on a host without a fault.
func (r *run) operate(ctx context.Context, args ...string) (string, error) {
	r.operator.mu.Lock()
	r.operator.turn++
	turn := r.operator.turn
	r.operator.mu.Unlock()
	for i := range r.machines {
		m := r.machines[(turn+i)%len(r.machines)]
		if !m.faults.TryLock() {
			continue
		}
		defer m.faults.Unlock()
		if m.disabled {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, operatorPatience)
		defer cancel()
		return m.Leno(ctx, args...)
	}
	return "", errors.New("there is no host without a fault")
}

// commandOf returns a subcommand of leno with the flags of an operator.
func (r *run) commandOf(noun, verb string, args ...string) []string {
	return slices.Concat([]string{noun, verb}, r.store.operator(), args)
}

// setUpNetworks defines the networks that exist only in Consul, half of them from a
// configuration of flannel, and records the definitions of all networks.
func (r *run) setUpNetworks(ctx context.Context) error {
	for i, n := range allNetworks() {
		if n.origin == fromFiles || n.name == "lease-t" && len(r.definers(n.name)) > 0 {
			continue
		}
		if err := r.defineNetwork(ctx, n.name, i); err != nil {
			return err
		}
	}
	for _, n := range allNetworks() {
		r.record(func(h *History) {
			h.Networks = append(h.Networks, NetworkInfo{n.name, r.definers(n.name)})
		})
		if r.isDefined(n.name) {
			continue
		}
		done := r.change(DefineNetwork, n.name)
		err := await(ctx, patience, "network "+n.name, func(ctx context.Context) error {
			state, definition, err := r.readNetwork(ctx, n.name)
			if err == nil && state != stateDefined {
				err = errors.New(state)
			}
			if err == nil {
				done(definition, true)
			}
			return err
		})
		if err != nil {
			return err
		}
		r.setDefined(n.name, true)
	}
	r.record(func(h *History) { h.Networks = append(h.Networks, NetworkInfo{aside, nil}) })
	return nil
}

// definers returns the names of the machines whose configurations contain the network's pools.
func (r *run) definers(network string) (out []string) {
	for _, m := range r.machines {
		if slices.ContainsFunc(m.takesPart(), func(p part) bool { return p.name == network && p.joins == byDefinition }) {
			out = append(out, m.node)
		}
	}
	return out
}

// onNetwork makes one fault on a network.
func (r *run) onNetwork(ctx context.Context, s Step) error {
	switch s.Kind {
	case DefineNetwork:
		return r.defineNetwork(ctx, s.Network, s.Pick)
	case DeleteNetwork:
		err := r.deleteNetwork(ctx, s.Network)
		if err == nil && s.Pick%2 == 1 && r.lastState(s.Network) == stateDeleted {
			err = r.wrongTimes(ctx, s)
		}
		return err
	case DeleteWhileAway:
		return r.withAgentsDown(ctx, s, func(ctx context.Context) error { return r.deleteNetwork(ctx, s.Network) })
	case ChangeNetwork:
		return r.changeNetwork(ctx, s.Network)
	case RewriteNetwork:
		return r.rewriteNetwork(ctx, s)
	case RevokeLease:
		return r.revokeLease(ctx, s)
	case SwitchBackend, StopSwitch, ReverseSwitch, RotateKeys:
		return r.switchNetwork(ctx, s)
	case StartInSwitch:
		return r.startInSwitch(ctx, s)
	case ForgeRecords:
		return r.forgeRecords(ctx, s)
	case LoseNetwork:
		r.operator.one.Lock()
		defer r.operator.one.Unlock()
		done := r.rewind(Rewind{Why: s.Kind, Network: s.Network})
		defer done()
		return r.onLeader(ctx, "delete a definition", func(ctx context.Context) error {
			return r.store.delete(ctx, networkKey(s.Network))
		})
	}
	return fmt.Errorf("there is no fault %s", s.Kind)
}

// readNetwork reads a network's record and returns its state and definition, as in Read.
func (r *run) readNetwork(ctx context.Context, name string) (state, definition string, err error) {
	var p *pair
	err = r.onLeader(ctx, "answer a read of a definition", func(ctx context.Context) (err error) {
		p, err = r.store.read(ctx, networkKey(name))
		return err
	})
	if err != nil {
		return "", "", err
	}
	state, definition = stateOf(p)
	return state, definition, nil
}

// change starts the record of a change of a network; done ends it.
func (r *run) change(why Kind, network string) (done func(definition string, recorded bool)) {
	i := 0
	r.record(func(h *History) {
		i = len(h.Changes)
		h.Changes = append(h.Changes, Change{Span: Span{r.now(), forever}, Network: network, Why: why})
	})
	return func(definition string, recorded bool) {
		r.record(func(h *History) {
			c := &h.Changes[i]
			c.To, c.Definition, c.Recorded = r.now(), definition, recorded
		})
	}
}

// defineNetwork defines a network with network apply, if pick is odd from a configuration of flannel.
func (r *run) defineNetwork(ctx context.Context, name string, pick int) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	done := r.change(DefineNetwork, name)
	r.setDefined(name, true)
	n := findNetwork(name)
	file, text := filepath.Join(r.Dir, name+".hcl"), fmt.Sprintf("network %q {\n%s}\n", name, n.definition(r.Options, 0, datapaths[0]))
	command := r.commandOf("network", "apply", file)
	if pick%2 == 1 {
		file, text = filepath.Join(r.Dir, name+".json"), n.flannel(r.Options)
		command = r.commandOf("network", "apply", "-from-flannel="+name, file)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	err := await(ctx, patience, "network "+name+" to be defined", func(ctx context.Context) error {
		out, err := r.operate(ctx, command...)
		if err != nil {
			return errors.Join(fmt.Errorf("%w: %s", err, out), sleep(ctx, r.Every))
		}
		state, definition, err := r.readNetwork(ctx, name)
		if err == nil && state != stateDefined {
			err = fmt.Errorf("its record is %s", state)
		}
		if err == nil {
			done(definition, true)
		}
		return err
	})
	r.operator.mu.Lock()
	r.operator.variant[name] = 0
	r.operator.mu.Unlock()
	r.say("network %s is defined by network apply", name)
	return err
}

// deleteNetwork deletes a network with network delete. If the store has just lost the network,
// there may be nothing to delete.
func (r *run) deleteNetwork(ctx context.Context, name string) error {
	const lostFor = 15 * time.Second
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	done := r.change(DeleteNetwork, name)
	begin := r.now()
	recorded := false
	err := await(ctx, patience, "network "+name+" to be deleted", func(ctx context.Context) error {
		out, err := r.operate(ctx, r.commandOf("network", "delete", "-force", name)...)
		state, _, readErr := r.readNetwork(ctx, name)
		if readErr != nil {
			return readErr
		}
		recorded = state == stateDeleted
		if recorded || state == stateMissing && r.now()-begin > lostFor {
			return nil
		}
		return errors.Join(fmt.Errorf("its record is %s; network delete: %v %s", state, err, out), sleep(ctx, r.Every/2))
	})
	r.setDefined(name, false)
	done("", recorded)
	r.say("network %s is deleted, with a record of that: %t", name, recorded)
	return err
}

// changeNetwork gives a network another definition that hosts can apply live. A definition that
// would take a subnet from a host is refused, and the network stays as it is.
func (r *run) changeNetwork(ctx context.Context, name string) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	r.operator.mu.Lock()
	variant := (r.operator.variant[name] + 1) % variants
	r.operator.mu.Unlock()
	backend := datapaths[0]
	if c, err := r.readBackends(ctx, name); err == nil && c.target().Type != "" {
		backend = c.target().Type
	}
	file, err := r.writeDefinition(name, variant, backend)
	if err != nil {
		return err
	}
	done := r.change(ChangeNetwork, name)
	return await(ctx, patience, "network "+name+" to be changed", func(ctx context.Context) error {
		out, err := r.operate(ctx, r.commandOf("network", "apply", file)...)
		refused := err != nil && strings.Contains(err.Error(), "was not changed")
		if err != nil && !refused {
			return errors.Join(fmt.Errorf("%w: %s", err, out), sleep(ctx, r.Every))
		}
		_, definition, err := r.readNetwork(ctx, name)
		if err != nil {
			return err
		}
		done(definition, true)
		if refused {
			r.say("network %s: a change is refused, since a host would lose its subnet", name)
			return nil
		}
		r.operator.mu.Lock()
		r.operator.variant[name] = variant
		r.operator.mu.Unlock()
		r.say("network %s is %s", name, definition)
		return nil
	})
}

// writeDefinition writes a network's definition to a file.
func (r *run) writeDefinition(name string, variant int, backend string) (path string, err error) {
	path = filepath.Join(r.Dir, name+".hcl")
	text := fmt.Sprintf("network %q {\n%s}\n", name, findNetwork(name).definition(r.Options, variant, backend))
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// rewriteNetwork writes a network's definition again with the same meaning: its members in another
// order and with other white space, or with times that are wrong.
func (r *run) rewriteNetwork(ctx context.Context, s Step) error {
	if s.Pick%2 == 1 {
		return r.wrongTimes(ctx, s)
	}
	return r.rewrite(ctx, s.Network, func(p *pair) ([]byte, error) {
		var members map[string]any
		if err := json.Unmarshal(p.value, &members); err != nil {
			return nil, err
		}
		indent := "  "
		if bytes.Contains(p.value, []byte("\n  ")) {
			indent = "\t"
		}
		return json.MarshalIndent(members, "", indent)
	})
}

// revokeLease takes a lease away from a host, which may be running or not.
func (r *run) revokeLease(ctx context.Context, s Step) error {
	n := findNetwork(s.Network)
	held, _, err := r.heldLeases(ctx, n, func(node string) bool { return node != "" })
	if err != nil || len(held) == 0 {
		return err
	}
	p := held[s.Pick%len(held)]
	victim, _ := recordOf(strings.TrimPrefix(p.key, leasesKey(n.name)), p)
	back := r.departure(Departure{Node: victim.Node, Network: n.name, Why: s.Kind})
	defer back()
	return await(ctx, patience, "the lease of "+victim.Node+" to be revoked", func(ctx context.Context) error {
		out, err := r.operate(ctx, r.commandOf("lease", "revoke", n.name, victim.Subnet.String())...)
		if now, readErr := r.store.read(ctx, p.key); err != nil && (readErr != nil || now != nil && now.version == p.version) {
			return errors.Join(fmt.Errorf("%w: %s", err, out), sleep(ctx, r.Every))
		}
		r.say("network %s: the lease of %s on %s is revoked", n.name, victim.Node, victim.Subnet)
		return nil
	})
}

// deleteAgain deletes networks that came back into the store after their deletion, as an operator
// would, until ctx ends. Whether they may come back is up to the rules.
func (r *run) deleteAgain(ctx context.Context) {
	back := map[string]int{} // how often each was seen in a row
	for sleep(ctx, 2*time.Second) == nil {
		for _, n := range allNetworks() {
			if r.lastState(n.name) != stateDefined || r.isDefined(n.name) {
				back[n.name] = 0
				continue
			}
			if back[n.name]++; back[n.name] < 3 {
				continue
			}
			r.say("network %s is back, deleting it again", n.name)
			if err := r.deleteNetwork(ctx, n.name); err != nil && ctx.Err() == nil {
				r.trouble("%v", err)
			}
			back[n.name] = 0
		}
	}
}

// lastState returns the state of a network's record at the last read.
func (r *run) lastState(network string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.h.Reads) - 1; i >= 0; i-- {
		if r.h.Reads[i].Network == network {
			return r.h.Reads[i].State
		}
	}
	return stateMissing
}

// A badRecord is a key with a value that leno cannot use.
type badRecord struct {
	key  string
	bad  string
	good []byte // the valid value, or nil if there should be none
}

// chooseBadRecords chooses records of one network, one of each kind: its definition, the lease of a
// host, a lease of an unused slot, and others without a meaning.
func (r *run) chooseBadRecords(ctx context.Context, s Step) (out []badRecord, err error) {
	var pairs []pair
	err = r.onLeader(ctx, "answer a read of everything", func(ctx context.Context) error {
		leader, err := r.store.leader(ctx)
		if err == nil {
			pairs, err = r.store.list(ctx, leader)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	n := findNetwork(s.Network)
	leases := leasesKey(n.name)
	taken := map[string]bool{}
	var held []pair
	for _, p := range pairs {
		key, _, _ := strings.Cut(p.key, "&")
		taken[key] = true
		if p.key == networkKey(n.name) {
			out = append(out, badRecord{p.key, `{"version":1,"name":`, p.value})
		}
		var value struct{ Node string }
		if strings.HasPrefix(p.key, leases) && p.session != "" && json.Unmarshal(p.record, &value) == nil && !r.silentNow(value.Node) {
			held = append(held, p)
		}
	}
	if len(held) > 0 {
		p := held[s.Pick%len(held)]
		out = append(out, badRecord{p.key, `{"version":1,"subnet":"nonsense"}`, p.value})
	}
	for slot := 1; slot < 255; slot++ {
		if key := fmt.Sprintf("10.%d.%d.0-24", n.number, slot); !taken[leases+key] {
			out = append(out, badRecord{leases + key, "{", nil}, badRecord{"leno/reservations/" + n.name + "/" + key, "[]", nil})
			break
		}
	}
	if r.hasConsul() { // etcd has no such records
		out = append(out, badRecord{"leno/changes/" + n.name + "/nonsense_nonsense", "nonsense", nil})
	}
	return append(out,
		badRecord{leases + "nonsense", "nonsense", nil},
		badRecord{networkKey("nonsense"), "nonsense", nil},
	), nil
}

func (r *run) putBad(ctx context.Context, records []badRecord) error {
	return r.onLeader(ctx, "write bad records", func(ctx context.Context) error {
		var errs []error
		for _, b := range records {
			errs = append(errs, r.store.write(ctx, b.key, []byte(b.bad)))
		}
		return errors.Join(errs...)
	})
}

// putGood replaces those of the records that are still bad by their valid values, or removes them.
// With lose, the definition is only removed.
func (r *run) putGood(ctx context.Context, records []badRecord, lose bool) error {
	return r.onLeader(ctx, "remove bad records", func(ctx context.Context) error {
		for _, b := range records {
			if err := r.putOneGood(ctx, b, lose); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *run) putOneGood(ctx context.Context, b badRecord, lose bool) error {
	p, err := r.store.read(ctx, b.key)
	if err != nil || p == nil || string(p.value) != b.bad {
		return err
	}
	network, isDefinition := strings.CutPrefix(b.key, networkKey(""))
	if b.good != nil && !(isDefinition && lose) {
		_, err = r.store.replace(ctx, *p, b.good)
		return err
	}
	if b.good != nil {
		done := r.rewind(Rewind{Why: LoseNetwork, Network: network})
		defer done()
	}
	_, err = r.store.replace(ctx, *p, nil)
	return err
}
