package registrytest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
)

// unusable is one unusable record and the reason that is reported for it. name is the last component of its key; %s in
// value stands for the subnet in name.
type unusable struct{ name, value, reason string }

const (
	soundLease = `{"version":1,"subnet":"%s","subnets":["%[1]s"],"node":"host-x","node_id":"id-x",` +
		`"public_ip":"198.51.100.7","public_ips":["198.51.100.7"],"mtu":1450,"backend":{"type":"vxlan"}}`
	soundNetwork = `{"version":1,"name":"%s","pools":[{"prefix":"10.9.0.0/16","subnet_len":24}],"backend":{"type":"vxlan"}}`
	soundReserve = `{"version":1,"subnet":"%s","node":"host-x"}`
)

// with returns a sound record in which old, which it must contain, is replaced by other.
func with(sound, old, other string) string { return strings.Replace(sound, old, other, 1) }

// everyKind returns the faults that any record can have.
func everyKind(name func(i int) string, sound string) []unusable {
	values := []struct{ value, reason string }{
		{``, "empty value"},
		{strings.Repeat("x", registry.MaxRecordSize+1), "16385 bytes, at most 16384 are read"},
		{strings.Repeat("x", 500<<10), "512000 bytes, at most 16384 are read"},
		{"{\"version\":1,\"x\":\"\xff\xfe\"}", "not UTF-8"},
		{"\x00\x01\x02", "invalid character '\\x00' looking for beginning of value"},
		{`{"version":1`, "unexpected end of JSON input"},
		{`null`, "version is missing"},
		{`[1]`, "the record is not an object but: array"},
		{`"text"`, "the record is not an object but: string"},
		{strings.Repeat("[", 16000), "exceeded max depth"},
		{with(sound, `{`, `{"later":`+strings.Repeat("[", 16)+strings.Repeat("]", 16)+`,`), "nested deeper than 16"},
		{with(sound, `"version":1,`, ``), "version is missing, this leno reads version 1"},
		{with(sound, `"version":1`, `"version":2`), "version 2 is a newer leno's, this one reads version 1"},
		{`{"version":3,"subnet":{"v4":1},"pools":true,"node":[]}`, "version 3 is a newer leno's"},
		{with(sound, `"version":1`, `"version":-7`), "version -7, this leno reads version 1"},
		{with(sound, `"version":1`, `"version":"1"`), "version is not a whole number but: string"},
		{with(sound, `"version":1`, `"version":1,"Version":1`), `member "Version" is there twice`},
	}
	var out []unusable
	for i, v := range values {
		out = append(out, unusable{name(i), v.value, v.reason})
	}
	return out
}

// slotName returns the key of the i-th slot that no host of a test uses.
func slotName(i int) string { return fmt.Sprintf("10.5.%d.0-24", 20+i) }

// strangeNames are keys that leno never writes.
var strangeNames = []unusable{
	{"x", soundLease, "not ADDRESS-LENGTH"},
	{"10.5.34.0", soundLease, "not ADDRESS-LENGTH"},
	{"10.5.10.1-24", soundLease, "not the first address and length of a subnet"},
	{"010.5.11.0-24", soundLease, "not the first address and length of a subnet"},
	{"10.5.12.0-25", soundLease, "subnet 10.5.12.0/25: invalid: the network's subnets are /24"},
	{"10.9.0.0-24", soundLease, "subnet 10.9.0.0/24: invalid: outside the network"},
	{"fd00..-64", soundLease, "subnet fd00::/64: invalid: outside the network"},
	{"10.5.13.0-24/deeper", soundLease, "a folder or inside one"},
	{"folder/", "", "a folder or inside one"},
	{"10.5.14.0%2F24", soundLease, "not ADDRESS-LENGTH"},
	{"10.5.15.0-24?recurse", soundLease, "not the first address and length of a subnet"},
	{"#", soundLease, "not ADDRESS-LENGTH"},
	{"ü \"'<>&", soundLease, "not ADDRESS-LENGTH"},
	{"__", soundLease, "not ADDRESS-LENGTH"},
	{strings.Repeat("k", 2000), soundLease, "not ADDRESS-LENGTH"},
}

