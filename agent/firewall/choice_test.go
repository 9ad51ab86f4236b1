package firewall

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

func TestChoose(t *testing.T) {
	missing := fmt.Errorf("%w: iptables", ErrNotInstalled)
	broken := errors.New("iptables-nft-save: no")
	nft := finding{kind: "iptables-nft", what: "/sbin/iptables v1.8.9", preferred: true}
	legacy := finding{kind: "iptables-legacy", what: "/sbin/iptables-legacy v1.8.9"}
	native := finding{kind: kindNFTables}
	with := func(f finding, err error) finding { f.err = err; return f }
	preferring := func(f finding, yes bool) finding { f.preferred = yes; return f }
	doubtful := func(f finding) finding { f.preferred, f.doubt = false, broken; return f }
	for _, tt := range []struct {
		name  string
		t     Type
		found []finding
		last  string
		kind  string
		words string
		err   error
	}{
		{"the preferred variant", TypeAuto, []finding{nft, legacy, native}, "", "iptables-nft", "/sbin/iptables v1.8.9 is installed and works", nil},
		{"which may be legacy", TypeAuto, []finding{preferring(nft, false), preferring(legacy, true), native}, "", "iptables-legacy", "installed and works", nil},
		{"no iptables", TypeAuto, []finding{with(nft, missing), with(legacy, missing), native}, "", kindNFTables, "iptables is not installed", nil},
		{"the preferred is broken", TypeAuto, []finding{with(nft, broken), legacy, native}, "", "iptables-legacy", "a preferred firewall failed: iptables-nft-save: no", nil},
		{"all iptables are broken", TypeAuto, []finding{with(nft, broken), with(legacy, missing), native}, "", kindNFTables, "a preferred firewall failed: iptables-nft-save: no", nil},
		{"only iptables", TypeIPTables, []finding{with(nft, broken), legacy}, "", "iptables-legacy", "as configured", nil},
		{"only iptables, missing", TypeIPTables, []finding{with(nft, missing), with(legacy, missing)}, "", "", "", ErrNotInstalled},
		{"only iptables, broken", TypeIPTables, []finding{with(nft, broken), with(legacy, missing)}, "", "", "", broken},
		{"only nftables", TypeNFTables, []finding{native}, "", kindNFTables, "as configured", nil},
		{"only nftables, broken", TypeNFTables, []finding{with(native, broken)}, "", "", "", broken},
		{"one family only, and another has both", TypeAuto, []finding{{kind: "iptables-nft", preferred: true, usable: true, err: missing}, native}, "", kindNFTables,
			"a preferred firewall failed", nil},
		{"one family only, and no other", TypeIPTables, []finding{{kind: "iptables-nft", what: "/sbin/iptables", preferred: true, usable: true, err: missing}}, "", "iptables-nft",
			"/sbin/iptables is installed", nil},
		{"nothing", TypeNFTables, nil, "", "", "", ErrNotInstalled},
		{"chosen, and broken for a moment", TypeAuto, []finding{with(nft, broken), legacy, native}, "iptables-nft", "iptables-nft", "", nil},
		{"chosen, and its plain name broken", TypeAuto, []finding{doubtful(nft), doubtful(legacy), native}, "iptables-legacy", "iptables-legacy", "", nil},
		{"chosen, and uninstalled", TypeAuto, []finding{with(nft, missing), legacy, native}, "iptables-nft", "iptables-legacy", "", nil},
		{"broken, and another one is preferred now", TypeAuto, []finding{nft, with(legacy, broken), native}, "iptables-legacy", "iptables-nft", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			best, reason, err := choose(tt.t, tt.found, tt.last)
			if best.kind != tt.kind || !strings.Contains(reason, tt.words) || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Errorf("got %q because %q, %v", best.kind, reason, err)
			}
		})
	}
}

// fakeKind is a kind that keeps the rules it was given, and writes to a log.
type fakeKind struct {
	name   string
	log    *[]string
	err    error
	number int // of its imaginary program
	looks  int
	has    rules
	fails  error
	doubt  error
}

func (f *fakeKind) kind() string  { return f.name }
func (f *fakeKind) stamp() string { return fmt.Sprint(f.number) }

func (f *fakeKind) inspect(context.Context, rules) finding {
	f.looks++
	return finding{what: f.name, preferred: true, err: f.err, doubt: f.doubt}
}

func (f *fakeKind) apply(_ context.Context, want rules) ([]string, error) {
	if f.fails != nil {
		return nil, f.fails
	}
	if reflect.DeepEqual(want, f.has) || want.isEmpty() && f.has.isEmpty() {
		return nil, nil
	}
	f.has = want
	*f.log = append(*f.log, map[bool]string{true: "-", false: "+"}[want.isEmpty()]+f.name)
	return []string{f.name}, nil
}

