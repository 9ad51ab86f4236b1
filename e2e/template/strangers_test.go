package template

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	consul "github.com/hashicorp/consul/api"
)

// A record is a lease that another program than an agent might write.
type record map[string]any

// stranger returns a valid lease of slot k of network "default".
func stranger(k int) record {
	return record{"version": 1, "subnet": fmt.Sprintf("10.5.%d.0/24", k), "subnets": []string{fmt.Sprintf("10.5.%d.0/24", k), fmt.Sprintf("fd00:5:0:%x::/64", k)},
		"node": fmt.Sprintf("stranger-%d", k), "node_id": fmt.Sprintf("id-%d", k), "public_ip": fmt.Sprintf("192.0.2.%d", k), "public_ips": []string{fmt.Sprintf("192.0.2.%d", k)},
		"mtu": 1450, "backend": record{"type": "vxlan", "vni": 1}}
}

// with returns the record with a member changed, or without it if value is nil.
func (r record) with(name string, value any) record {
	out := maps.Clone(r)
	if out[name] = value; value == nil {
		delete(out, name)
	}
	return out
}

// key returns the key of the lease.
func (r record) key() string {
	return "leno/leases/default/" + strings.ReplaceAll(fmt.Sprint(r["subnet"]), "/", "-")
}

func (r record) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// put writes values without a session, or deletes those that are "". It uses transactions, because
// Consul refuses unprintable keys in paths.
func (w *world) put(values map[string]string) {
	w.t.Helper()
	var ops consul.TxnOps
	size := 0
	flush := func() {
		w.t.Helper()
		ok, answer, _, err := w.Consul.Client().Txn().Txn(ops, &consul.QueryOptions{Token: operatorToken})
		w.must(err)
		if !ok {
			w.t.Fatalf("%v", answer.Errors)
		}
		ops, size = nil, 0
	}
	for key, value := range values {
		if len(ops) == 128 || len(ops) > 0 && size+len(key)+len(value) > 256<<10 {
			flush()
		}
		size += len(key) + len(value)
		op := &consul.KVTxnOp{Verb: consul.KVSet, Key: key, Value: []byte(value)}
		if value == "" {
			op.Verb = consul.KVDelete
		}
		ops = append(ops, &consul.TxnOp{KV: op})
	}
	flush()
}

