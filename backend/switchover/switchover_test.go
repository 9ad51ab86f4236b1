package switchover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/pathtest"
)

// A recorder makes backends that record the calls to them.
type recorder struct {
	calls        []string
	fail         map[string]error    // of Apply, by type and device
	advertiseErr map[string]error    // of Advertise
	newErr       map[string]error    // of New, by type
	skip         map[string][]string // nodes that are skipped
	wait         map[string][]string // nodes that have not answered
	report       map[string]backend.Report
	mtu          map[string]int
}

func newRecorder() *recorder {
	return &recorder{fail: map[string]error{}, advertiseErr: map[string]error{}, skip: map[string][]string{}, wait: map[string][]string{},
		mtu: map[string]int{"old": 1450, "new": 1440}}
}

func (r *recorder) types() map[string]backend.Type {
	out := map[string]backend.Type{}
	for _, name := range []string{"old", "new", "third", "alloc"} {
		out[name] = backend.Type{
			Name:   name,
			Device: true,

			SharedAddress: name == "third",
			Interrupts:    map[string]string{"port": "peers send to the old one"},

			Normalize: func(o json.RawMessage) (json.RawMessage, error) { return o, nil },
			New: func(c backend.Config) (backend.Backend, error) {
				if err := r.newErr[name]; err != nil {
					return nil, err
				}
				return &recording{r, name, strings.TrimPrefix(c.Link, "leno-n")}, nil
			},
		}
	}
	return out
}

type recording struct {
	*recorder
	kind, device string
}

func (r *recording) name() string { return r.kind + r.device }

func (r *recording) Advertise(backend.Underlay) (backend.Advertisement, error) {
	return backend.Advertisement{MTU: r.mtu[r.kind], Attributes: json.RawMessage(fmt.Sprintf(`{"key":%q}`, r.name()))}, r.advertiseErr[r.name()]
}

func (r *recording) Apply(_ context.Context, s backend.State) (backend.Report, error) {
	var peers []string
	for _, p := range s.Peers {
		if p.Backend != r.kind {
			peers = append(peers, p.Node+" runs "+p.Backend)
			continue
		}
		text := p.Node
		if slices.Contains(s.Elsewhere, p.Subnets[0]) {
			text = "(" + text + ")"
		}
		if len(p.Attributes) == 0 {
			text += "?"
		}
		peers = append(peers, text)
	}
	what := fmt.Sprintf("%s: %s", r.name(), strings.Join(peers, " "))
	if s.Zero() {
		what = fmt.Sprintf("%s: remove but %v", r.name(), s.Elsewhere)
	}
	r.calls = append(r.calls, what)
	report := r.report[r.name()]
	for _, node := range r.skip[r.name()] {
		report.Skipped = append(report.Skipped, backend.Skip{Node: node, Reason: "skipped"})
	}
	report.Unproven = r.wait[r.name()]
	if s.MTU != 0 && s.MTU != r.mtu[r.kind] {
		return report, fmt.Errorf("MTU %d", s.MTU)
	}
	return report, backend.About(backend.Device, r.fail[r.name()])
}

func (*recording) Abilities() backend.Abilities { return backend.Abilities{} }

func (r *recording) Close() error {
	r.calls = append(r.calls, r.name()+": close")
	return nil
}

// did returns the calls since the last did.
func (r *recorder) did() string {
	defer func() { r.calls = nil }()
	return strings.Join(r.calls, "; ")
}

// A host is one network of a host, whose backends are a recorder's.
type host struct {
	*recorder
	t *testing.T
	b *Backend

	underlay  backend.Underlay
	published json.RawMessage // by this host

	silent  []netip.Addr // of peers that answer no test packet
	testErr error        // why no test packet can be sent
	tested  []string     // link and address of each test packet
}

// Test implements tester.
func (h *host) Test(link string, packets []pathtest.Packet) (map[uint64]bool, error) {
	if h.testErr != nil {
		return nil, h.testErr
	}
	answered := map[uint64]bool{}
	for _, p := range packets {
		h.tested = append(h.tested, fmt.Sprintf("%s %s > %s", strings.TrimPrefix(link, "leno-n"), p.From, p.To))
		answered[p.ID] = !slices.Contains(h.silent, p.To)
	}
	maps.DeleteFunc(answered, func(_ uint64, yes bool) bool { return !yes })
	return answered, nil
}

