package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

// now is the time of every test.
var now = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

// fakeAgent serves the agent's HTTP API for a fixed host and records changes.
type fakeAgent struct {
	registry string // as status shows it, "" for Consul
	url      string

	mu           sync.Mutex
	requests     []string // method, path and token of every write
	tokens       int      // of all requests
	health       api.Health
	networks     []api.Network
	leases       []api.Lease
	skipped      []api.Skipped
	reservations []api.Reservation
	left         []api.Reservation // of networks that are not defined
	peers        []api.Peer
	hosts        []api.Host
	strays       map[string]uint64
	events       []api.Event
	totals       *api.Counters
	probe        api.Probe
	probed       api.ProbeRequest // the last one
	refuseProbe  *api.Error
	switching    api.NetworkSwitch
	switchStates []api.NetworkSwitch        // what readings return first, one after the other
	begun        *api.NetworkSwitch         // what a change of the switch returns; nil for switching
	plans        map[string]api.NetworkPlan // of networks that would change
	findings     []api.Finding
	refuse       *api.Error // response to every write
	raced        bool       // networks change between read and write

	index  uint64        // of every response
	moved  chan struct{} // closed and replaced by set
	prompt bool          // reads do not block
	down   bool          // every response is an error
	reads  int
	looks  int // reads of health

	boot, namespace string // of its kernel
	isDelivered     bool   // packets that are traced arrive
}

// traced returns the trace of packets from a container of host-a to one of host-b, in which its route loses them.
func (f *fakeAgent) traced(r api.TraceRequest) api.Trace {
	out := api.Trace{Node: "host-a", Network: "default", Protocol: cmp.Or(r.Protocol, "icmp"), Port: r.Port,
		Source:      api.TraceEnd{Address: r.Source, Node: "host-a", PublicIPs: []netip.Addr{addr("192.0.2.77")}, Container: true},
		Destination: api.TraceEnd{Address: r.Destination, Node: "host-b"},
		Arrived:     api.ArrivedNo, Why: "5 ICMP echo requests of 64 bytes: no answer",
	}
	hop := func(stage, where, status, saw, do string) {
		out.Stages = append(out.Stages, api.TraceHop{Stage: stage, Node: "host-a", Where: where, Status: status, Saw: saw, Do: do})
	}
	hop("container", "/run/netns/web", api.HopOK, "10.5.34.2 on eth0, up, MTU 1450", "")
	if f.isDelivered {
		out.Arrived, out.Why = api.ArrivedYes, "5 ICMP echo requests of 64 bytes: 5 answered"
	} else {
		hop("container route", "/run/netns/web", api.HopLost, "the container has no route to 10.5.35.2: network is unreachable",
			"`nsenter --net=/run/netns/web ip route add default via 10.5.34.1 dev eth0`")
	}
	hop("rules", "iptables and nftables", api.HopOK, "no rule drops these packets, and no counter of such a rule moved", "")
	if f.isDelivered {
		hop("answer", "10.5.35.2", api.HopOK, out.Why, "")
	}
	return out
}

// set changes what the agent returns, and wakes blocking reads.
func (f *fakeAgent) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.moved)
	f.moved = make(chan struct{})
}

