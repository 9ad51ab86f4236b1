package soak

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// askTimeout bounds one look at an agent or the store. A stopped agent accepts connections and
// never responds.
const askTimeout = 3 * time.Second

// passing is the status of an agent without trouble.
const passing = api.Passing

// watchAgent looks at one machine's agent repeatedly until ctx ends.
func (r *run) watchAgent(ctx context.Context, m *machine) {
	var noticed int64               // bytes of the log that were read
	var watched, ended *lab.Process // the process seen last, and the last one whose end was seen
	views := map[string][]Entry{}
	for sleep(ctx, r.Every) == nil {
		node, p := m.now()
		if p == nil {
			continue
		}
		if p != watched {
			watched, noticed = p, 0
		}
		claims := r.ask(ctx, m, node)
		if ctx.Err() != nil {
			return
		}
		waited := m.waited(p)
		for i := range claims {
			c := &claims[i]
			c.Process, c.Waited = p.Pid(), waited
			if slices.Equal(c.View, views[c.Network]) {
				c.View = views[c.Network] // share equal views, because most looks see the same and a run can be long
			}
			views[c.Network] = c.View
		}
		text, err := readFrom(p.Log, noticed)
		if err != nil {
			r.trouble("read the log of the agent on %s: %v", node, err)
			continue
		}
		// The last line may be incomplete.
		text = text[:strings.LastIndexByte(text, '\n')+1]
		noticed += int64(len(text))
		notices := noticesIn(node, p.Pid(), text)
		now, same := m.now()
		r.record(func(h *History) {
			h.Notices = append(h.Notices, notices...)
			if now != node || same != p {
				return // a fault has ended it since
			}
			h.Claims = append(h.Claims, claims...)
			if !p.IsRunning() && ended != p {
				ended = p
				h.Endings = append(h.Endings, Ending{node, r.now(), lastLines(p.Output(), 5)})
			}
		})
	}
}

// ask looks at a machine's agent and returns a claim for each of its parts.
func (r *run) ask(ctx context.Context, m *machine, node string) []Claim {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	parts := m.takesPart()
	claims := make([]Claim, len(parts))
	from := r.now()
	var health api.Health
	var list api.NetworkList
	answered := m.get(ctx, "/healthz", &health) && m.get(ctx, "/v1/networks", &list)
	for i, p := range parts {
		c := &claims[i]
		*c = Claim{Node: node, Network: p.name}
		for _, n := range list.Networks {
			if n.Name == p.name && n.Local != nil {
				c.Subnets, c.Renewed = n.Local.Subnets, n.Local.Renewed.Sub(r.start)
			}
		}
		c.Status, c.Trouble = troubles(health, p.name)
		c.Ready = slices.ContainsFunc(health.Networks, func(n api.NetworkHealth) bool { return n.Network == p.name && n.Ready })
		var leases api.LeaseList
		answered = answered && m.get(ctx, "/v1/network/"+p.name+"/leases?memory=true", &leases)
		c.View = []Entry{}
		for _, l := range leases.Leases {
			c.View = append(c.View, Entry{l.Subnet, l.Node})
		}
		c.File, c.OldFile = p.subnetsInFile()
		if c.File == nil {
			c.File = m.subnetsInFile(p.name) // a reload has just moved the file
		}
	}
	for i := range claims {
		claims[i].Span, claims[i].Answered = Span{from, r.now()}, answered
		if !answered {
			claims[i].Subnets, claims[i].View = nil, nil
		}
	}
	return claims
}

// subnetsInFile returns the content of a network's subnet file where it is now, or nil if there is none.
func (m *machine) subnetsInFile(network string) []netip.Prefix {
	for _, p := range m.takesPart() {
		if p.name == network {
			subnets, _ := p.subnetsInFile()
			return subnets
		}
	}
	return nil
}

