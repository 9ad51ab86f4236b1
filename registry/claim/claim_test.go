package claim

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/registry"
)

// script is a store whose steps are given. It notes which ones ran.
type script struct {
	ran     []string
	kept    bool
	known   *View
	current View
	holders []registry.Holder
	refuse  int // how many calls of Take to refuse
	fail    map[string]error
}

func (s *script) run(step string) error {
	s.ran = append(s.ran, step)
	return s.fail[step]
}

func (s *script) Keep(context.Context) (registry.Lease, bool, error) {
	err := s.run("keep")
	return registry.Lease{Slot: 1}, s.kept && err == nil, err
}

func (s *script) Known(context.Context) (View, bool, error) {
	err := s.run("known")
	if s.known == nil {
		return View{}, false, err
	}
	return *s.known, true, err
}

func (s *script) Current(context.Context) (View, error) { return s.current, s.run("current") }
func (s *script) Mark(context.Context) error            { return s.run("mark") }
func (s *script) Holders(context.Context) ([]registry.Holder, error) {
	return s.holders, s.run("holders")
}

func (s *script) Take(_ context.Context, choice registry.Choice) (registry.Lease, error) {
	err := s.run("take")
	if s.refuse > 0 {
		s.refuse--
		err = ErrOutdated
	}
	return registry.Lease{Slot: choice.Slot, NodeID: "mine", Session: "s"}, err
}

func (s *script) Drop(context.Context, registry.Lease, registry.Lease) { s.ran = append(s.ran, "drop") }

// TestOrder checks which steps a claim takes.
func TestOrder(t *testing.T) {
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/22")}}.Normalize() // three slots
	if err != nil {
		t.Fatal(err)
	}
	n := registry.Network{Name: "n", Plan: plan}
	addresses := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	lease := func(slot uint64, id, session string) registry.Lease {
		l := registry.Lease{Slot: slot, Subnets: plan.Subnets(slot), Node: id, NodeID: id, Session: session, Lapsed: time.Hour}
		if id == "mine" {
			l.PublicIPs = addresses
		}
		return l
	}
	view := func(made uint64, leases ...registry.Lease) View {
		return View{Situation: registry.Situation{Network: n, Leases: leases}, Made: made}
	}
	empty := view(5)
	own := view(5, lease(1, "mine", "old"))
	lapsed := view(5, lease(1, "a", "x"), lease(2, "b", "y"), lease(3, "c", ""))
	full := view(5, lease(1, "a", "x"), lease(2, "b", "y"), lease(3, "c", "z"))
	mine := registry.Claim{Node: "mine", NodeID: "mine", PublicIPs: addresses, TTL: time.Minute, Hold: time.Minute}
	again := mine
	again.Session, again.Prefer = "old", plan.Subnets(1)[0]
	avoiding := again
	avoiding.Avoid = again.Prefer
	onlySlot := mine
	onlySlot.Prefer, onlySlot.OnlySlot = plan.Subnets(2)[0], true
	for _, tt := range []struct {
		name  string
		store script
		claim registry.Claim
		want  string
		err   error
	}{
		{"a lease that is held", script{kept: true}, again, "keep", nil},
		{"a lease that was revoked", script{kept: true, known: &empty}, avoiding, "known holders take", nil},
		{"what is known", script{known: &empty}, mine, "known holders take", nil},
		{"an own record", script{known: &own}, mine, "known take", nil},
		{"nothing is known", script{current: empty}, again, "keep known current holders take", nil},
		{"what is known is old", script{known: &empty, current: own, refuse: 1}, mine, "known holders take current take", nil},
		{"refused again and again", script{current: own, refuse: 2}, mine, "known current take current take current take", nil},
		{"another host's lapsed lease", script{known: &lapsed, current: empty}, mine, "known current holders take", nil},
		{"full as far as known", script{known: &full, current: empty}, mine, "known current holders take", nil},
		{"full", script{known: &full, current: full}, mine, "known current", registry.ErrNetworkFull},
		{"one slot or none", script{known: &empty, current: empty}, onlySlot, "current holders take", nil},
		{"no marker", script{current: view(0)}, mine, "known current mark holders take", nil},
		{"lost leases", script{known: &empty, current: empty, holders: []registry.Holder{{Node: "a", Session: "z", CreateIndex: 2}}}, mine,
			"known holders current holders", registry.ErrLeasesLost},
		{"a second record", script{current: view(5, lease(1, "mine", "s"), lease(2, "mine", "t"))}, mine, "known current take drop", nil},
		{"no answer", script{fail: map[string]error{"known": registry.ErrUnavailable}}, mine, "known", registry.ErrUnavailable},
		{"another plan", script{known: &empty, fail: map[string]error{"known": registry.ErrConflict, "current": registry.ErrConflict}}, mine,
			"known current", registry.ErrConflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lease, err := Run(t.Context(), &tt.store, &LostLeases{}, n, tt.claim)
			if got := strings.Join(tt.store.ran, " "); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%s, %v: want %s, %v", got, err, tt.want, tt.err)
			}
			if err == nil && !slices.Contains([]uint64{1, 2, 3}, lease.Slot) {
				t.Errorf("%+v", lease)
			}
		})
	}
}

// TestOutdatedForEver: a claim that is refused again and again ends.
func TestOutdatedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script{fail: map[string]error{"current": ErrOutdated}}
		_, err := Run(t.Context(), &s, &LostLeases{}, registry.Network{}, registry.Claim{})
		if !errors.Is(err, registry.ErrConflict) || len(s.ran) != 1+maxTries { // known, and then current each time
			t.Errorf("%v after %d steps", err, len(s.ran))
		}
	})
}
