package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// TestProbeOutlastsRequests: a probe may take longer than the server gives other requests, and is answered all the
// same.
func TestProbeOutlastsRequests(t *testing.T) {
	h := newHost(t, func(l *Limits) { l.RequestTime = 50 * time.Millisecond })
	h.n.probe = func(ctx context.Context, _ api.ProbeRequest) (api.Probe, error) {
		select {
		case <-ctx.Done():
			return api.Probe{}, ctx.Err()
		case <-time.After(300 * time.Millisecond):
			return api.Probe{Network: "n"}, nil
		}
	}
	h.serve("127.0.0.1:0")
	if out, err := h.client.ProbePeers(t.Context(), "n", api.ProbeRequest{}); err != nil || out.Network != "n" {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestConnectionAfterASlowRequest: later requests on a connection can wait, whatever time the earlier ones took.
func TestConnectionAfterASlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, nil)
		slow := 3 * h.options.Limits.RequestTime / 2
		h.n.probe = func(context.Context, api.ProbeRequest) (api.Probe, error) { time.Sleep(slow); return api.Probe{}, nil }
		h.agent.diagnose = func(context.Context, api.DoctorOptions) (api.Diagnosis, error) {
			time.Sleep(slow)
			return api.Diagnosis{}, nil
		}
		server := h.prepare()
		ctx, end := context.WithCancel(t.Context())
		served, clients := make(chan error), make(pipes)
		go func() { served <- server.Serve(ctx, clients) }()
		conn := clients.dial(t, "")
		must(t, conn.SetDeadline(time.Time{}))
		answers := bufio.NewReader(conn)
		for _, request := range []string{
			"PUT /v1/agent/doctor HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
			"GET /v1/network/n/peers?index=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"POST /v1/network/n/probe HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
			"GET /v1/network/n/peers?index=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
		} {
			_, err := io.WriteString(conn, request)
			must(t, err)
			r, err := http.ReadResponse(answers, nil)
			must(t, err)
			if body, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
				t.Errorf("%.30q: %d %s, %v", request, r.StatusCode, body, err)
			}
		}
		_ = conn.Close()
		end()
		must(t, <-served)
	})
}

// TestHistoryOfPeers: the history of the paths is there only where it is asked for, and no change; a later handshake is
// none either.
func TestHistoryOfPeers(t *testing.T) {
	h := newHost(t, nil)
	handler := h.prepare().routes()
	ask := func(query string) (code int, body, index string) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/v1/network/n/peers"+query, nil))
		return w.Code, w.Body.String(), w.Header().Get("X-Leno-Index")
	}
	var before string
	for _, loss := range []int8{0, 100} {
		h.n.set(func() {
			h.n.peers = api.PeerList{Peers: []api.Peer{{Node: "b", LastHandshake: time.Unix(100+int64(loss), 0),
				Path: &api.PeerPath{History: &api.PathHistory{Loss: []int8{loss}}}}}}
		})
		code, body, index := ask("?history=true")
		if code != 200 || !strings.Contains(body, fmt.Sprintf(`"loss_percent":[%d]`, loss)) || before != "" && index != before {
			t.Errorf("%d %s at %s, before it was %s", code, body, index, before)
		}
		before = index
		for _, query := range []string{"", "?history=false"} {
			if code, body, _ := ask(query); code != 200 || strings.Contains(body, "history") || !strings.Contains(body, `"path":{`) {
				t.Errorf("%q: %d %s", query, code, body)
			}
		}
	}
	if code, body, _ := ask("?history=yes"); code != 400 || !strings.Contains(body, "parameter history") {
		t.Errorf("%d %s", code, body)
	}
}

// TestPeersOfADeletedNetwork: readers of a network that this host has a block for learn that it was deleted, and the status
// page shows no hosts of it.
func TestPeersOfADeletedNetwork(t *testing.T) {
	h := newHost(t, nil)
	h.n.hosts = []api.Host{{Node: "the-peer", State: api.Passing}}
	h.serve("127.0.0.1:0")
	page := func() string {
		_, body := h.request("GET", "/ui", "")
		return body
	}
	if !strings.Contains(page(), "the-peer") {
		t.Error("the page does not show the host")
	}
	for name, read := range map[string]func(since ...api.Read) (uint64, error){
		"peers": func(since ...api.Read) (uint64, error) {
			list, err := h.client.Peers(t.Context(), "n", since...)
			return list.Index, err
		},
		"hosts": func(since ...api.Read) (uint64, error) {
			list, err := h.client.Hosts(t.Context(), "n", since...)
			return list.Index, err
		},
	} {
		index, err := read()
		must(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := read(api.Read{Index: index})
			ended <- err
		}()
		h.readers(1)
		known, _ := h.agent.Networks()
		h.n.mu.Lock()
		h.n.status.Defined = false // a moment before the list of networks shows the deletion
		h.n.mu.Unlock()
		h.agent.known.Set(Networks{registry.NetworkSet{Deleted: []registry.Deletion{{Network: "n"}}}, known.Index + 1, true})
		select {
		case err := <-ended:
			agenttest.WantCode(t, name, err, 404, "deleted")
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: the reader is not told", name)
		}
		if strings.Contains(page(), "the-peer") {
			t.Errorf("%s: the page still shows the host", name)
		}
		h.n.set(func() { h.n.status.Defined = true })
		h.agent.known.Set(known)
	}
}

// TestHosts: a reader that waits is woken when what is known of a host changes, also this host's own health, and not by
// times.
func TestHosts(t *testing.T) {
	h := serving(t, nil)
	seen := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h.n.set(func() { h.n.hosts = []api.Host{{Node: "b", State: api.Passing, Seen: seen}} })
	first, err := h.client.Hosts(t.Context(), "n")
	must(t, err)
	if len(first.Hosts) != 1 || first.Hosts[0].Node != "b" || first.Index == 0 {
		t.Fatalf("%+v", first)
	}
	h.n.set(func() { h.n.hosts = []api.Host{{Node: "b", State: api.Passing, Seen: seen.Add(time.Second)}} })
	same, err := h.client.Hosts(t.Context(), "n")
	must(t, err)
	if same.Index != first.Index || !same.Hosts[0].Seen.After(seen) {
		t.Errorf("%+v after %+v", same, first)
	}
	woken := make(chan api.HostList, 1)
	go func() {
		list, err := h.client.Hosts(t.Context(), "n", api.Read{Index: first.Index})
		if err != nil {
			t.Error(err)
		}
		woken <- list
	}()
	h.readers(1)
	h.n.mu.Lock()
	h.n.hosts = []api.Host{{Node: "b", State: api.HostFailed}}
	h.n.mu.Unlock()
	h.options.Health.Set("n", "paths", api.Warning, "packets are lost") // which is a change as well
	if list := <-woken; len(list.Hosts) != 1 || list.Hosts[0].State != api.HostFailed || list.Index <= first.Index {
		t.Errorf("%+v", list)
	}
	_, err = h.client.Hosts(t.Context(), "elsewhere")
	agenttest.WantCode(t, "hosts of another network", err, 404)
}