// subnetsInFile returns the content of the subnet file, or of the one at its former path, or nil if there is none. It
// also reports whether there still is one at the former path.
func (p part) subnetsInFile() (subnets []netip.Prefix, old bool) {
	subnets = fileSubnets(p.file)
	if p.former == p.file {
		return subnets, false
	}
	former := fileSubnets(p.former)
	if subnets == nil {
		subnets = former
	}
	return subnets, former != nil
}

// get reads a response of the machine's agent and reports whether there was one. A response that
// something does not exist or is not known yet counts as one without content.
func (m *machine) get(ctx context.Context, path string, into any) bool {
	status, body, err := m.Get(ctx, path)
	if err != nil {
		return false
	}
	if status != http.StatusOK && path != "/healthz" {
		return true
	}
	return json.Unmarshal([]byte(body), into) == nil
}

// fileSubnets returns the content of a subnet file, or nil if there is none.
func fileSubnets(path string) (out []netip.Prefix) {
	file, err := lab.ReadSubnetFile(path)
	if err != nil {
		return nil
	}
	for _, p := range file.Subnets() {
		out = append(out, p.Masked())
	}
	return out
}

// troubles returns the worst status of the agent's own checks and one network's, and the checks
// that are not passing.
func troubles(h api.Health, network string) (status, trouble string) {
	order := []string{"", api.Passing, api.Warning, api.Critical}
	var out []string
	checks := h.Checks
	for _, n := range h.Networks {
		if n.Network == network {
			checks = append(checks, n.Checks...)
		}
	}
	for _, c := range checks {
		if slices.Index(order, c.Status) > slices.Index(order, status) {
			status = c.Status
		}
		if c.Status != api.Passing {
			out = append(out, fmt.Sprintf("%s %s: %s", c.Name, c.Status, c.Reason))
		}
	}
	return status, strings.Join(out, "; ")
}

var moved = regexp.MustCompile(`\[ERROR\].*this host has another subnet now.* network=(\S+) subnet=([0-9a-f.:/]+)`)

// noticesIn returns the lines in an agent's log about its new subnets.
func noticesIn(node string, process int, log string) (out []Notice) {
	for _, m := range moved.FindAllStringSubmatch(log, -1) {
		if p, err := netip.ParsePrefix(m[2]); err == nil {
			out = append(out, Notice{node, m[1], process, p})
		}
	}
	return out
}

// readFrom returns the rest of a file from an offset.
func readFrom(path string, offset int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return "", err
	}
	text, err := io.ReadAll(file)
	return string(text), err
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// waits adds up how long processes waited for a CPU.
type waits struct {
	total time.Duration
	last  map[int]time.Duration // by process id
}

// waited returns how long the threads of the machine's agent and of its Consul agent have been
// ready to run without a CPU since the first look at them.
func (m *machine) waited(agent *lab.Process) time.Duration {
	pids := []int{agent.Pid()}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.client; c != nil && c.IsRunning() {
		pids = append(pids, c.Pid())
	}
	return m.waits.add(pids, runQueueWait)
}

func (w *waits) add(pids []int, wait func(pid int) time.Duration) time.Duration {
	now := map[int]time.Duration{}
	for _, pid := range pids {
		now[pid] = wait(pid)
		// The time of a thread disappears when it ends.
		w.total += max(0, now[pid]-w.last[pid])
	}
	w.last = now
	return w.total
}

// runQueueWait returns how long all threads of a process together have been ready to run without a
// CPU: the second number in /proc/PID/task/TID/schedstat.
func runQueueWait(pid int) (sum time.Duration) {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if fields := strings.Fields(string(text)); err == nil && len(fields) > 1 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}

