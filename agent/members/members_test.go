package members

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func TestStatus(t *testing.T) {
	t.Parallel()
	v := NewView([]registry.Member{
		{Node: "host-a", Addr: netip.MustParseAddr("192.0.2.1"), Status: registry.MemberAlive},
		{Node: "host-b", Addr: netip.MustParseAddr("192.0.2.2"), Status: registry.MemberFailed},
		{Node: "old", Addr: netip.MustParseAddr("192.0.2.3"), Status: registry.MemberFailed},
		{Node: "new", Addr: netip.MustParseAddr("192.0.2.3"), Status: registry.MemberAlive},
		{Node: "other", Addr: netip.MustParseAddr("192.0.2.4"), Status: registry.MemberLeft},
	})
	for _, tt := range []struct {
		what, node string
		addrs      []netip.Addr
		want       string
	}{
		{"by address", "another-name", addrs("192.0.2.2"), registry.MemberFailed},
		{"the address comes before the name", "host-a", addrs("192.0.2.2"), registry.MemberFailed},
		{"by name", "host-b", addrs("198.51.100.2"), registry.MemberFailed},
		{"installed again", "old", addrs("192.0.2.3"), registry.MemberAlive},
		{"the second address", "x", addrs("2001:db8::1", "192.0.2.4"), registry.MemberLeft},
		{"an IPv4 address in IPv6", "x", addrs("::ffff:192.0.2.1"), registry.MemberAlive},
		{"no member", "x", addrs("198.51.100.9"), ""},
	} {
		if got := v.Status(tt.node, tt.addrs); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
	if got := (View{}).Status("host-a", addrs("192.0.2.1")); got != "" {
		t.Errorf("status before the first answer: %q", got)
	}
}

// store is a store with members.
type store struct {
	mu     sync.Mutex
	status string // of the only member; "" for an error
}

func (s *store) Members(context.Context) ([]registry.Member, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status == "" {
		return nil, errors.New("no answer")
	}
	return []registry.Member{{Node: "host-a", Addr: netip.MustParseAddr("192.0.2.1"), Status: s.status}}, nil
}

// TestRun: a change is seen within seconds, also that the store's agent does not answer, and what is equal wakes no reader.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, changed := &store{}, watch.New[struct{}]()
		w := New(s.Members, changed)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		for _, status := range []string{registry.MemberAlive, registry.MemberFailed, ""} {
			_, _, woken := changed.Get()
			s.mu.Lock()
			s.status = status
			s.mu.Unlock()
			time.Sleep(2 * pause)
			synctest.Wait()
			if got := w.View().Status("host-a", nil); got != status {
				t.Errorf("status %q, want %q", got, status)
			}
			select {
			case <-woken:
			default:
				t.Errorf("no reader was woken by %q", status)
			}
			_, _, woken = changed.Get()
			time.Sleep(3 * pause)
			synctest.Wait()
			select {
			case <-woken:
				t.Errorf("readers were woken although %q stays", status)
			default:
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestNoMembers: a store without members knows none, and Run ends with its context.
func TestNoMembers(t *testing.T) {
	t.Parallel()
	w := New(nil, watch.New[struct{}]())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := w.View().Status("host-a", addrs("192.0.2.1")); got != "" {
		t.Errorf("status %q", got)
	}
}

// TestManyMembers: a fleet of 10,000 is no effort.
func TestManyMembers(t *testing.T) {
	t.Parallel()
	var list []registry.Member
	for i := range 10_000 {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		list = append(list, registry.Member{Node: fmt.Sprint("host-", i), Addr: addr, Status: registry.MemberAlive})
	}
	if !NewView(list).equal(NewView(list)) {
		t.Error("two views of one list differ")
	}
}
