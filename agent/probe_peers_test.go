package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

// probe stands in for a kernel that reaches every peer.
func (h *host) probe(ctx context.Context, here probe.Host, peers []api.Peer, r api.ProbeRequest) (api.Probe, error) {
	h.mu.Lock()
	before := h.probing
	h.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return api.Probe{}, err
		}
	}
	out := api.Probe{Network: here.Network, Peers: []api.PeerProbe{}}
	r, err := probe.Normalize(r)
	if err != nil {
		return out, err
	}
	if peers, err = probe.SelectPeers(peers, r.Peers); err != nil {
		return out, err
	}
	for _, p := range peers {
		out.Peers = append(out.Peers, api.PeerProbe{Node: p.Node, Held: p.Held, Reached: true, Ways: []api.ProbedWay{
			{Path: api.PathOverlay, From: here.Subnets[0].Addr(), To: p.Subnets[0].Addr(), MTU: here.MTU, Largest: here.MTU,
				Small: api.ProbedSize{Bytes: r.Small, Sent: 1, Answered: 1, AvgMS: 1}},
			{Path: api.PathUnderlay, From: here.Underlay.Addresses[0], To: p.PublicIPs[0], MTU: here.Underlay.MTU, Largest: here.Underlay.MTU},
		}})
	}
	return out, nil
}

// TestProbe covers what a probe returns, how it is judged, and what is refused, on a host in two networks, in one of which
// it is alone.
func TestProbe(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a"), newHost(t, store, "b").start()
		a.config.Networks = append(a.config.Networks, a.second())
		a.start().ready()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		ctx, c := context.Background(), a.client

		got, err := c.ProbePeers(ctx, "n", api.ProbeRequest{})
		if err != nil || len(got.Peers) != 1 || got.Peers[0].Node != "b" || !got.Peers[0].Held {
			t.Fatalf("%+v, %v", got, err)
		}
		want := fmt.Sprintf("[{overlay %s %s 1450} {underlay 192.0.2.97 192.0.2.98 1500}]", a.subnet().Addr(), b.subnet().Addr())
		var said []struct {
			path, from, to string
			mtu            int
		}
		for _, w := range got.Peers[0].Ways {
			said = append(said, struct {
				path, from, to string
				mtu            int
			}{w.Path, w.From.String(), w.To.String(), w.MTU})
		}
		if fmt.Sprint(said) != want {
			t.Errorf("probed %v, want %s", said, want)
		}

		a.judgesProbes()
		// A device or a route counts if it counts for one of the networks.
		if all := a.agent.networks; !all.reaches(netip.MustParsePrefix("192.0.2.96/28")) || all.reaches(netip.MustParsePrefix("192.0.2.0/27")) ||
			!all.usesLink("eth0") || all.usesLink("eth1") {
			t.Error("the route to the peer or the device of the underlay does not count, or others do")
		}

		_, err = c.ProbePeers(ctx, "n", api.ProbeRequest{Peers: []string{"b", "z"}})
		agenttest.WantCode(t, "a node that is no peer", err, http.StatusNotFound, `"z"`, "b")
		_, err = c.ProbePeers(ctx, "n", api.ProbeRequest{TimeoutMS: 20_000})
		agenttest.WantCode(t, "a long time", err, http.StatusBadRequest, "timeout_ms", "20000", "10000")
		_, err = c.ProbePeers(ctx, "x", api.ProbeRequest{})
		agenttest.WantCode(t, "an unknown network", err, http.StatusNotFound, "x")

		// One probe of a network runs at a time, whatever happens in others.
		a.beforeProbes(func(context.Context) error {
			a.beforeProbes(nil)
			_, err := c.ProbePeers(ctx, "n", api.ProbeRequest{})
			agenttest.WantCode(t, "a second probe", err, http.StatusConflict, "running since", "try again")
			_, err = c.ProbePeers(ctx, "m", api.ProbeRequest{})
			return err
		})
		for range 2 {
			if _, err = c.ProbePeers(ctx, "n", api.ProbeRequest{}); err != nil {
				t.Error(err)
			}
		}

		a.beforeProbes(func(context.Context) error { return probe.ErrNoCapability })
		_, err = c.ProbePeers(ctx, "n", api.ProbeRequest{})
		agenttest.WantCode(t, "no right", err, http.StatusNotImplemented, "CAP_NET_RAW")
	})
}

// beforeProbes makes each probe call f first.
func (h *host) beforeProbes(f func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probing = f
}

// judgesProbes fails the test unless probes of the host's peer b are judged as in an examination.
func (h *host) judgesProbes() {
	h.t.Helper()
	run, judge := mustRunner(h.t, h), h.agent.diagnostics.judgePaths
	narrow := func(path string, mtu, largest int) api.ProbedWay {
		return api.ProbedWay{Path: path, MTU: mtu, Answer: "echo reply", Largest: largest,
			Small: api.ProbedSize{Bytes: 64, Sent: 3, Answered: 3}, Full: api.ProbedSize{Bytes: mtu, Sent: 3}}
	}
	answer := api.PeerProbe{Node: "b", Held: true, Reached: true, Ways: []api.ProbedWay{narrow(api.PathOverlay, 1450, 1350), narrow(api.PathUnderlay, 1500, 1400)}}
	got := judge(h.t.Context(), run, append(run.PeerList().Peers, api.Peer{Node: "c"}), []api.PeerProbe{answer, {Node: "c"}})
	if len(got) != 1 || got[0].Check != "path_mtu" || got[0].Status != api.FindingFault || got[0].Peer != "b" {
		h.t.Errorf("%+v", got)
	}
	if got := judge(h.t.Context(), run, nil, nil); got == nil || len(got) != 0 {
		h.t.Errorf("without peers: %+v", got)
	}
}
