package firewall

import (
	"context"
	"slices"
)

// halves makes one applier of each family out of one that writes the rules of
// both at once, so that each family has the kind that suits it.
func halves(whole applier) (v4, v6 *half) {
	b := &both{applier: whole}
	return &half{both: b, own: 0}, &half{both: b, own: 1}
}

// both is what the two halves share, by family.
type both struct {
	applier
	told  [2]*rules // what each half was told last, nil before
	guess [2]rules  // what each may be told this time, if anything
	clean bool      // none of ours is there, and none is wanted
}

type half struct {
	*both
	own int
}

var _ applier = (*half)(nil)

// expect says what the half may be told. An earlier process may have left rules
// of it here that are in use, so they stay until it was told.
func (h *half) expect(want rules) { h.guess[h.own] = want }

// apply writes the rules of both families. To remove its own it waits until the
// other half was told what is wanted of it.
func (h *half) apply(ctx context.Context, want rules) (written []string, err error) {
	h.told[h.own] = &want
	other := h.told[1-h.own]
	switch {
	case other == nil && want.empty():
		return nil, nil
	case other == nil || !other.empty():
		other = &h.guess[1-h.own] // newer than what it was told, if that has changed
	}
	v4, v6 := &want, other
	if h.own == 1 {
		v4, v6 = other, &want
	}
	all := rules{slices.Concat(v4.exempt, v6.exempt), slices.Concat(v4.masquerade, v6.masquerade), slices.Concat(v4.forward, v6.forward)}
	if all.empty() && h.clean {
		return nil, nil
	}
	written, err = h.applier.apply(ctx, all)
	h.clean = all.empty() && err == nil
	return written, err
}