// strange returns values for keys below leno/leases/default. Some of them are valid; the agent
// decides which, not this list.
func strange() map[string]string {
	const leases = "leno/leases/default/"
	out := map[string]string{
		leases + "_":                        "the marker is not looked at",
		leases + "10.5.20.0-24":             "oops",
		leases + "10.5.21.0-24":             "{",
		leases + "10.5.22.0-24":             "[]",
		leases + "10.5.23.0-24":             "null",
		leases + "10.5.24.0-24":             `"text"`,
		leases + "10.5.25.0-24":             "1",
		leases + "10.5.26.0-24":             "true",
		leases + "10.5.27.0-24":             "{}",
		leases + "10.5.28.0-24":             stranger(28).String() + "}",
		leases + "10.5.29.0-24":             "\xff\xfe\x00",
		leases + "10.5.30.0-24":             strings.Repeat("[", 20000),
		leases + "10.5.31.0-24":             stranger(31).with("node", strings.Repeat("x", 300<<10)).String(),
		leases + "10.5.32.0-24":             stranger(32).String() + strings.Repeat(" ", 20<<10),
		leases + "10.5.33.0-24":             strings.Repeat(`{"subnets":`, 1000) + "1" + strings.Repeat("}", 1000),
		leases + "10.5.34.0-24":             strings.Replace(stranger(34).String(), `"host-`, `"host`, 1) + "\n\n",
		leases + "10.5.35.0-24/inside":      stranger(35).String(),
		leases + "10.5.36.0-24/":            stranger(36).String(),
		leases + "10.5.37.0-25":             stranger(37).String(),
		leases + "10.5.38.1-24":             stranger(38).String(),
		leases + "10.5.39.0-24; allow all":  stranger(39).String(),
		leases + "fd00.5.0.28..-64":         stranger(40).String(),
		leases + "0.0.0.0-0":                stranger(41).with("subnet", "0.0.0.0/0").with("subnets", []string{"0.0.0.0/0"}).String(),
		leases + "::-0":                     stranger(42).with("subnet", "::/0").with("subnets", []string{"::/0"}).String(),
		leases + "10.0.0.0-8":               stranger(43).with("subnet", "10.0.0.0/8").with("subnets", []string{"10.0.0.0/8"}).String(),
		leases + "10.9.0.0-24":              stranger(44).with("subnet", "10.9.0.0/24").with("subnets", []string{"10.9.0.0/24"}).String(),
		leases + "10.5.45.0-24\nallow all;": stranger(45).String(),
		"leno/leases/default2/10.5.46.0-24": stranger(46).String(),
		"leno/leases/defaul":                stranger(47).String(),
	}
	n := 50
	for _, change := range []struct {
		name   string
		values []any
	}{
		{"version", []any{nil, 2, 0, "1", true, []int{1}, -1, json.RawMessage("1.0"), json.RawMessage("1e0")}},
		{"subnet", []any{nil, "", "10.5.0.0/16", 5, []string{"x"}, "10.5.200.0/24"}},
		{"subnets", []any{nil, []string{}, "10.5.0.0/24", 5, true, false, 0, "", record{}, []any{1}, []any{nil}, []any{"10.5.0.0/24"}, []any{record{}},
			[]any{"; }\nallow all; #"}, []any{"10.5.300.0/24"}, []any{"10.5.SLOT.0/24", "fd00:5:0:1::/64"}, []any{"10.5.SLOT.0/24", "::/0"},
			[]any{"10.5.SLOT.0/24", "fd00:5:0:SLOTX::/64", "10.5.1.0/24"}, []any{"10.5.SLOT.0/24", "10.5.1.0/24"}, []any{"fd00:5:0:SLOTX::/64", "10.5.SLOT.0/24"},
			[]any{"10.5.SLOT.0/24"}, []any{"10.5.SLOT.0/24", "fd00:5:0:SLOTX::1/64"}, []any{"10.5.SLOT.0/24", "fd00:5:0::SLOTX::/64"}, []any{"10.5.SLOT.0/24\n"},
			[]any{"10.5.SLOT.0/024"}, []any{"10.5.SLOT.0/24", ":::::/64"}, []any{"10.5.SLOT.0/24", "1:2:3:4:5:6:7:8:9/64"}}},
		{"node", []any{nil, "", 5, []string{"a"}, record{"a": 1}, "host a", "wärme", `"quoted" \ name`, "line\nallow all;\n", "\u2028", "a\u0000b", "\x1b[2J", "\u202e",
			"; allow all;", "*/ }} {{ fail }}", "</script>", "$(reboot)`reboot`", strings.Repeat("n", 255), strings.Repeat("n", 256), strings.Repeat("ä", 128), "\ufffd"}},
		{"node_id", []any{nil, "", 5, "same\nline", "an id", []int{}}},
		{"public_ip", []any{nil, "", "192.0.2.1", 5, 0, false, []int{}, record{}, "host-a"}},
		{"public_ips", []any{nil, []string{}, false, record{}, "192.0.2.1", []any{1}, []any{"x"}, []any{"192.0.2.SLOT; allow all"}, []any{"0.0.0.0"}, []any{"127.0.0.1"}, []any{"224.0.0.1"},
			[]any{"255.255.255.255"}, []any{"::1"}, []any{"::"}, []any{"fe80::1"}, []any{"ff02::1"}, []any{"::ffff:192.0.2.1"}, []any{"::ffff:c000:201"}, []any{"fd00:5::1"},
			[]any{"10.5.1.1"}, []any{"192.0.2.SLOT", "192.0.2.SLOT"}, []any{"192.0.2.SLOT", "fd00:c0:2::SLOTX"}, []any{"192.0.2.SLOT", "1:2:3:4:5:6:7:8"},
			[]any{"192.0.2.SLOT", "1::8"}, []any{"192.0.2.SLOT", "1:2:3:4:5:6:7::"}, []any{"192.0.2.SLOT", "1::3:4:5:6:7:8"}, []any{"192.0.2.SLOT", "::2:3:4:5:6:7:8"},
			[]any{"192.0.2.SLOT", "1:2:3:4::5:6:7:8"}, []any{"192.0.2.SLOT", "1:2:3:4:5:6:7:8:"}, []any{"192.0.2.SLOT", "1::2::3"}, []any{"192.0.2.SLOT."}, []any{"192.0.2.SLOT", ":1"},
			[]any{"192.0.2.SLOT", "00001::"}, []any{"192.0.2"}, []any{"192.0.2.SLOT.1"}, []any{"192.0.02.1"}, []any{"unix:"}, []any{"all"}}},
		{"mtu", []any{nil, 0, 67, 68, 99, 999, 9216, 65535, 65536, 1e21, 1450.5, json.RawMessage("1450.0"), json.RawMessage("1.45e3"), -1450, "1450", "1450; allow all", []int{}}},
		{"backend", []any{nil, 5, "vxlan", []int{}, record{}, record{"type": 5}, record{"type": ""}, record{"type": "vxlan", "vni": "x"}, record{"type": "a\nb"}}},
	} {
		for _, value := range change.values {
			n++
			r := stranger(n).with(change.name, value)
			if change.name == "public_ips" { // a public_ip would contradict most of the values
				r = r.with("public_ip", nil)
			}
			text := strings.NewReplacer("SLOTX", fmt.Sprintf("%x", n), "SLOT", fmt.Sprint(n)).Replace(r.String())
			out[stranger(n).key()] = text
		}
	}
	return out
}