func (h *host) Close() {}

func newHost(t *testing.T, kind, options string) *host {
	t.Helper()
	h := &host{recorder: newRecorder(), t: t}
	var err error
	if h.b, err = New(h.types(), definition(t, kind, options), h.config()); err != nil {
		t.Fatal(err)
	}
	h.b.adoptUntil = time.Time{} // as for a process that has made the routes itself
	h.b.probe.tester = h
	return h
}

func (h *host) config() backend.Config {
	return backend.Config{Network: "n", Pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}
}

// peer returns a peer whose lease has the attributes.
func peer(slot int, kind, attributes string) backend.Peer {
	return backend.Peer{
		Node:       string(rune('a' + slot)),
		Subnets:    []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot))},
		Backend:    kind,
		Attributes: json.RawMessage(attributes),
	}
}

func (h *host) apply(peers ...backend.Peer) (backend.Report, error) {
	h.t.Helper()
	advert, err := h.b.Advertise(backend.Underlay{})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.b.Apply(h.t.Context(), backend.State{
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/24")},
		MTU:     advert.MTU,
		Peers:   peers,

		Underlay: h.underlay,

		Published: h.published,
	})
}

// does applies a state and compares the calls of the backends.
func (h *host) does(want string, peers ...backend.Peer) backend.Report {
	h.t.Helper()
	report, err := h.apply(peers...)
	if err != nil {
		h.t.Fatal(err)
	}
	if got := h.did(); got != want {
		h.t.Errorf("did %s\nwant %s", got, want)
	}
	return report
}

func (h *host) follow(kind, options string) {
	h.t.Helper()
	if err := h.b.ChangeTo(definition(h.t, kind, options), h.config()); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) says(want string) {
	h.t.Helper()
	advert, err := h.b.Advertise(backend.Underlay{})
	if err != nil || string(advert.Attributes) != want {
		h.t.Errorf("lease has %s, %v, want %s", advert.Attributes, err, want)
	}
}

const (
	switching = `{"next":{"type":"new"}}`
	prepared  = `{"key":"old","next":{"key":"new~b","type":"new"}}`
)

// TestSwitch follows one host through a switch: each peer moves when its lease says that it can receive, no step leaves
// a peer without a backend that has its route, and the old backend goes last.
func TestSwitch(t *testing.T) {
	h := newHost(t, "old", `{}`)
	h.does("old: b c", peer(1, "old", `{}`), peer(2, "old", `{}`))
	h.says(`{"key":"old"}`)

	h.follow("old", switching)
	h.says(`{"key":"old"}`) // nothing can arrive over the new one yet
	report := h.does("old: b c; new~b: (b)? (c)?", peer(1, "old", `{}`), peer(2, "old", `{}`))
	if s := report.Switch; s == nil || s.Moved != 0 || len(s.Waiting) != 2 || s.Waiting[0].Reason != "it has not prepared new yet" {
		t.Errorf("%+v", s)
	}
	h.says(`{"key":"old","next":{"key":"new~b","type":"new"}}`)

	// c can receive, is set up without a route, and moves once that has worked.
	report = h.does("old: b c; new~b: (b)? (c); old: b (c); new~b: (b)? c", peer(1, "old", `{}`), peer(2, "old", prepared))
	if report.Switch.Moved != 1 || report.Peers != 2 {
		t.Errorf("%+v", report)
	}
	// b has not answered over the new backend.
	h.wait["new~b"] = []string{"b"}
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.1:2")}
	h.report = map[string]backend.Report{"old": {Endpoints: endpoints[:1]}, "new~b": {Endpoints: endpoints[1:]}}
	report = h.does("old: b (c); new~b: (b) c", peer(1, "old", prepared), peer(2, "old", prepared))
	if want := (backend.Skip{Node: "b", Reason: "no packet from it has arrived so far"}); report.Switch.Waiting[0] != want || len(report.Unproven) != 0 || !slices.Equal(report.Endpoints, endpoints) {
		t.Errorf("%+v", report)
	}
	h.says(`{"key":"old","next":{"key":"new~b","type":"new"}}`)
	h.wait = map[string][]string{}
	h.does("old: b (c); new~b: (b) c; old: (b) (c); new~b: b c", peer(1, "old", prepared), peer(2, "old", prepared))
	h.says(`{"key":"old","next":{"key":"new~b","type":"new"},"sends":"b"}`)

	// c is ahead: its lease has only the new backend.
	h.does("old: (b) (c)?; new~b: b c", peer(1, "old", prepared), peer(2, "new", `{"epoch":1,"key":"new~b"}`))
	h.follow("new", `{"epoch":1}`)
	h.says(`{"epoch":1,"key":"new~b"}`)
	h.does("new~b: b c; old: remove but [10.5.0.0/16 10.5.1.0/24 10.5.2.0/24]; old: close",
		peer(1, "old", prepared), peer(2, "new", `{"epoch":1,"key":"new~b"}`))
	h.does("new~b: b", peer(1, "new", `{"epoch":1,"key":"new~b"}`))
	if err := h.b.Close(); err != nil || h.did() != "new~b: close" {
		t.Errorf("%v", err)
	}
}