var unusableLeases = append(everyKind(slotName, soundLease), append([]unusable{
	{"10.5.60.0-24", with(soundLease, `"subnet":"%s"`, `"subnet":"10.5.61.0/24"`), "subnet 10.5.61.0/24 contradicts the key"},
	{"10.5.61.0-24", with(soundLease, `"subnet":"%s",`, ``), "subnet is missing"},
	{"10.5.62.0-24", with(soundLease, `["%[1]s"]`, `["%[1]s","10.5.63.0/24"]`), "2 subnets, the network has 1 pools"},
	{"10.5.63.0-24", with(soundLease, `["%[1]s"]`, `["0.0.0.0/0"]`), "subnets [0.0.0.0/0] are not those of slot 63"},
	{"10.5.64.0-24", with(soundLease, `["198.51.100.7"]`, `["198.51.100.7","198.51.100.7"]`), "public ip 198.51.100.7 is there twice"},
	{"10.5.65.0-24", with(soundLease, `"public_ip":"198.51.100.7","public_ips":["198.51.100.7"]`, `"public_ip":"224.0.0.1"`), "public ip 224.0.0.1 is not a host's unicast address"},
	{"10.5.66.0-24", with(soundLease, `"public_ip":"198.51.100.7","public_ips":["198.51.100.7"]`, `"public_ip":"10.5.200.1"`), "public ip 10.5.200.1 is inside the network"},
	{"10.5.67.0-24", with(soundLease, `"public_ip":"198.51.100.7","public_ips":["198.51.100.7"]`, `"public_ip":"::ffff:192.0.2.1"`), "public ip ::ffff:192.0.2.1 is not a host's unicast address"},
	{"10.5.68.0-24", with(soundLease, `"public_ip":"198.51.100.7","public_ips":["198.51.100.7"]`, `"public_ip":"fe80::1%%\u001b[2J"`), `public ip fe80::1%\x1b[2J is not a host's unicast address`},
	{"10.5.69.0-24", with(soundLease, `"public_ip":"198.51.100.7"`, `"public_ip":"198.51.100.8"`), "public_ip 198.51.100.8 is not the first of public_ips"},
	{"10.5.70.0-24", with(soundLease, `"node":"host-x"`, `"node":""`), "node is missing"},
	{"10.5.71.0-24", with(soundLease, `host-x`, strings.Repeat("x", 256)), "node has 256 bytes, at most 255"},
	{"10.5.72.0-24", with(soundLease, `host-x`, `\u001b]0;x\u0007`), `node "\x1b]0;x\a" has characters that cannot be printed`},
	{"10.5.73.0-24", with(soundLease, `host-x`, `\ud800`), "has characters that cannot be printed"},
	{"10.5.74.0-24", with(soundLease, `"node_id":"id-x",`, ``), "node_id is missing"},
	{"10.5.75.0-24", with(soundLease, `1450`, `0`), "mtu 0 is not within 68..65535"},
	{"10.5.76.0-24", with(soundLease, `1450`, `-1`), "mtu -1 is not within 68..65535"},
	{"10.5.77.0-24", with(soundLease, `1450`, `1000000000`), "mtu 1000000000 is not within 68..65535"},
	{"10.5.78.0-24", with(soundLease, `1450`, `1450.5`), "mtu is not a whole number but: number 1450.5"},
	{"10.5.79.0-24", with(soundLease, `{"type":"vxlan"}`, `"vxlan"`), "backend: not a JSON object"},
	{"10.5.80.0-24", with(soundLease, `{"type":"vxlan"}`, `{"vni":1}`), "backend type is missing"},
	{"10.5.81.0-24", with(soundLease, `{"type":"vxlan"}`, `{"type":"vxlan","x":`+strings.Repeat(`{"x":`, 15)+`1`+strings.Repeat(`}`, 15)+`}`), "nested deeper than 16"},
	{"10.5.82.0-24", with(soundLease, `{"type":"vxlan"}`, `{"type":"vxlan","x":"`+strings.Repeat("x", 20000)+`"}`), "at most 16384 are read"},
	{"10.5.83.0-24", with(soundLease, `"version":1,`, `"version":1,"node":"host-y",`), `member "node" is there twice`},
	{"10.5.84.0-24", soundNetwork, "subnet is missing"},
}, strangeNames...)...)