// When the kind changes, the new rules are in place before the old ones go.
func TestKindChanges(t *testing.T) {
	var log []string
	nft, native := &fakeKind{name: "iptables-nft", log: &log}, &fakeKind{name: kindNFTables, log: &log}
	fw := New(hclog.NewNullLogger())
	fw.appliers = []tableWriter{nft, native}
	state := State{Networks: two()[1:]}
	refused := errors.New("refused")
	for _, step := range []struct {
		name string
		do   func()
		log  string
		kind string
		left error
		err  error
	}{
		{"first", func() {}, "+iptables-nft", "iptables-nft", nil, nil},
		{"the same", func() {}, "", "iptables-nft", nil, nil},
		{"fails, and stays what was chosen", func() { nft.fails = refused }, "", "iptables-nft", nil, refused},
		{"works again", func() { nft.fails = nil }, "", "iptables-nft", nil, nil},
		{"another type", func() { state.Type = TypeNFTables }, "+nftables -iptables-nft", kindNFTables, nil, nil},
		{"and back", func() { state.Type = TypeAuto }, "+iptables-nft -nftables", "iptables-nft", nil, nil},
		{"uninstalled", func() { nft.number, nft.err = 1, ErrNotInstalled }, "+nftables -iptables-nft", kindNFTables, nil, nil},
		{"installed", func() { nft.number, nft.err = 2, nil }, "+iptables-nft -nftables", "iptables-nft", nil, nil},
		{"broken for a moment", func() { nft.number, nft.err, nft.fails = 3, refused, refused }, "", "iptables-nft", nil, refused},
		{"and no more", func() { nft.number, nft.err, nft.fails = 4, nil, nil }, "", "iptables-nft", nil, nil},
		{"the old ones cannot be removed", func() { state.Type = TypeNFTables; nft.fails = refused }, "+nftables", kindNFTables, refused, nil},
		{"until they can", func() { nft.fails = nil }, "-iptables-nft", kindNFTables, nil, nil},
		{"nothing wanted", func() { state.Networks = nil }, "-nftables", "", nil, nil},
	} {
		log = nil
		step.do()
		looks := nft.looks
		report, err := fw.Apply(t.Context(), state)
		if diff := cmp.Diff([]string{step.log, step.kind}, []string{strings.Join(log, " "), report.Choice.Kind}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		if !errors.Is(err, step.err) || !errors.Is(report.Leftover, step.left) || (report.Leftover == nil) != (step.left == nil) {
			t.Errorf("%s: %v, left %v", step.name, err, report.Leftover)
		}
		if step.name == "the same" && nft.looks != looks {
			t.Error("it looked again though nothing changed")
		}
	}
}

// The error that broke the preferred kind at the start is reported until the kind works.
func TestInstead(t *testing.T) {
	var log []string
	refused := errors.New("refused")
	nft, native := &fakeKind{name: "iptables-nft", log: &log, err: refused}, &fakeKind{name: kindNFTables, log: &log}
	fw := New(hclog.NewNullLogger())
	fw.appliers = []tableWriter{nft, native}
	for _, step := range []struct {
		do      func()
		kind    string
		instead error
	}{
		{func() {}, kindNFTables, refused},
		{func() {}, kindNFTables, refused},
		{func() { nft.number, nft.err = 1, nil }, "iptables-nft", nil},
		{func() { nft.number, nft.doubt = 2, refused }, "iptables-nft", refused},
		{func() { nft.number, nft.doubt, nft.err = 3, nil, ErrNotInstalled }, kindNFTables, nil},
	} {
		step.do()
		report, err := fw.Apply(t.Context(), State{Networks: two()})
		if err != nil || report.Choice.Kind != step.kind || !errors.Is(report.Instead, step.instead) || (report.Instead == nil) != (step.instead == nil) {
			t.Errorf("%+v, %v", report, err)
		}
	}
}

// Rules that were right but cannot be listed for a while are no fault, unless something else is wrong or may be.
func TestUnseen(t *testing.T) {
	slow := errors.Join(fmt.Errorf("IPv4 firewall: %w", netfilter.ErrUnlisted))
	both := errors.Join(slow, errors.New("write table nat: no"))
	var log []string
	nft := &fakeKind{name: "iptables-nft", log: &log, fails: slow}
	fw := New(hclog.NewNullLogger())
	fw.appliers = []tableWriter{nft}
	for _, step := range []struct {
		name     string
		fails    error
		number   int
		networks []Network
		unseen   bool
	}{
		{"never seen", slow, 0, two(), false},
		{"seen", nil, 0, two(), false},
		{"not now", slow, 0, two(), true},
		{"again not", slow, 0, two(), true},
		{"something else, too", both, 0, two(), false},
		{"after which nothing is known", slow, 0, two(), false},
		{"seen once more", nil, 0, two(), false},
		{"others are wanted", slow, 0, two()[1:], false},
		{"and seen", nil, 0, two(), false},
		{"the program is another one", slow, 1, two(), false},
	} {
		nft.fails, nft.number = step.fails, step.number
		_, err := fw.Apply(t.Context(), State{Networks: step.networks})
		if errors.Is(err, ErrUnseen) != step.unseen || (err == nil) != (step.fails == nil) {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}