// block blocks as long as a read requests; mu is held before and after.
func (f *fakeAgent) block(r *http.Request) {
	f.reads++
	q := r.URL.Query()
	for !f.prompt && !f.down && q.Get("index") == strconv.FormatUint(f.index, 10) {
		moved := f.moved
		f.mu.Unlock()
		select {
		case <-moved:
		case <-r.Context().Done():
		}
		f.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func newFakeAgent(t *testing.T) *fakeAgent {
	t.Helper()
	f := &fakeAgent{index: 60, moved: make(chan struct{}),
		health: api.Health{Status: api.Passing, Ready: true,
			Checks:   []api.Check{{Name: "consul", Status: api.Passing, Since: now.Add(-time.Hour)}},
			Networks: []api.NetworkHealth{{Network: "default", Status: api.Passing, Ready: true, Checks: []api.Check{}}}},
		networks: []api.Network{
			{Name: "blue", ModifyIndex: 31, Backend: json.RawMessage(`{"type":"alloc"}`),
				Pools: []api.Pool{{Prefix: prefix("10.9.0.0/20"), SubnetLen: 24, Min: addr("10.9.1.0"), Max: addr("10.9.15.0")}}},
			{Name: "default", ModifyIndex: 42, Backend: json.RawMessage(`{"type":"vxlan","vni":1,"port":8472,"direct_routing":false}`),
				Pools: []api.Pool{
					{Prefix: prefix("10.5.0.0/16"), SubnetLen: 24, Min: addr("10.5.1.0"), Max: addr("10.5.255.0")},
					{Prefix: prefix("fd00:5::/48"), SubnetLen: 64, Min: addr("fd00:5:0:1::"), Max: addr("fd00:5:0:ffff::")}},
				Local: &api.Local{State: "running", MTU: 1450, MTUReason: "1450 = 1500 of eth0 - 50 for VXLAN over IPv4",
					Notes: []string{"checksum offload on: no fault is known of Linux 6.18.4 with the driver virtio_net"}, Backend: "vxlan", Link: "leno-default",
					Subnets: []netip.Prefix{prefix("10.5.34.0/24"), prefix("fd00:5:0:22::/64")}, SubnetFile: "/run/leno/default.env",
					Underlay: api.Underlay{Interface: "eth0", MTU: 1500, Addresses: []netip.Addr{addr("192.0.2.34")}, Reason: "the IPv4 default route leaves through it"},
					Peers:    1, Applied: now.Add(-4 * time.Second), Renewed: now.Add(-31 * time.Second), ModifyIndex: 42}},
		},
		leases: []api.Lease{
			{Subnet: prefix("10.5.34.0/24"), Subnets: []netip.Prefix{prefix("10.5.34.0/24"), prefix("fd00:5:0:22::/64")},
				Node: "host-a", NodeID: "6f1c9d1e-0000-4000-8000-000000000001", PublicIPs: []netip.Addr{addr("192.0.2.34")}, MTU: 1450,
				Backend: json.RawMessage(`{"type":"vxlan","vni":1,"port":8472,"vtep_mac":"0a:58:00:00:00:01"}`), Held: true, Own: true, ModifyIndex: 50},
			{Subnet: prefix("10.5.77.0/24"), Subnets: []netip.Prefix{prefix("10.5.77.0/24"), prefix("fd00:5:0:4d::/64")},
				Node: "host-b", NodeID: "6f1c9d1e-0000-4000-8000-000000000002", PublicIPs: []netip.Addr{addr("192.0.2.77")}, MTU: 1450,
				Backend: json.RawMessage(`{"type":"vxlan"}`), LapsedSeconds: 11_000, ModifyIndex: 51},
		},
		skipped: []api.Skipped{},
		events: []api.Event{
			{Index: 58, Time: now.Add(-26 * time.Hour), Kind: api.EventAgent, Severity: api.Info, Message: "agent started, version 0.1.0"},
			{Index: 59, Time: now.Add(-62 * time.Second), Network: "default", Kind: api.EventPeer, Severity: api.Warning,
				Message: "the lease of host-b on 10.5.77.0/24 lapsed, its routes stay", Fields: map[string]string{"host": "host-b"}},
			{Index: 60, Time: now, Network: "blue", Kind: api.EventCheck, Severity: api.Critical, Message: "device: operation not permitted; run the agent as root or with the rights it needs, and restart it",
				Fields: map[string]string{"check": "device", "status": api.Critical}},
		},
		reservations: []api.Reservation{{Subnet: prefix("10.5.40.0/24"), Node: "host-c"}, {Subnet: prefix("10.5.41.0/24"), NodeID: "6f1c9d1e-0000-4000-8000-000000000004"}},
		switching:    api.NetworkSwitch{From: "vxlan", Hosts: []api.HostChange{}, ModifyIndex: 9},
		plans: map[string]api.NetworkPlan{
			"default": {Name: "default", Action: api.ActionUpdate, ModifyIndex: 42,
				Changes: []api.Change{{Field: "backend.direct_routing", From: "false", To: "true"}, {Field: "ipv4.max", From: "10.5.255.0", To: "10.5.64.0"},
					{Field: "ipv6.prefix", From: "fd00:5::/48"}},
				Hosts: []api.HostChange{
					{Node: "host-a", Subnet: prefix("10.5.34.0/24"), Held: true, What: []string{"keeps 10.5.34.0/24", "loses fd00:5:0:22::/64"}},
					{Node: "host-b", Subnet: prefix("10.5.77.0/24"), What: []string{"takes another subnet: 10.5.77.0/24 is outside the new range"}}},
				Refused: []api.Refusal{{Reason: "containers on host-a (10.5.34.0/24) would lose their addresses of one family",
					Way: "define a second network with the new values, move the containers to it, then delete this one", Force: true}}},
			"green": {Name: "green", Action: api.ActionCreate, Hosts: []api.HostChange{}, Refused: []api.Refusal{},
				Changes: []api.Change{{Field: "backend.type", To: "host-gw"}, {Field: "ipv4.prefix", To: "10.7.0.0/16"}}},
		},
		findings: []api.Finding{
			{Check: "consul", Status: api.FindingOK, Tried: "read a key", Saw: "consul at 127.0.0.1:8500 answers"},
			{Check: "peers", Status: api.FindingOK, Network: "default", Tried: "send packets", Saw: "64 of 64 hosts asked, of 900, answer, in 0.2 to 14.1 ms"}},
		peers: []api.Peer{{Node: "host-b", Subnets: []netip.Prefix{prefix("10.5.77.0/24")}, PublicIPs: []netip.Addr{addr("192.0.2.77")}, Backend: "vxlan", Held: true}},
	}
	for i, l := range f.leases {
		h := api.Host{Node: l.Node, Subnets: l.Subnets, PublicIPs: l.PublicIPs, Backend: "vxlan", MTU: 1450, Held: true, Own: i == 0, State: api.Passing,
			Member: "alive", Summary: &api.HostSummary{Version: "0.1.0", Health: api.Passing, Backend: "vxlan", PublicIP: l.PublicIPs[0].String(),
				MTU: 1450, Peers: 1, Reached: 1, At: now.Add(-12 * time.Second)}}
		if !h.Own {
			h.Path = &api.PeerPath{State: api.PathReached, RTT: 0.0003, Since: now.Add(-time.Hour), Tested: now.Add(-3 * time.Second), MTU: 1450}
			h.Seen = h.Path.Tested
		}
		f.hosts = append(f.hosts, h)
	}
	f.probe = api.Probe{Network: "default", Findings: []api.Finding{}, Peers: []api.PeerProbe{{Node: "host-b", Held: true, Reached: true, Ways: []api.ProbedWay{
		probed(api.PathOverlay, "10.5.34.0", "10.5.77.0", 1450), probed(api.PathUnderlay, "192.0.2.34", "192.0.2.77", 1500)}}}}
	srv := httptest.NewServer(f.routes())
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

// probed returns a path without a fault.
func probed(path, from, to string, mtu int) api.ProbedWay {
	return api.ProbedWay{Path: path, From: addr(from), To: addr(to), MTU: mtu, Answer: "echo reply", Largest: mtu,
		Small: api.ProbedSize{Bytes: 64, Sent: 3, Answered: 3, MinMS: 0.081, AvgMS: 0.094, MaxMS: 0.112},
		Full:  api.ProbedSize{Bytes: mtu, Sent: 3, Answered: 3, MinMS: 0.102, AvgMS: 0.131, MaxMS: 0.18}}
}

func (f *fakeAgent) routes() http.Handler {
	mux := http.NewServeMux()
	health := func(code func(api.Health) int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.looks++
			if f.down {
				write(w, 500, &api.Error{Code: 500, Message: "it is away"})
				return
			}
			write(w, code(f.health), f.health)
		}
	}
	mux.HandleFunc("GET /healthz", health(func(h api.Health) int {
		return map[string]int{api.Passing: 200, api.Warning: 429, api.Critical: 503}[h.Status]
	}))
	mux.HandleFunc("GET /readyz", health(func(h api.Health) int {
		if h.Ready {
			return 200
		}
		return 503
	}))
	for pattern, handler := range map[string]func(*http.Request) (any, *api.Error){
		"GET /v1/agent/self": func(*http.Request) (any, *api.Error) {
			return api.Self{Version: "0.1.0", NodeName: "host-a", NodeID: "6f1c9d1e-0000-4000-8000-000000000001", PID: 4711,
				BootID: f.boot, NetworkNamespace: f.namespace,
				Registry: cmp.Or(f.registry, "consul at 127.0.0.1:8500"),
				Started:  now.Add(-26 * time.Hour), Networks: []string{"default"}, ConfigFiles: []string{},
				Firewall: &api.Firewall{Kind: "iptables-nft", Reason: "/usr/sbin/iptables v1.8.9 is installed and works"}}, nil
		},
		"PUT /v1/agent/doctor": func(r *http.Request) (any, *api.Error) {
			return api.Diagnosis{Node: "host-a", Agent: true, Active: r.URL.Query().Get("passive") == "", Took: 480 * time.Millisecond, Findings: f.findings}, nil
		},
		"POST /v1/agent/trace": func(r *http.Request) (any, *api.Error) {
			var request api.TraceRequest
			if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
				return nil, &api.Error{Code: http.StatusBadRequest, Message: err.Error()}
			}
			return f.traced(request), nil
		},
		"PUT /v1/agent/reload": func(*http.Request) (any, *api.Error) {
			return api.Reloaded{Changed: []api.Change{{Field: "log_level", From: `"INFO"`, To: `"DEBUG"`}, {Field: "consul.token", From: "set", To: "set"}},
				Warnings: []string{"network blue: old subnet file could not be removed: permission denied"}}, nil
		},
		"GET /v1/networks": func(*http.Request) (any, *api.Error) {
			return api.NetworkList{Networks: f.networks, Skipped: f.skipped}, nil
		},
		"GET /v1/network/{network}": func(r *http.Request) (any, *api.Error) { return f.network(r) },
		"PUT /v1/network/{network}": f.putNetwork,
		"GET /v1/network/{network}/switch": func(*http.Request) (any, *api.Error) {
			if len(f.switchStates) == 0 {
				return f.switching, nil
			}
			now := f.switchStates[0]
			f.switchStates = f.switchStates[1:]
			return now, nil
		},
		"PUT /v1/network/{network}/switch": func(*http.Request) (any, *api.Error) {
			if f.begun != nil {
				return *f.begun, nil
			}
			return f.switching, nil
		},
		"POST /v1/network/{network}/plan": func(r *http.Request) (any, *api.Error) {
			if p, ok := f.plans[r.PathValue("network")]; ok {
				return p, nil
			}
			p := api.NetworkPlan{Name: r.PathValue("network"), Action: api.ActionCreate, Changes: []api.Change{}, Hosts: []api.HostChange{}, Refused: []api.Refusal{}}
			if n, err := f.network(r); err == nil {
				p.Action, p.ModifyIndex = api.ActionNone, n.ModifyIndex
			}
			return p, nil
		},
		"DELETE /v1/network/{network}": func(r *http.Request) (any, *api.Error) {
			n, err := f.network(r)
			if err == nil && n.Name == "default" && r.URL.Query().Get("force") != "true" {
				err = &api.Error{Code: 409, Message: "network default is in use by 1 host (host-a): force=true takes it from them"}
			}
			return struct{}{}, err
		},
		"GET /v1/network/{network}/leases": func(r *http.Request) (any, *api.Error) {
			_, err := f.network(r)
			return api.LeaseList{Leases: f.leases, Skipped: f.skipped}, err
		},
		"GET /v1/network/{network}/lease/{subnet}":    func(r *http.Request) (any, *api.Error) { return f.lease(r) },
		"DELETE /v1/network/{network}/lease/{subnet}": func(r *http.Request) (any, *api.Error) { return f.lease(r) },
		"PUT /v1/network/{network}/renew": func(r *http.Request) (any, *api.Error) {
			_, err := f.network(r)
			return api.Renewal{Subnet: f.leases[0].Subnet, Renewed: now, SafeUntil: now.Add(2 * time.Minute)}, err
		},
		"PUT /v1/network/{network}/release": func(r *http.Request) (any, *api.Error) { return f.network(r) },
		"GET /v1/agent/events": func(r *http.Request) (any, *api.Error) {
			out := api.EventList{Events: []api.Event{}}
			after, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
			for _, e := range f.events {
				if name := r.URL.Query().Get("network"); (name == "" || name == e.Network) && e.Index > after {
					out.Events = append(out.Events, e)
				}
			}
			return out, nil
		},
		"GET /v1/network/{network}/reservations": func(r *http.Request) (any, *api.Error) {
			_, err := f.network(r)
			if err != nil && f.left != nil {
				return api.ReservationList{Reservations: f.left, Skipped: []api.Skipped{}}, nil
			}
			return api.ReservationList{Reservations: f.reservations, Skipped: []api.Skipped{}}, err
		},
		"PUT /v1/network/{network}/reservation/{subnet}": func(r *http.Request) (any, *api.Error) {
			var v api.Reservation
			if err := json.NewDecoder(r.Body).Decode(&v); err != nil || key(v.Subnet) != r.PathValue("subnet") {
				return nil, &api.Error{Code: 400, Message: fmt.Sprintf("request body: %v", err)}
			}
			return v, nil
		},
		"DELETE /v1/network/{network}/reservation/{subnet}": func(r *http.Request) (any, *api.Error) { return f.network(r) },
		"POST /v1/network/{network}/probe": func(r *http.Request) (any, *api.Error) {
			if _, err := f.network(r); err != nil {
				return nil, err
			}
			f.probed = api.ProbeRequest{}
			if err := json.NewDecoder(r.Body).Decode(&f.probed); err != nil {
				return nil, &api.Error{Code: 400, Message: err.Error()}
			}
			return f.probe, f.refuseProbe
		},
		"GET /v1/network/{network}/hosts": func(r *http.Request) (any, *api.Error) {
			_, err := f.network(r)
			return api.HostList{Hosts: f.hosts}, err
		},
		"GET /v1/agent/config": func(*http.Request) (any, *api.Error) {
			return api.Configuration{Files: []string{}, Settings: []api.Setting{{Name: "http.address", Value: `"127.0.0.1:5366"`}}}, nil
		},
		"GET /v1/network/{network}/peers": func(r *http.Request) (any, *api.Error) {
			_, err := f.network(r)
			return api.PeerList{Peers: f.peers, Drops: f.strays, Totals: f.totals}, err
		},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if r.Header.Get("X-Consul-Token") != "" {
				f.tokens++
			}
			if r.Method != http.MethodGet && r.Method != http.MethodPost {
				f.requests = append(f.requests, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("X-Consul-Token"))
				if f.refuse != nil {
					write(w, f.refuse.Code, f.refuse)
					return
				}
			}
			f.block(r)
			if f.down {
				write(w, 500, &api.Error{Code: 500, Message: "it is away"})
				return
			}
			w.Header().Set("X-Leno-Index", strconv.FormatUint(f.index, 10))
			if out, err := handler(r); err != nil {
				write(w, err.Code, err)
			} else {
				write(w, 200, out)
			}
		})
	}
	return mux
}