var unusableReservations = append(everyKind(slotName, soundReserve), append([]unusable{
	{"10.5.60.0-24", with(soundReserve, "%s", "10.5.61.0/24"), "subnet 10.5.61.0/24 contradicts the key"},
	{"10.5.61.0-24", with(soundReserve, `"subnet":"%s",`, ``), "subnet is missing"},
	{"10.5.62.0-24", with(soundReserve, `,"node":"host-x"`, ``), "a reservation names either a node or a node_id"},
	{"10.5.63.0-24", with(soundReserve, `"node"`, `"node_id":"y","node"`), "a reservation names either a node or a node_id"},
	{"10.5.64.0-24", with(soundReserve, `host-x`, strings.Repeat("x", 256)), "node has 256 bytes, at most 255"},
	{"10.5.65.0-24", with(soundReserve, `host-x`, `\u202e`), `node "\u202e" has characters that cannot be printed`},
	{"10.5.66.0-24", with(soundReserve, `"host-x"`, `7`), "node is not a string but: number"},
}, strangeNames...)...)

// unusableNetworks are keyed by network name, which %s in their values stands for.
var unusableNetworks = append(everyKind(func(i int) string { return fmt.Sprintf("bad-%d", i) }, soundNetwork), []unusable{
	{"renamed", with(soundNetwork, "%s", "other"), `name "other" in the value of "renamed"`},
	{"nameless", with(soundNetwork, `"name":"%s",`, ``), `name "" in the value of "nameless"`},
	{"no-pool", with(soundNetwork, `{"prefix":"10.9.0.0/16","subnet_len":24}`, ``), "a network needs at least one pool"},
	{"two-pools", with(soundNetwork, `"pools":[`, `"pools":[{"prefix":"10.9.0.0/17"},`), "2 IPv4 pools, a network has at most one"},
	{"many-pools", with(soundNetwork, `"pools":[`, `"pools":[`+strings.Repeat(`{},`, 4000)), "4001 pools, at most one an address family"},
	{"host-bits", with(soundNetwork, `10.9.0.0/16`, `10.9.0.1/16`), "did you mean 10.9.0.0/16?"},
	{"multicast", with(soundNetwork, `10.9.0.0/16`, `224.0.0.0/16`), "is not unicast address space for hosts"},
	{"too-long", with(soundNetwork, `:24`, `:31`), "subnet_len 31 is longer than 30"},
	{"too-few", with(soundNetwork, `:24`, `:17`), "subnet_len 17 leaves fewer than 4 subnets"},
	{"range", with(soundNetwork, `:24`, `:24,"min":"10.8.0.0"`), "min 10.8.0.0 is outside"},
	{"zone", with(soundNetwork, `:24`, `:24,"min":"fe80::1%%\u001b[2J"`), `min fe80::1%\x1b[2J is outside`},
	{"no-backend", with(soundNetwork, `,"backend":{"type":"vxlan"}`, ``), "backend type is missing"},
	{"backend-list", with(soundNetwork, `{"type":"vxlan"}`, `[]`), "backend: not a JSON object"},
	{"backend-steers", with(soundNetwork, `vxlan`, `\u009b2J`), `backend type "\u009b2J" has characters that cannot be printed`},
	{"folder/", "", "1 to 64 lower-case letters"},
	{"nested/default", soundNetwork, "1 to 64 lower-case letters"},
	{"-dash", soundNetwork, "1 to 64 lower-case letters"},
	{"a b", soundNetwork, "1 to 64 lower-case letters"},
	{"%2e%2e", soundNetwork, "1 to 64 lower-case letters"},
	{strings.Repeat("n", 65), soundNetwork, "1 to 64 lower-case letters"},
}...)

