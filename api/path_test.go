package api

import "testing"

func TestPathSummary(t *testing.T) {
	loss := func(f float64) *float64 { return &f }
	var none *PeerPath
	for want, p := range map[string]*PeerPath{
		"-":                              none,
		"untested":                       {},
		"reached, 1.2 ms":                {State: PathReached, RTT: 0.0012, ToPeer: loss(0), FromPeer: loss(0)},
		"short, 1400 bytes":              {State: PathShort, MTU: 1400},
		"lossy, 20 %, to peer 25 % lost": {State: PathLossy, Loss: 0.2, ToPeer: loss(0.25), FromPeer: loss(0)},
		"lost, from peer 100 % lost":     {State: PathLost, FromPeer: loss(1)},
	} {
		if got := p.Summary(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