func write(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func key(p netip.Prefix) string { return fmt.Sprintf("%s-%d", p.Addr(), p.Bits()) }

func (f *fakeAgent) network(r *http.Request) (api.Network, *api.Error) {
	var names []string
	for _, n := range f.networks {
		if n.Name == r.PathValue("network") {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return api.Network{}, &api.Error{Code: 404,
		Message: fmt.Sprintf("network %q: network is not defined: known are %s", r.PathValue("network"), strings.Join(names, ", "))}
}

func (f *fakeAgent) putNetwork(r *http.Request) (any, *api.Error) {
	var in api.Network
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, &api.Error{Code: 400, Message: err.Error()}
	}
	i := slices.IndexFunc(f.networks, func(n api.Network) bool { return n.Name == r.PathValue("network") })
	switch {
	case f.raced, i >= 0 && in.ModifyIndex != f.networks[i].ModifyIndex, i < 0 && in.ModifyIndex != 0:
		return nil, &api.Error{Code: 409, Message: "changed meanwhile"}
	case i < 0:
		f.networks = append(f.networks, api.Network{})
		i = len(f.networks) - 1
	}
	for _, refusal := range f.plans[r.PathValue("network")].Refused {
		if !refusal.Force || r.URL.Query().Get("force") != "true" {
			return nil, &api.Error{Code: 409, Message: "network default was not changed: " + refusal.Reason + " (" + refusal.Way + ")"}
		}
	}
	in.ModifyIndex = 99
	f.networks[i] = in
	return in, nil
}

func (f *fakeAgent) lease(r *http.Request) (api.Lease, *api.Error) {
	n, err := f.network(r)
	if err != nil {
		return api.Lease{}, err
	}
	var known []string
	for _, l := range f.leases {
		known = append(known, l.Subnet.String())
		if slices.ContainsFunc(l.Subnets, func(p netip.Prefix) bool { return key(p) == r.PathValue("subnet") }) {
			return l, nil
		}
	}
	return api.Lease{}, &api.Error{Code: 404, Message: fmt.Sprintf("no such lease of %s in network %s: known are %s", r.PathValue("subnet"), n.Name, strings.Join(known, ", "))}
}
