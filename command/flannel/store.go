package flannel

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	format "github.com/lenonet/leno/registry/flannel"
)

// Record is one key of flannel's store.
type Record struct {
	File    string    // the file it was read from
	Key     string    // /coreos.com/network/subnets/10.5.52.0-24, or the part after the prefix
	Value   string    // JSON
	Expires time.Time // zero if the export does not contain it
}

// envKey is not a key of flannel: it stands for the content of a host's file.
const envKey = "subnet.env"

var (
	subnetLike = regexp.MustCompile(`[0-9a-f:.]-[0-9]+$`)
	envLine    = regexp.MustCompile(`(?m)^FLANNEL_(IPV6_)?SUBNET=`)
)

// Store is flannel's data for one network.
type Store struct {
	Prefix string // prefix of its keys, "" if they have none
	Config *Record
	Leases []Lease
	InUse  map[netip.Prefix]string // subnets named by a host's subnet.env, with the file

	Skipped []api.Skipped // records that cannot be used
	Notes   []string
}

// Lease is one host's lease.
type Lease struct {
	Key         string
	Subnets     []netip.Prefix // IPv4 first, at most one per family
	PublicIPs   []netip.Addr   // IPv4 first
	BackendType string         // "" for udp
	Expires     time.Time
}

// Collect sorts records by kind. If there are several networks, prefix selects one. The error
// names the existing prefixes.
func Collect(records []Record, prefix string) (Store, error) {
	s := Store{InUse: map[netip.Prefix]string{}}
	prefix = strings.TrimSuffix(prefix, "/")
	prefixes := map[string]bool{}
	for _, r := range records {
		if p, kind := parseKey(r.Key); kind != "" && p != "" {
			prefixes[p] = true
		}
	}
	known := slices.Sorted(maps.Keys(prefixes))
	switch {
	case prefix != "" && !prefixes[prefix]:
		return s, fmt.Errorf("no key of flannel's below %s; there are keys below %s", prefix, orNone(known))
	case prefix == "" && len(known) > 1:
		return s, &PrefixError{known}
	case prefix == "" && len(known) == 1:
		prefix = known[0]
	}
	s.Prefix = prefix
	seen := map[string]Record{}
	for _, r := range records {
		if r.Key == envKey {
			s.readEnv(r)
			continue
		}
		p, kind := parseKey(r.Key)
		switch {
		case kind == "" && strings.HasPrefix(r.Key, prefix+"/"):
			s.Notes = append(s.Notes, fmt.Sprintf("%s is no key of flannel's and is left out", r.Key))
			continue
		case kind == "" && !strings.HasPrefix(r.Key, "/"):
			s.skip(r, "neither config nor a subnet such as 10.5.52.0-24")
			continue
		case kind == "", p != "" && p != prefix:
			continue // another program's key, or one of another network
		}
		name := path.Base(r.Key)
		if before, twice := seen[name]; twice {
			if !sameJSON(before.Value, r.Value) {
				s.skip(r, fmt.Sprintf("%s in %s says something else than in %s: keep the newer one", name, r.File, before.File))
			}
			continue
		}
		seen[name] = r
		if kind == format.ConfigKey {
			s.Config = &r
			continue
		}
		l, err := parseLease(r)
		if err != nil {
			s.skip(r, err.Error())
			continue
		}
		s.Leases = append(s.Leases, l)
	}
	slices.SortFunc(s.Leases, func(a, b Lease) int { return a.Subnets[0].Compare(b.Subnets[0]) })
	return s, nil
}

// PrefixError reports that there are several networks.
type PrefixError struct{ Prefixes []string }

func (e *PrefixError) Error() string {
	return fmt.Sprintf("keys of several networks, say which with -prefix: %s", strings.Join(e.Prefixes, ", "))
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "no prefix"
	}
	return strings.Join(list, ", ")
}

func (s *Store) skip(r Record, reason string) {
	s.Skipped = append(s.Skipped, api.Skipped{Key: r.Key, Reason: reason})
}

// parseKey returns a key's prefix and its kind: config, a subnet, or "" if it is not flannel's.
func parseKey(key string) (prefix, kind string) {
	dir, name := path.Dir(key), path.Base(key)
	if dir == "." {
		dir = ""
	}
	_, err := format.ParseSubnetKey(name)
	switch {
	case key == envKey:
		return "", ""
	case name == format.ConfigKey:
		return dir, format.ConfigKey
	case path.Base(dir) == format.SubnetsDir:
		if dir = path.Dir(dir); dir == "." {
			dir = ""
		}
		return dir, format.SubnetsDir
	case err == nil && dir == "":
		return "", format.SubnetsDir
	}
	return "", ""
}

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return a == b
	}
	xs, _ := json.Marshal(x)
	ys, _ := json.Marshal(y)
	return string(xs) == string(ys)
}

func parseLease(r Record) (Lease, error) {
	l := Lease{Key: r.Key, Expires: r.Expires}
	subnets, err := format.ParseSubnetKey(path.Base(r.Key))
	if err != nil {
		return l, err
	}
	value, err := format.ParseAttributes([]byte(r.Value))
	if err != nil {
		return l, err
	}
	l.Subnets, l.BackendType = subnets, value.BackendType
	l.PublicIPs = value.PublicIPs()
	return l, nil
}

// isEnv reports whether a text is a host's subnet.env.
func isEnv(text []byte) bool {
	return envLine.Match(text)
}

// readEnv reads which subnet a host uses from its subnet.env.
func (s *Store) readEnv(r Record) {
	for line := range strings.Lines(r.Value) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name != "FLANNEL_SUBNET" && name != "FLANNEL_IPV6_SUBNET" {
			continue
		}
		p, err := netip.ParsePrefix(strings.Trim(value, `"`))
		if err != nil {
			s.Skipped = append(s.Skipped, api.Skipped{Key: r.File, Reason: fmt.Sprintf("%s=%s is not a subnet", name, value)})
			continue
		}
		s.InUse[p.Masked()] = r.File
	}
}