// watchStore reads everything that leno has written repeatedly, from the server that responded last, until
// ctx ends.
func (r *run) watchStore(ctx context.Context) {
	server := 0
	var waited time.Duration
	last := map[string][]Record{}
	for sleep(ctx, r.Every/2) == nil {
		from := r.now()
		call, cancel := context.WithTimeout(ctx, askTimeout/2)
		pairs, err := r.store.list(call, server)
		cancel()
		waited += r.now() - from
		if err != nil {
			server = (server + 1) % len(r.StoreServers)
			continue
		}
		reads := readOf(pairs, Span{from, r.now()})
		for i := range reads {
			read := &reads[i]
			read.Waited = waited
			if slices.EqualFunc(read.Records, last[read.Network], sameRecord) {
				read.Records = last[read.Network]
			}
			last[read.Network] = read.Records
		}
		r.record(func(h *History) { h.Reads = append(h.Reads, reads...) })
	}
}

func sameRecord(a, b Record) bool {
	return a.Entry == b.Entry && a.Session == b.Session && slices.Equal(a.Subnets, b.Subnets)
}

// readOf extracts the records of the run's networks from one response.
func readOf(pairs []pair, at Span) []Read {
	byName := map[string]*Read{}
	reads := make([]Read, 0, len(allNetworks())+1)
	for _, n := range append(allNetworks(), findNetwork(aside)) {
		reads = append(reads, Read{Span: at, Network: n.name, State: stateMissing})
		byName[n.name] = &reads[len(reads)-1]
	}
	for _, p := range pairs {
		folder, name, _ := strings.Cut(strings.TrimPrefix(p.key, "leno/"), "/")
		network, key, isLease := strings.Cut(name, "/")
		read := byName[network]
		switch {
		case read == nil:
		case folder == "networks" && !isLease:
			if read.State, read.Definition = stateOf(&p); read.State == stateDefined {
				read.Backends, read.Slots = backendsOf(&p).all(), slotsOf(&p)
			}
		case folder == "leases":
			if record, ok := recordOf(key, p); ok {
				read.Records = append(read.Records, record)
			}
		}
	}
	return reads
}

// recordOf reads one lease. Of an invalid one it returns the subnet in the key; it ignores a key
// that is not a subnet.
func recordOf(key string, p pair) (Record, bool) {
	var value struct {
		Subnet  netip.Prefix
		Subnets []netip.Prefix
		Node    string
	}
	key, _, _ = strings.Cut(key, "&")
	subnet, err := netip.ParsePrefix(strings.Replace(key, "-", "/", 1)) // "10.5.34.0-24"
	if err != nil {
		return Record{}, false
	}
	if json.Unmarshal(p.record, &value) != nil || value.Subnet != subnet {
		return Record{Entry{subnet, ""}, []netip.Prefix{subnet}, p.session}, true
	}
	return Record{Entry{value.Subnet, value.Node}, value.Subnets, p.session}, true
}

// slotsOf returns the number of subnets in a network's first pool: the last subnet less the first one, and one, by the third
// byte of their addresses. It is 0 without limits.
func slotsOf(p *pair) int {
	var value struct {
		Pools []struct{ Min, Max netip.Addr }
	}
	if json.Unmarshal(p.record, &value) != nil || len(value.Pools) == 0 || !value.Pools[0].Max.Is4() {
		return 0
	}
	first, last := value.Pools[0].Min.As4(), value.Pools[0].Max.As4()
	return int(last[2]) - int(first[2]) + 1
}

// stateOf returns the content of a network's record. The definition does not depend on spaces and
// on the order of members, nor on how far the network has been switched to another backend.
func stateOf(p *pair) (state, definition string) {
	if p == nil {
		return stateMissing, ""
	}
	var value struct {
		Deleted time.Time
		Pools   []map[string]any
	}
	if json.Unmarshal(p.record, &value) != nil {
		return stateUnreadable, ""
	}
	if !value.Deleted.IsZero() {
		return stateDeleted, ""
	}
	pools, err := json.Marshal(value.Pools)
	target := backendsOf(p).target()
	options, optionsErr := json.Marshal(target.options)
	if cmp.Or(err, optionsErr) != nil || len(value.Pools) == 0 || target.Type == "" {
		return stateUnreadable, ""
	}
	return stateDefined, fmt.Sprintf("%s %s %s", pools, target.Type, options)
}