// TestUnpublished checks that no peer moves before the host's own lease says that the host takes part. Otherwise, other
// hosts would assume that it has not begun, and end a reversed switch.
func TestUnpublished(t *testing.T) {
	h := newHost(t, "old", `{}`)
	h.does("old: b", peer(1, "old", `{}`))
	h.follow("old", switching)
	h.published = json.RawMessage(`{"key":"old"}`)
	for range 2 {
		report := h.does("old: b; new~b: (b)", peer(1, "old", prepared))
		if s := report.Switch; s.Moved != 0 || s.Waiting[0].Reason != "this host's lease does not say yet that it has the backend" {
			t.Errorf("%+v", s)
		}
	}
	h.published = json.RawMessage(prepared)
	h.does("old: (b); new~b: b", peer(1, "old", prepared))
	h.published = json.RawMessage(`{"key":"old"}`) // a peer that has moved stays
	h.does("old: (b); new~b: b", peer(1, "old", prepared))
	h.follow("old", `{"next":{"type":"new"},"direction":"back"}`)
	h.does("new~b: b; old: (b); new~b: (b); old: b", peer(1, "old", prepared))
}

// TestRestart checks that a process that has just started does not claim to send to all peers over the new backend,
// although that is ready: the kernel may have routes over the old one.
func TestRestart(t *testing.T) {
	h := newHost(t, "old", switching)
	h.b.adoptUntil = time.Now().Add(time.Hour)
	h.b.next.ready = true // as it does if the device exists
	h.says(prepared)
	// The route of the earlier process stays until it is known whether the new backend works.
	h.wait["new~b"] = []string{"c"}
	report := h.does("old: (b) (c) d; new~b: (b) (c) (d)?; old: (b) (c) d; new~b: b (c) (d)?",
		peer(1, "old", prepared), peer(2, "old", prepared), peer(3, "old", `{}`))
	if report.Switch.Unassigned != 1 {
		t.Errorf("%d peers are unassigned", report.Switch.Unassigned)
	}
	h.says(prepared)
	h.does("old: (b) (c); new~b: b (c)", peer(1, "old", prepared), peer(2, "old", prepared))
	h.says(prepared)
	h.b.adoptUntil = time.Now()
	h.does("old: (b) c; new~b: b (c)", peer(1, "old", prepared), peer(2, "old", prepared))
	h.wait = map[string][]string{}
	h.does("old: (b) c; new~b: b (c); old: (b) (c); new~b: b c", peer(1, "old", prepared), peer(2, "old", prepared))
	h.says(strings.TrimSuffix(prepared, "}") + `,"sends":"b"}`)
	h.does("old: ; new~b: ") // without peers, there is nothing to wait for
	h.says(strings.TrimSuffix(prepared, "}") + `,"sends":"b"}`)
}