// putUnusable writes records whose keys have these first parts and returns the expected reasons by key.
func (s *suite) putUnusable(records []unusable, folder ...string) map[string]string {
	s.Helper()
	reasons := map[string]string{}
	for _, u := range records {
		subject := u.name
		if p, err := registry.ParseSubnetKey(u.name); err == nil {
			subject = p.String()
		}
		value := u.value
		if strings.Contains(value, "%") {
			value = fmt.Sprintf(value, subject)
		}
		key := s.key(append(slices.Clone(folder), u.name)...)
		if _, there := reasons[key]; there {
			s.Fatalf("%s is there twice", key)
		}
		reasons[key] = u.reason
		s.store.Put(s.T, key, []byte(value))
	}
	return reasons
}

// named checks that exactly these records are skipped, each for its reason and in one line of limited length.
func (s *suite) named(bad []registry.BadRecord, reasons map[string]string) {
	s.Helper()
	for _, b := range bad {
		reason, ok := reasons[b.Key]
		switch {
		case !ok:
			s.Errorf("%.80q is skipped: %s", b.Key, b.Reason)
		case !strings.Contains(b.Reason, reason):
			s.Errorf("%.80q: %q does not say %q", b.Key, b.Reason, reason)
		case len(b.Reason) > 400 || strings.Contains(b.Reason, "\n"):
			s.Errorf("%.80q: reason %q", b.Key, b.Reason)
		}
	}
	if len(bad) != len(reasons) {
		s.Errorf("%d records are skipped, want %d", len(bad), len(reasons))
	}
}

var unusableTests = []test{
	{"leases", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		c := s.claim(0)
		c.Prefer = n.Plan.Subnets(200)[0]
		good := s.acquire(r, n, c)
		// Members added by later versions of leno do no harm.
		extra := fmt.Sprintf(with(soundLease, `{`, `{"later":{"a":[1]},`), "10.5.201.0/24")
		s.store.Put(s.T, s.key("leases", n.Name, "10.5.201.0-24"), []byte(extra))
		reasons := s.putUnusable(unusableLeases, "leases", n.Name)
		for range 2 {
			set, _, err := r.WatchLeases(s.ctx(), n, 0)
			s.ok(err)
			s.equal("slots", slots(set.Leases), []uint64{200, 201})
			s.equal("lease", set.Leases[0], good)
			s.named(set.Bad, reasons)
			r = s.open()
		}
		for _, u := range unusableLeases {
			s.store.Delete(s.T, s.key("leases", n.Name, u.name))
		}
		set, _, err := r.WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.named(set.Bad, nil)
	}},
	{"reservations", func(s *suite) {
		n := s.network("default", wide)
		s.ok(s.open().AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(200)[0], Node: "host-x"}, false))
		other := []byte(`{"later":[],"version":1,"subnet":"10.5.201.0/24","node_id":"y"}`)
		s.store.Put(s.T, s.key("reservations", n.Name, "10.5.201.0-24"), other)
		reasons := s.putUnusable(unusableReservations, "reservations", n.Name)
		set, _, err := s.open().WatchReservations(s.ctx(), n, 0)
		s.ok(err)
		s.equal("slots", reservedSlots(set), []uint64{200, 201})
		s.named(set.Bad, reasons)
		// They block no host, except on their own slots.
		if l := s.acquire(s.open(), n, s.claim(0)); reasons[s.reservationKey(n, l.Slot)] != "" {
			s.Errorf("slot %d has an unusable reservation", l.Slot)
		}
	}},
	{"networks", func(s *suite) {
		good := s.network("default", wide)
		later := fmt.Sprintf(with(soundNetwork, `{`, `{"later":[],`), "later")
		s.store.Put(s.T, s.key("networks", "later"), []byte(later))
		reasons := s.putUnusable(unusableNetworks, "networks")
		r := s.open()
		set, _, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		s.equal("networks", names(set), []string{"default", "later"})
		s.equal("network", set.Networks[0], good)
		s.named(set.Bad, reasons)
		_, err = r.Network(s.ctx(), "renamed")
		s.wantErr(err, registry.ErrInvalid, `name "other" in the value of "renamed"`)
		// Only a caller that names the version it replaces can replace one.
		s.wantErr(r.PutNetwork(s.ctx(), s.definition("renamed", wide)), registry.ErrNetworkExists)
		s.ok(r.DeleteNetwork(s.ctx(), "renamed"))
		s.ok(r.PutNetwork(s.ctx(), s.definition("renamed", wide)))
	}},
}
