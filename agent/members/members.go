// Package members follows what the agents of the store say of each other: Consul's gossip knows after seconds that a
// host has failed, while its lease is held until its session ends. What they say is shown and changes nothing else.
package members

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// The store's agent answers from its memory. It is asked every pause, and less often if the answer is long: 10,000
// members take 40 ms to read.
const (
	pause     = 5 * time.Second
	perMember = 2 * time.Millisecond
)

// Watcher follows the members. Run is called once; the other methods are safe for concurrent use.
type Watcher struct {
	list    func(context.Context) ([]registry.Member, error) // nil if the store has no such agents
	changed *watch.Value[struct{}]
	known   *watch.Value[View]
}

// New returns a Watcher of the members that a store lists: registry.Abilities.Members. It sets changed when they
// change.
func New(list func(context.Context) ([]registry.Member, error), changed *watch.Value[struct{}]) *Watcher {
	return &Watcher{list: list, changed: changed, known: watch.New[View]()}
}

// Run follows the members until ctx ends, whose error it returns.
func (w *Watcher) Run(ctx context.Context) error {
	if w.list == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	for {
		call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		list, err := w.list(call)
		cancel()
		if err != nil {
			list = nil // nothing is known now
		}
		if now := NewView(list); !now.equal(w.View()) {
			w.known.Set(now)
			w.changed.Set(struct{}{})
		}
		if err := retry.Sleep(ctx, pause+time.Duration(len(list))*perMember); err != nil {
			return err
		}
	}
}

// View returns what is known now.
func (w *Watcher) View() View {
	known, _, _ := w.known.Get()
	return known
}

// View is what the members are known as at one time. It is never changed.
type View struct {
	byAddr map[netip.Addr]string
	byNode map[string]string
}

// NewView returns the view of a list. A member of several entries, such as a host that was installed again under
// another name, has the best status of them.
func NewView(list []registry.Member) View {
	v := View{map[netip.Addr]string{}, map[string]string{}}
	for _, m := range list {
		v.byAddr[m.Addr] = better(v.byAddr[m.Addr], m.Status)
		v.byNode[m.Node] = better(v.byNode[m.Node], m.Status)
	}
	return v
}

// Status returns the status of the member that has one of a host's public addresses, or else the host's name. It is ""
// if there is none: the host may share the Consul agent of another.
func (v View) Status(node string, addrs []netip.Addr) string {
	status := ""
	for _, a := range addrs {
		status = better(status, v.byAddr[a.Unmap()])
	}
	if status != "" {
		return status
	}
	return v.byNode[node]
}

func (v View) equal(other View) bool {
	return maps.Equal(v.byAddr, other.byAddr) && maps.Equal(v.byNode, other.byNode)
}

// better returns the one of two statuses that says most for the host: alive, failed, left, none.
func better(a, b string) string {
	for _, status := range []string{registry.MemberAlive, registry.MemberFailed, registry.MemberLeft} {
		if a == status || b == status {
			return status
		}
	}
	return ""
}