// TestFreshHost: a host without devices of an earlier process waits for no answer before it makes its routes.
func TestFreshHost(t *testing.T) {
	h := newHost(t, "old", switching)
	var err error
	h.b, err = New(h.types(), definition(t, "old", `{"next":{"type":"new"},"direction":"stopped"}`), h.config())
	if err != nil {
		t.Fatal(err)
	}
	h.b.probe.tester = h
	h.wait["new~b"] = []string{"b"}
	if report := h.does("old: b; new~b: (b)", peer(1, "old", prepared)); report.Switch.Unassigned != 0 {
		t.Errorf("%d peers are unassigned", report.Switch.Unassigned)
	}
}

// TestLeftBehind checks that the backend does not use a peer that has not followed to the other device.
func TestLeftBehind(t *testing.T) {
	h := newHost(t, "old", `{"epoch":1}`)
	h.does("old~b: b runs old with another device c d runs new", peer(1, "old", `{"key":"old"}`),
		peer(2, "old", `{"key":"old","next":{"key":"k","type":"old"}}`), peer(3, "new", `{}`))
}

// TestSwitchTurns: a switch can be stopped and reversed.
func TestSwitchTurns(t *testing.T) {
	h := newHost(t, "old", switching)
	both := []backend.Peer{peer(1, "old", prepared), peer(2, "old", prepared)}
	h.wait["new~b"] = []string{"c"}
	h.does("old: b c; new~b: (b) (c); old: (b) c; new~b: b (c)", both...)
	h.wait = map[string][]string{}
	h.follow("old", `{"next":{"type":"new"},"direction":"stopped"}`)
	report := h.does("old: (b) c; new~b: b (c)", both...)
	if s := report.Switch; !s.Stopped || s.Waiting[0].Reason != "the switch is stopped" {
		t.Errorf("%+v", s)
	}
	h.follow("old", `{"next":{"type":"new"},"direction":"back"}`)
	// The new backend leaves the route alone before the old one takes it.
	report = h.does("new~b: b (c); old: (b) c; new~b: (b) (c); old: b c", both...)
	if s := report.Switch; s.From != "new" || s.To != "old" || s.Moved != 2 {
		t.Errorf("%+v", s)
	}
	h.says(`{"key":"old","next":{"key":"new~b","type":"new"},"sends":"a"}`)
	h.follow("old", `{}`)
	h.does("old: b c; new~b: remove but [10.5.0.0/16 10.5.1.0/24 10.5.2.0/24]; new~b: close", both...)
}

// TestSwitchFails: a backend that does not work harms nothing, and the lease says why.
func TestSwitchFails(t *testing.T) {
	h := newHost(t, "old", switching)
	h.fail["new~b"] = errors.New("port in use")
	report := h.does("old: b; new~b: (b)", peer(1, "old", prepared))
	if s := report.Switch; s.Fault != "device: port in use" && s.Fault != "port in use" || s.Waiting[0].Reason != "this host cannot use new" {
		t.Errorf("%+v", s)
	}
	h.says(`{"key":"old","next":{"error":"port in use","type":"new"}}`)
	h.fail = map[string]error{}
	h.does("old: b; new~b: (b); old: (b); new~b: b", peer(1, "old", prepared))

	// The device breaks afterwards: the peer goes back at once.
	h.fail["new~b"] = errors.New("gone")
	if _, err := h.apply(peer(1, "old", prepared)); err != nil {
		t.Error(err)
	}
	if got, want := h.did(), "old: (b); new~b: b; old: b; new~b: (b)"; got != want {
		t.Errorf("did %s, want %s", got, want)
	}
	h.fail = map[string]error{}
	h.advertiseErr["new~b"] = errors.New("in a VRF")
	h.does("old: b", peer(1, "old", prepared))
	h.says(`{"key":"old","next":{"error":"in a VRF","type":"new"}}`)
	report = h.does("old: b", peer(1, "old", `{"next":{"error":"no TUN","type":"new"}}`))
	if s := report.Switch; s.Waiting[0].Reason != "it cannot use new: no TUN" {
		t.Errorf("%+v", s)
	}
}

