package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// The suite cannot change the clock of one host alone. It changes the times that a host with another clock would have
// written: those in the agent's state, which an agent compares with its own clock, and those in records of networks.

// wrongBy returns by how much a clock is wrong: between 1 and 11 hours, ahead or behind.
func wrongBy(pick int) time.Duration {
	by := time.Duration(1+pick/2%11) * time.Hour
	if pick%2 == 1 {
		return -by
	}
	return by
}

// moveTimes adds to all times in a JSON value, but for those in records of networks that an agent remembers.
func moveTimes(value any, by time.Duration) any {
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			if name != "definition" {
				v[name] = moveTimes(member, by)
			}
		}
	case []any:
		for i := range v {
			v[i] = moveTimes(v[i], by)
		}
	case string:
		if t, err := time.Parse(time.RFC3339, v); err == nil && !t.IsZero() {
			return t.Add(by).Format(time.RFC3339)
		}
	}
	return value
}

// decode reads a JSON value with its numbers as they are written.
func decode(data []byte) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	err = decoder.Decode(&value)
	return value, err
}

// setClock moves the times that the agent of a host has saved. To the agent, its clock was set in the other direction.
func (m *machine) setClock(by time.Duration) error {
	files, err := filepath.Glob(filepath.Join(m.DataDir(), "*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		value, err := decode(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if text, err = json.Marshal(moveTimes(value, by)); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// wrongTimes writes a network's record again, as a host would have written it whose clock is wrong: a definition as if
// it had been restored by it, or a deletion.
func (r *run) wrongTimes(ctx context.Context, s Step) error {
	by := wrongBy(s.Pick / 2)
	r.say("network %s: the times in its record are wrong by %s", s.Network, by)
	return r.rewrite(ctx, s.Network, func(p *pair) ([]byte, error) {
		value, err := decode(p.value)
		if err != nil {
			return nil, err
		}
		record := value.(map[string]any)
		if own, ok := record["leno"].(map[string]any); ok { // in etcd
			record = own
		}
		if record["pools"] != nil && record["restored"] == nil {
			record["restored"] = time.Now().UTC().Format(time.RFC3339)
		}
		return json.Marshal(moveTimes(value, by))
	})
}

// rewrite replaces the value of a network's record by another one with the same meaning.
func (r *run) rewrite(ctx context.Context, name string, change func(*pair) ([]byte, error)) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	done := r.change(RewriteNetwork, name)
	return r.onLeader(ctx, "rewrite the record of "+name, func(ctx context.Context) error {
		p, err := r.store.read(ctx, networkKey(name))
		if err != nil {
			return err
		}
		state, definition := stateOf(p)
		if state != stateDefined && state != stateDeleted {
			return fmt.Errorf("network %s is %s", name, state)
		}
		value, err := change(p)
		if err != nil {
			return err
		}
		ok, err := r.store.replace(ctx, *p, value)
		if err == nil && !ok {
			err = errors.New("it was changed at the same time")
		}
		if err == nil {
			done(definition, true)
		}
		return err
	})
}
