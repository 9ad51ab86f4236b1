package examine

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
)

const (
	// answerTimeoutMS bounds the wait for the answer of a peer, in milliseconds. A packet around the earth needs a
	// fraction of it.
	answerTimeoutMS = 700

	// repeatPause is the time after which a kernel that has reached its limit of errors sends the next one
	// (icmp_ratelimit).
	repeatPause = 1200 * time.Millisecond
)

// probePeers sends packets to the peers in the datapath and adds their answers to the facts of the network. It returns
// why no packets could be sent, "" if they were.
func (e *Examiner) probePeers(ctx context.Context, n Network, facts *doctor.Network) (inactive string) {
	var places []int // in n.Peers
	for i, p := range n.Peers {
		if p.Skipped == "" {
			places = append(places, i)
		}
	}
	rank := map[bool]int{true: 0, false: 1}
	slices.SortStableFunc(places, func(x, y int) int { return rank[n.Peers[x].Held] - rank[n.Peers[y].Held] })
	places = places[:min(len(places), maxExamined)]
	if len(places) == 0 {
		return ""
	}
	peers := make([]api.Peer, len(places))
	for i, place := range places {
		peers[i] = n.Peers[place]
	}
	before, _ := doctor.CountFiltered()
	answers, err := probeTwice(ctx, n, peers, !facts.Device.Wanted)
	if after, err := doctor.CountFiltered(); err == nil {
		facts.Filtered = after - before
	}
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && refused.Code == http.StatusConflict:
		return refused.Message
	case err != nil:
		return err.Error()
	}
	var work sync.WaitGroup
	for i, answer := range answers {
		peer := &facts.Peers[places[i]]
		facts.Probed++
		peer.Probe = &answer
		if !answer.Reached && facts.Filtered > 0 {
			peer.AddOtherRefusals(*facts)
		}
		if facts.Device.Exists && answer.Reached && len(answer.Ways) > 0 {
			work.Go(func() {
				way := answer.Ways[0]
				peer.Datagrams = e.Datagrams(ctx, way.From, subnetOf(*peer, way.To))
			})
		}
	}
	work.Wait()
	return ""
}

// probeTwice probes peers. If their addresses are on no device (unheld), their kernels answer with errors, of which
// they send only a few. So those that did not answer are probed again.
func probeTwice(ctx context.Context, n Network, peers []api.Peer, unheld bool) ([]api.PeerProbe, error) {
	request := api.ProbeRequest{TimeoutMS: answerTimeoutMS}
	out, err := n.Probe(ctx, peers, request)
	var unanswered []int
	for i, p := range out.Peers {
		if !p.Reached && unheld {
			unanswered = append(unanswered, i)
		}
	}
	if err != nil || len(unanswered) == 0 || retry.Sleep(ctx, repeatPause) != nil {
		return out.Peers, err
	}
	repeated := make([]api.Peer, len(unanswered))
	for i, place := range unanswered {
		repeated[i] = peers[place]
	}
	again, err := n.Probe(ctx, repeated, request)
	for i, p := range again.Peers {
		if p.Reached {
			out.Peers[unanswered[i]] = p
		}
	}
	return out.Peers, err
}

// subnetOf returns the subnet of a peer that contains a, or a alone if there is none.
func subnetOf(p doctor.Peer, a netip.Addr) netip.Prefix {
	for _, s := range p.Subnets {
		if s.Contains(a) {
			return s
		}
	}
	return netip.PrefixFrom(a, a.BitLen())
}