// TestSkippedPeer: a peer that the new backend cannot send to stays with the old one, also if that only shows when its
// route is to be written.
func TestSkippedPeer(t *testing.T) {
	h := newHost(t, "old", switching)
	h.skip["new~b"] = []string{"b"}
	report := h.does("old: b c; new~b: (b) (c); old: b (c); new~b: (b) c", peer(1, "old", prepared), peer(2, "old", prepared))
	if s := report.Switch; s.Moved != 1 || s.Waiting[0].Reason != "skipped" || len(report.Skipped) != 0 {
		t.Errorf("%+v", report)
	}
}

// TestSilentPeer: a peer to which packets do not arrive over the new backend stays with the old one until they do, and is
// not tested again then.
func TestSilentPeer(t *testing.T) {
	h := newHost(t, "old", switching)
	h.silent = []netip.Addr{netip.MustParseAddr("10.5.1.0")}
	report := h.does("old: b c; new~b: (b) (c); old: b (c); new~b: (b) c", peer(1, "old", prepared), peer(2, "old", prepared))
	want := backend.Skip{Node: "b", Reason: "it has not answered a test packet over new so far"}
	if s := report.Switch; s.Moved != 1 || s.Waiting[0] != want {
		t.Errorf("%+v", report)
	}
	h.says(`{"key":"old","next":{"key":"new~b","type":"new"}}`)
	h.silent, h.tested = nil, nil
	h.does("old: b (c); new~b: (b) c; old: (b) (c); new~b: b c", peer(1, "old", prepared), peer(2, "old", prepared))
	h.says(`{"key":"old","next":{"key":"new~b","type":"new"},"sends":"b"}`)
	h.does("old: (b) (c); new~b: b c", peer(1, "old", prepared), peer(2, "old", prepared))
	if got := fmt.Sprint(h.tested); got != "[~b 10.5.0.0 > 10.5.1.0]" {
		t.Errorf("tested %s", got)
	}

	// With other attributes, the peer is reached in another way.
	h.silent = []netip.Addr{netip.MustParseAddr("10.5.1.0")}
	h.does("old: b (c); new~b: (b) c", peer(1, "old", strings.Replace(prepared, "new~b", "other", 1)), peer(2, "old", prepared))
}

