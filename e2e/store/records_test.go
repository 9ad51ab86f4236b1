package store

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	lenoapi "github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestUnusableRecords overwrites the definition, a reservation and the lease of a stopped host with
// invalid data, and writes keys with terminal control characters: lists and health name all of
// them, and packets flow.
func TestUnusableRecords(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.Start(func(h *lab.Host) []string { // long TTL: a host without a session overwrites no invalid record
		return []string{"lease {\n  ttl = \"10m\"\n}", h.Network("default", world.Plan("vxlan"))}
	})
	w.Settle("default")
	for _, h := range w.Hosts {
		w.Container(h, "default")
	}
	a, b := w.Hosts[0], w.Hosts[1]
	subnet := w.Subnet(b, "default")
	definition, _, err := w.Consul.Client().KV().Get("leno/networks/default", nil)
	w.Must(err)
	deleted := w.RouteEvents(a)
	for _, to := range w.Containers[1].Addrs {
		w.Eventually("packets to cross", func(context.Context) error { return w.Pinged(w.Containers[0], to) })
	}
	w.Must(b.KillAgent())

	free := w.Free("default")
	reservation := "leno/reservations/default/" + key(free.String())
	const steering = "leno/leases/default/\x1b[2J\u202e"
	values := map[string]string{
		world.LeaseKey("default", subnet): "oops",
		steering:                          `{"version":1}`,
		reservation:                       fmt.Sprintf(`{"version":1,"subnet":%q}`, free),
		"leno/networks/default":           `{"version":2}`,
		"leno/networks/other":             `{`,
	}
	var ops api.TxnOps
	for key, value := range values {
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: []byte(value)}})
	}
	w.transact(ops)

	lists := map[string]map[string]string{ // by command: the keys and the words for them in the list
		"lease list":       {world.LeaseKey("default", subnet): "what stood there before stays in use", steering: "not ADDRESS-LENGTH"},
		"reservation list": {reservation: "names either a node or a node_id"},
		"network list":     {"leno/networks/default": "version 2 is a newer leno's", "leno/networks/other": "unexpected end"},
	}
	for command, want := range lists {
		args := strings.Fields(command)
		w.Eventually(command+" to name them", func(ctx context.Context) error {
			text, err := a.Leno(ctx, append(args, "-format=json")...)
			if err != nil {
				return err
			}
			var list struct{ Skipped []lenoapi.Skipped }
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				return err
			}
			if len(list.Skipped) != len(want) {
				return fmt.Errorf("skipped %+v", list.Skipped)
			}
			for _, s := range list.Skipped {
				if said, ok := want[s.Key]; !ok || !strings.Contains(s.Reason, said) {
					return fmt.Errorf("%q: %s", s.Key, s.Reason)
				}
			}
			table, err := a.Leno(ctx, args...)
			if err == nil && (!strings.Contains(table, "Skipped ") || strings.ContainsAny(text+table, "\x1b\u202e")) {
				err = fmt.Errorf("%q", table)
			}
			return err
		})
	}
	w.WaitHealth(a, http.StatusTooManyRequests, "3 records skipped (see `leno lease list` and `leno reservation list`)",
		"2 records skipped (see `leno network list`)", "the one before stays in force")
	w.Matrix()
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
	if strings.ContainsAny(a.Agent().Output(), "\x1b\u202e") {
		t.Error("the log steers terminals")
	}

	// b restores its own record. Records written by people must be restored by people. Consul
	// refuses unprintable keys in paths but accepts them in transactions.
	ops = nil
	for key := range values {
		if key != world.LeaseKey("default", subnet) && key != definition.Key {
			ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: key}})
		}
	}
	ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: definition.Key, Value: definition.Value}})
	w.transact(ops)
	w.Must(b.RestartAgent())
	w.Must(b.WaitReady(w.Ctx))
	if now := w.Subnet(b, "default"); now != subnet {
		t.Errorf("host-b is on %s, was on %s", now, subnet)
	}
	_, err = a.Leno(w.Ctx, "reservation", "list") // health would notice within a minute
	w.Must(err)
	w.WaitHealth(a, http.StatusOK)
	w.Matrix()
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
}
