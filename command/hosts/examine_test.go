package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

var now = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)

// agents are those of some hosts, which see each other as a test says.
type agents struct {
	t       *testing.T
	servers []*httptest.Server
	address string                           // http.address in the configuration of the first host
	path    func(from, to int) *api.PeerPath // nil: reached
	broken  map[int]http.HandlerFunc         // agents that answer something else

	mu       sync.Mutex
	requests []string // "host-2 PUT /v1/agent/doctor?passive=true"
}

func newAgents(t *testing.T, n int) *agents {
	f := &agents{t: t, address: "127.0.0.1:5366", path: func(int, int) *api.PeerPath { return &api.PeerPath{State: api.PathReached} }, broken: map[int]http.HandlerFunc{}}
	for i := range n {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.answer(i+1, n, w, r) }))
		t.Cleanup(s.Close)
		f.servers = append(f.servers, s)
	}
	return f
}

func (f *agents) answer(i, n int, w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, fmt.Sprintf("host-%d %s %s", i, r.Method, r.URL.RequestURI()))
	f.mu.Unlock()
	if i > 1 && r.Header.Get("X-Consul-Token") != "" {
		f.t.Errorf("the token was sent to host-%d", i)
	}
	if broken := f.broken[i]; broken != nil {
		broken(w, r)
		return
	}
	var out any
	switch r.URL.Path {
	case "/v1/agent/self":
		out = api.Self{Networks: []string{"n"}}
	case "/v1/agent/config":
		out = api.Configuration{Settings: []api.Setting{{Name: "http.address", Value: fmt.Sprintf("%q", f.address)}}}
	case "/v1/agent/doctor":
		out = api.Diagnosis{Findings: []api.Finding{{Check: "forward", Status: api.FindingWarning, Saw: "forwarding is off"}}}
	case "/v1/network/n/hosts":
		var hosts []api.Host
		for j := 1; j <= n; j++ {
			h := api.Host{Node: fmt.Sprint("host-", j), Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(j), 0}), 24)},
				PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(j)})}, Held: true, Own: i == j}
			if !h.Own {
				h.Path = f.path(i, j)
			}
			hosts = append(hosts, h)
		}
		out = api.HostList{Hosts: hosts}
	}
	_ = json.NewEncoder(w).Encode(out)
}

// examine runs the examination on the first host.
func (f *agents) examine(o Options) (Diagnosis, error) {
	f.t.Helper()
	c, err := api.New(api.Config{Address: f.servers[0].URL, Token: "secret"})
	if err != nil {
		f.t.Fatal(err)
	}
	o.Now = func() time.Time { return now }
	o.Open = func(address string, maxBody int64, maxObjects int) (*api.Client, error) {
		for i := range f.servers {
			if slices.Contains([]string{fmt.Sprintf("http://192.0.2.%d:5366", i+1), fmt.Sprintf("host-%d:80", i+1)}, address) {
				return api.New(api.Config{Address: f.servers[i].URL, MaxBody: maxBody, MaxObjects: maxObjects})
			}
		}
		return nil, errors.New("no agent at " + address)
	}
	return Examine(f.t.Context(), c, o)
}

// saw returns what the findings say.
func saw(d Diagnosis) (out []string) {
	for _, f := range d.Findings {
		out = append(out, f.Saw)
	}
	return out
}