// TestSilentAfterTurns: a peer that does not answer moves neither when a stopped switch is continued, nor back when a switch
// is reversed, nor when it has left the new backend and that can send to it again.
func TestSilentAfterTurns(t *testing.T) {
	h := newHost(t, "old", switching)
	both := []backend.Peer{peer(1, "old", prepared), peer(2, "old", prepared)}
	silent := []netip.Addr{netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.2.0")}
	stays := func() {
		t.Helper()
		h.silent = silent
		for _, direction := range []string{"stopped", "forward"} {
			h.follow("old", fmt.Sprintf(`{"next":{"type":"new"},"direction":%q}`, direction))
			h.does("old: b c; new~b: (b) (c)", both...)
		}
		h.silent = nil
		h.does("old: b c; new~b: (b) (c); old: (b) (c); new~b: b c", both...)
	}
	stays()

	h.wait["new~b"] = []string{"b", "c"}
	h.does("old: (b) (c); new~b: b c; old: b c; new~b: (b) (c)", both...)
	h.wait = map[string][]string{}
	stays()

	h.silent = silent
	h.follow("old", `{"next":{"type":"new"},"direction":"back"}`)
	report := h.does("new~b: b c; old: (b) (c)", both...)
	if s := report.Switch; s.Moved != 0 || s.Waiting[0].Reason != "it has not answered a test packet over old so far" {
		t.Errorf("%+v", s)
	}
}

// TestDirectPeer: a peer that the new backend reaches without its device is tested over the underlay, and stays with that
// backend when the process restarts while the switch is stopped.
func TestDirectPeer(t *testing.T) {
	h := newHost(t, "old", switching)
	h.underlay = backend.Underlay{Interface: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	both := []backend.Peer{peer(1, "old", prepared), peer(2, "old", prepared)}
	both[0].PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	h.report = map[string]backend.Report{"new~b": {Direct: both[0].Subnets}}
	h.does("old: b c; new~b: (b) (c); old: (b) (c); new~b: b c", both...)
	slices.Sort(h.tested)
	if got := fmt.Sprint(h.tested); got != "[eth0 192.0.2.1 > 10.5.1.0 ~b 10.5.0.0 > 10.5.2.0]" {
		t.Errorf("tested %s", got)
	}

	var err error
	stopped := definition(t, "old", `{"next":{"type":"new"},"direction":"stopped"}`)
	if h.b, err = New(h.types(), stopped, h.config()); err != nil {
		t.Fatal(err)
	}
	h.b.adoptUntil, h.b.probe.tester = time.Now().Add(time.Hour), h
	h.does("old: (b) (c); new~b: (b) (c)", both...)
	h.b.adoptUntil = time.Time{}
	h.b.routesOver = func(_ context.Context, link string) map[netip.Prefix]bool {
		return map[netip.Prefix]bool{both[0].Subnets[0]: link == "eth0", both[1].Subnets[0]: link == "leno-n~b"}
	}
	h.does("old: (b) (c); new~b: b c", both...)
}

// TestRestartWhileStopped: peers stay with the backend by which an earlier process has sent to them.
func TestRestartWhileStopped(t *testing.T) {
	h := newHost(t, "old", `{"next":{"type":"new"},"direction":"stopped"}`)
	h.b.adoptUntil = time.Now().Add(time.Hour)
	both := []backend.Peer{peer(1, "old", prepared), peer(2, "old", prepared)}
	h.does("old: (b) (c); new~b: (b) (c)", both...)
	h.b.adoptUntil = time.Time{}
	h.b.routesOver = func(_ context.Context, link string) map[netip.Prefix]bool {
		return map[netip.Prefix]bool{netip.MustParsePrefix("10.5.1.0/24"): link == "leno-n~b"}
	}
	for range 2 {
		report := h.does("old: (b) c; new~b: b (c)", both...)
		if s := report.Switch; s.Moved != 1 || s.Unassigned != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// TestNoTestPackets: a host that can send no test packets says so, and does not blame its peers.
func TestNoTestPackets(t *testing.T) {
	h := newHost(t, "old", switching)
	h.testErr = errors.New("no packet socket")
	report := h.does("old: b; new~b: (b)", peer(1, "old", prepared))
	if s := report.Switch; s.Fault != "test packets cannot be sent: no packet socket" || s.Waiting[0].Reason != "this host cannot use new" {
		t.Errorf("%+v", s)
	}
	h.testErr = nil
	if report := h.does("old: b; new~b: (b); old: (b); new~b: b", peer(1, "old", prepared)); report.Switch.Fault != "" {
		t.Errorf("%+v", report.Switch)
	}
}

// TestChangeToRefuses: what does not follow is not taken up.
func TestChangeToRefuses(t *testing.T) {
	h := newHost(t, "old", `{}`)
	for kind, options := range map[string]string{"new": `{}`, "third": `{"epoch":1}`, "old": `{"epoch":1}`} {
		if err := h.b.ChangeTo(definition(h.t, kind, options), h.config()); err == nil {
			t.Errorf("%s %s was taken up", kind, options)
		}
	}
	if err := h.b.ChangeTo(definition(t, "old", `{"next":{"type":"none"}}`), h.config()); err == nil {
		t.Error("an unknown backend was taken up")
	}
	h.does("old: b", peer(1, "old", `{}`))
}

// keyed is a backend whose host has a key.
type keyed struct{ *recording }

func (k keyed) Abilities() backend.Abilities { return backend.Abilities{Rekey: k.rekey} }

func (k keyed) rekey() error {
	k.calls = append(k.calls, k.name()+": new key")
	return nil
}

// TestMissedSwitches checks that a host that has missed a switch away from its backend and the switch back to it
// replaces its key, which is from before both.
func TestMissedSwitches(t *testing.T) {
	types := newRecorder().types()
	h := newHost(t, "old", `{}`)
	for name := range types {
		plain := h.b.types[name]
		plain.New = func(c backend.Config) (backend.Backend, error) {
			return keyed{&recording{h.recorder, name, strings.TrimPrefix(c.Link, "leno-n")}}, nil
		}
		h.b.types[name] = plain
	}
	h.b.current.backend = keyed{h.b.current.backend.(*recording)}
	h.does("old: b", peer(1, "old", `{}`))
	h.follow("old", `{"since":"2026-01-03T00:00:00Z"}`)
	h.does("old: b", peer(1, "old", `{}`))
	h.follow("old", `{"epoch":2}`)
	h.does("old: new key; old: b", peer(1, "old", `{}`))
	h.follow("old", `{"epoch":2,"next":{"type":"new"}}`)
	h.does("old: b; new~b: (b)?", peer(1, "old", `{}`))

	// A backend that a switch has left, and that the next switch takes up again before it was removed, gets a new key, too.
	h.follow("new", `{"epoch":3}`)
	h.follow("new", `{"epoch":3,"next":{"type":"old"}}`)
	h.does("old: new key; new~b: b; old: (b)?", peer(1, "new", `{"epoch":1}`))
}

// counts is a backend that counts the same for each peer.
type counts struct {
	*recording
	bytes uint64
}

func (c counts) Abilities() backend.Abilities { return backend.Abilities{Counters: c.counters} }

func (c counts) counters() map[string]backend.Counters {
	return map[string]backend.Counters{"": {TxBytes: c.bytes}, "b": {TxBytes: c.bytes}, "c": {TxBytes: c.bytes}}
}

// TestEncrypted: during a switch, the traffic with a peer counts as encrypted if its packets go over a backend that
// encrypts.
func TestEncrypted(t *testing.T) {
	for _, tt := range []struct {
		encrypt string // the backends that do
		want    string
	}{
		{"", "map[]"},
		{"old", "map[b:1]"},
		{"new", "map[c:2]"},
		{"old new", "map[b:1 c:2]"},
	} {
		h := newHost(t, "old", switching)
		h.b.current.backend, h.b.next.backend = counts{h.b.current.backend.(*recording), 1}, counts{h.b.next.backend.(*recording), 2}
		for _, name := range strings.Fields(tt.encrypt) {
			kind := h.b.types[name]
			kind.Encrypts = true
			h.b.types[name] = kind
		}
		h.wait["new~b"] = []string{"b"}
		h.apply(peer(1, "old", prepared), peer(2, "old", prepared))
		got := map[string]uint64{}
		for node, n := range h.b.Encrypted() {
			got[node] = n.TxBytes
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%q encrypt: %v, want %s", tt.encrypt, got, tt.want)
		}
	}
	h := newHost(t, "old", `{}`)
	kind := h.b.types["old"]
	kind.Encrypts = true
	h.b.types["old"] = kind
	h.b.current.backend = counts{h.b.current.backend.(*recording), 1}
	if all := h.b.Encrypted(); len(all) != 3 {
		t.Errorf("without a switch: %v", all)
	}
}

// TestThirdBackend: a device is free before another backend gets it, and until then the lease does not say that the host
// can receive over that backend.
func TestThirdBackend(t *testing.T) {
	h := newHost(t, "old", switching)
	h.b.hasLink = func(string) bool { return true }
	h.mtu["third"] = 1440
	h.does("old: ; new~b: ")
	h.says(strings.TrimSuffix(prepared, "}") + `,"sends":"b"}`)
	h.follow("old", `{"next":{"type":"third"}}`)
	h.says(`{"key":"old"}`)
	h.does("new~b: remove but [10.5.0.0/16]; new~b: close; old: ; third~b: ")
	h.says(`{"key":"old","next":{"key":"third~b","type":"third"},"sends":"b"}`)
}

// TestChangedOptions: if an option changes on which both ends of a path must agree, the lease does not say that the host
// can receive over the backend, and no packet is sent over it, before it has the new options. Other options change nothing.
func TestChangedOptions(t *testing.T) {
	h := newHost(t, "old", switching)
	h.does("old: b; new~b: (b); old: (b); new~b: b", peer(1, "old", prepared))
	h.says(strings.TrimSuffix(prepared, "}") + `,"sends":"b"}`)
	h.follow("old", `{"next":{"mtu":1400,"type":"new"}}`)
	h.says(strings.TrimSuffix(prepared, "}") + `,"sends":"b"}`)
	h.does("new~b: close; old: (b); new~b: b", peer(1, "old", prepared))
	h.follow("old", `{"next":{"mtu":1400,"port":1,"type":"new"}}`)
	h.says(`{"key":"old"}`)
	h.does("new~b: close; old: b; new~b: (b); old: (b); new~b: b", peer(1, "old", prepared))
	h.says(strings.TrimSuffix(prepared, "}") + `,"sends":"b"}`)
}

// TestChangedPools: a backend gets the pools of the network exactly once, also if it is being removed when it returns, and
// if the first attempt to give it other ones failed.
func TestChangedPools(t *testing.T) {
	h := newHost(t, "old", switching)
	h.does("old: ; new~b: ")
	change := func(options, pool string) error {
		c := h.config()
		c.Pools = []netip.Prefix{netip.MustParsePrefix(pool)}
		return h.b.ChangeTo(definition(t, "old", options), c)
	}
	for _, step := range []struct {
		options, pool string
		fail          error
		want          string
	}{
		{"{}", "10.5.0.0/16", nil, ""},
		{switching, "10.5.0.0/16", nil, ""},
		{"{}", "10.5.0.0/16", nil, ""},
		{"{}", "10.4.0.0/15", nil, "old: close"},
		{switching, "10.4.0.0/15", nil, "new~b: close"},
		{switching, "10.0.0.0/8", errors.New("no memory"), "old: close"},
		{switching, "10.0.0.0/8", nil, "new~b: close"},
		{switching, "10.0.0.0/8", nil, ""},
	} {
		h.newErr = map[string]error{"new": step.fail}
		err := change(step.options, step.pool)
		if got := h.did(); !errors.Is(err, step.fail) || got != step.want {
			t.Errorf("%s %s: did %q, %v, want %q", step.options, step.pool, got, err, step.want)
		}
	}
}

// TestRemove: the zero state removes both.
func TestRemove(t *testing.T) {
	h := newHost(t, "old", switching)
	h.does("old: ; new~b: ")
	if _, err := h.b.Apply(t.Context(), backend.State{}); err != nil || h.did() != "old: remove but []; new~b: remove but []" {
		t.Errorf("%v", err)
	}
}

func TestNormalize(t *testing.T) {
	types := newRecorder().types()
	d := definition(t, "old", switching)
	if got, err := d.Normalize(types); err != nil || !reflect.DeepEqual(got, d) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, options := range []string{`{"next":{"type":"alloc"}}`, `{"next":{"type":"none"}}`} {
		if _, err := definition(t, "old", options).Normalize(types); err == nil || !strings.Contains(err.Error(), "cannot switch to backend") {
			t.Errorf("%s: %v", options, err)
		}
	}
}

// TestSharedAddress checks that a host that shares its public address takes part only in networks whose backend can
// tell it apart, and that its lease says so during a switch.
func TestSharedAddress(t *testing.T) {
	u := backend.Underlay{Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, Ports: map[uint16]uint16{1: 2}}
	const reason = "underlay.public_ports is set, so that other hosts have the public address too, and backend old needs one for each host"
	h := newHost(t, "old", `{}`)
	if _, err := h.b.Advertise(u); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("advertise: %v", err)
	}
	if _, err := h.b.Advertise(backend.Underlay{Addrs: u.Addrs}); err != nil {
		t.Errorf("with an address of its own: %v", err)
	}
	h = newHost(t, "third", `{"next":{"type":"old"}}`)
	if advert, err := h.b.Advertise(u); err != nil || !strings.Contains(string(advert.Attributes), reason) {
		t.Errorf("during a switch: %s, %v", advert.Attributes, err)
	}
}