func TestExamine(t *testing.T) {
	t.Parallel()
	lossy := func(from, to int) *api.PeerPath {
		if from == 3 || to == 3 {
			return &api.PeerPath{State: api.PathLossy, Loss: 0.2}
		}
		return &api.PeerPath{State: api.PathReached}
	}
	for _, tt := range []struct {
		what     string
		options  Options
		set      func(*agents)
		asked    int
		notAsked string // reasons
		want     []string
	}{
		{"no host can be asked", Options{}, func(*agents) {}, 1, "",
			[]string{"packets are lost on every path of host-3, up to 20 %", "host-1: forwarding is off"}},
		{"agents like this one", Options{}, func(f *agents) { f.address = "0.0.0.0:5366" }, 4, "",
			[]string{"packets are lost on every path of host-3, up to 20 %", "host-1, host-2, host-3 and host-4: forwarding is off"}},
		{"by name", Options{Address: "{node}:80", Network: "n"}, func(*agents) {}, 4, "",
			[]string{"packets are lost on every path of host-3, up to 20 %", "host-1, host-2, host-3 and host-4: forwarding is off"}},
		{"no agent at the address", Options{Address: "{ip}:1"}, func(*agents) {}, 1, "no agent at 192.0.2.2:1",
			[]string{"packets are lost on every path of host-3, up to 20 %", "host-1: forwarding is off"}},
		{"too long an answer", Options{Address: "{node}:80"}, func(f *agents) {
			f.broken[2] = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) }
		}, 3, "larger than 1056768 bytes", []string{"packets are lost on every path of host-3, up to 20 %", "host-1, host-3 and host-4: forwarding is off"}},
		{"too many objects in an answer", Options{Address: "{node}:80"}, func(f *agents) {
			f.broken[2] = func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"hosts":[{}` + strings.Repeat(",{}", 2000) + `]}`))
			}
		}, 3, "more than 1064 objects", []string{"packets are lost on every path of host-3, up to 20 %", "host-1, host-3 and host-4: forwarding is off"}},
		{"no agent of leno", Options{Address: "{node}:80"}, func(f *agents) {
			f.broken[4] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }
		}, 3, "404", []string{"packets are lost on every path of host-3, up to 20 %", "host-1, host-2 and host-3: forwarding is off"}},
		{"a host whose tunnel is lost", Options{Address: "{node}:80"}, func(f *agents) {
			f.path = func(from, to int) *api.PeerPath {
				if from == 2 || to == 2 {
					return &api.PeerPath{State: api.PathLost}
				}
				return &api.PeerPath{State: api.PathReached}
			}
		}, 4, "", []string{"host-2 does not reach any other host", "host-1, host-2, host-3 and host-4: forwarding is off"}},
		{"a host that is lost", Options{Address: "{node}:80"}, func(f *agents) {
			f.path = func(from, to int) *api.PeerPath {
				if from == 4 || to == 4 {
					return &api.PeerPath{State: api.PathLost}
				}
				return &api.PeerPath{State: api.PathReached}
			}
			f.broken[4] = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		}, 3, "EOF", []string{"host-4 does not reach any other host", "host-1, host-2 and host-3: forwarding is off"}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			f := newAgents(t, 4)
			f.path = lossy
			tt.set(f)
			got, err := f.examine(tt.options)
			if err != nil {
				t.Fatal(err)
			}
			var reasons string
			for _, n := range got.NotAsked {
				reasons += n.Node + ": " + n.Reason + "\n"
			}
			if got.Hosts != 4 || got.Asked != tt.asked || !strings.Contains(reasons, tt.notAsked) || tt.notAsked == "" && reasons != "" {
				t.Errorf("%+v", got)
			}
			if !slices.Equal(saw(got), tt.want) {
				t.Errorf("saw %q, want %q", saw(got), tt.want)
			}
			for _, r := range f.requests {
				if strings.Contains(r, "doctor") && !strings.Contains(r, "passive=true") {
					t.Errorf("%s: packets were sent although the paths are tested", r)
				}
			}
		})
	}
}

// TestExamineActive: where paths are not tested all the time, this host tests its own.
func TestExamineActive(t *testing.T) {
	t.Parallel()
	f := newAgents(t, 2)
	f.path = func(int, int) *api.PeerPath { return nil }
	if _, err := f.examine(Options{}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(f.requests, "host-1 PUT /v1/agent/doctor?network=n") {
		t.Errorf("%q", f.requests)
	}
}

// TestExamineWithoutAgent: what this host's agent cannot say is an error.
func TestExamineWithoutAgent(t *testing.T) {
	t.Parallel()
	f := newAgents(t, 2)
	f.broken[1] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	if got, err := f.examine(Options{}); err == nil {
		t.Errorf("%+v", got)
	}
}

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	for address, isGood := range map[string]bool{"": true, "{ip}:5366": true, "https://{node}.example.org": true, "192.0.2.1:5366": false, "{IP}:1": false} {
		if err := CheckAddress(address); (err == nil) != isGood {
			t.Errorf("%q: %v", address, err)
		}
	}
}
