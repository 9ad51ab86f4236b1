package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// askTimeout bounds one look at an agent or the store. A stopped agent takes
// connections and never answers.
const askTimeout = 3 * time.Second

// watchAgent looks at one machine's agent again and again.
func (r *run) watchAgent(ctx context.Context, m *machine) error {
	var noticed int64 // of the log, bytes
	var watched *lab.Process
	var view []Entry
	for {
		if err := sleep(ctx, r.Every); err != nil {
			return nil
		}
		node, p := m.now()
		if p == nil {
			continue
		}
		if p != watched {
			watched, noticed = p, 0
		}
		claim := r.ask(ctx, m, node)
		if ctx.Err() != nil {
			return nil
		}
		claim.Process = p.Pid()
		if slices.Equal(claim.View, view) {
			claim.View = view // most looks see the same, and a run can be long
		}
		view = claim.View
		text, err := readFrom(p.Log, noticed)
		if err != nil {
			return err
		}
		// The last line may not be whole yet.
		text = text[:strings.LastIndexByte(text, '\n')+1]
		noticed += int64(len(text))
		notices := noticesIn(node, p.Pid(), text)
		now, same := m.now()
		r.record(func(h *History) {
			h.Notices = append(h.Notices, notices...)
			if now != node || same != p {
				return // somebody ended it meanwhile
			}
			h.Claims = append(h.Claims, claim)
			if !p.Running() {
				h.Endings = append(h.Endings, Ending{node, r.now(), lastLines(p.Output(), 5)})
			}
		})
		if !p.Running() && same == p {
			return nil
		}
	}
}

// ask takes one claim.
func (r *run) ask(ctx context.Context, m *machine, node string) Claim {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c := Claim{Node: node, Span: Span{From: r.now()}}
	var n api.Network
	var health api.Health
	var leases api.LeaseList
	answered := true
	for path, into := range map[string]any{
		"/v1/network/" + m.network: &n, "/v1/network/" + m.network + "/leases?memory=true": &leases, "/healthz": &health,
	} {
		status, body, err := m.Get(ctx, path)
		if err != nil {
			answered = false
			break
		}
		if status == http.StatusOK || path == "/healthz" {
			answered = answered && json.Unmarshal([]byte(body), into) == nil
		}
	}
	c.To, c.Answered = r.now(), answered
	if !answered {
		return c
	}
	if n.Local != nil {
		c.Subnets, c.Renewed = n.Local.Subnets, n.Local.Renewed.Sub(r.start)
	}
	c.Status, c.Trouble = health.Status, troubles(health)
	c.View = []Entry{}
	for _, l := range leases.Leases {
		c.View = append(c.View, Entry{l.Subnet, l.Node})
	}
	return c
}

// troubles is the checks that do not pass.
func troubles(h api.Health) string {
	var out []string
	checks := h.Checks
	for _, n := range h.Networks {
		checks = append(checks, n.Checks...)
	}
	for _, c := range checks {
		if c.Status != api.Passing {
			out = append(out, fmt.Sprintf("%s %s: %s", c.Name, c.Status, c.Reason))
		}
	}
	return strings.Join(out, "; ")
}

var moved = regexp.MustCompile(`\[ERROR\].*this host has another subnet now.* subnet=([0-9a-f.:/]+)`)

// noticesIn is what an agent's log says about having moved.
func noticesIn(node string, process int, log string) (out []Notice) {
	for _, m := range moved.FindAllStringSubmatch(log, -1) {
		if p, err := netip.ParsePrefix(m[1]); err == nil {
			out = append(out, Notice{node, process, p})
		}
	}
	return out
}

// readFrom is the rest of a file from an offset.
func readFrom(path string, offset int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return "", err
	}
	text, err := io.ReadAll(file)
	return string(text), err
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// watchStore reads everything below leno/ again and again, at the server that
// answered last.
func (r *run) watchStore(ctx context.Context) error {
	server := 0
	for {
		if err := sleep(ctx, r.Every/2); err != nil {
			return nil
		}
		from := r.now()
		call, cancel := context.WithTimeout(ctx, askTimeout/2)
		pairs, _, err := r.Servers[server].Client().KV().List("leno/",
			(&consul.QueryOptions{RequireConsistent: true, Token: operatorToken}).WithContext(call))
		cancel()
		if err != nil {
			server = (server + 1) % len(r.Servers)
			continue
		}
		reads := readOf(pairs, Span{from, r.now()})
		r.record(func(h *History) { h.Reads = append(h.Reads, reads...) })
	}
}

// readOf takes the networks' leases out of one answer. Records that are no
// leases are left out.
func readOf(pairs consul.KVPairs, at Span) []Read {
	reads := []Read{{Span: at, Network: carried}, {Span: at, Network: leased}}
	for i := range reads {
		read := &reads[i]
		for _, p := range pairs {
			if p.Key == "leno/networks/"+read.Network {
				read.Defined = true
			}
			if !strings.HasPrefix(p.Key, "leno/leases/"+read.Network+"/") {
				continue
			}
			var value struct {
				Subnet  netip.Prefix
				Subnets []netip.Prefix
				Node    string
			}
			if json.Unmarshal(p.Value, &value) == nil {
				read.Records = append(read.Records, Record{Entry{value.Subnet, value.Node}, value.Subnets, p.Session})
			}
		}
	}
	return reads
}

// routeProtocol marks leno's routes.
const routeProtocol = 108

// watchRoutes lists a machine's routes again and again, and takes down each that
// the kernel says is gone.
func (r *run) watchRoutes(ctx context.Context, m *machine) error {
	events := make(chan netlink.RouteUpdate, 256)
	done := make(chan struct{})
	defer close(done)
	var k *netlink.Handle
	err := m.Do(func() (err error) {
		if k, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return netlink.RouteSubscribe(events, done)
	})
	if err != nil {
		return fmt.Errorf("watch the routes of %s: %w", m.Name, err)
	}
	defer k.Close()
	tick := time.NewTicker(r.Every / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if !ok {
				return fmt.Errorf("the kernel's news of routes on %s ended", m.Name)
			}
			if to, ok := destination(e.Route); ok && e.Type == unix.RTM_DELROUTE {
				r.record(func(h *History) { h.Removals = append(h.Removals, Removal{m.node, r.now(), to}) })
			}
		case <-tick.C:
			list := RouteList{Node: m.node, At: r.now()}
			routes, err := k.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
			if err != nil {
				return fmt.Errorf("list the routes of %s: %w", m.Name, err)
			}
			for _, route := range routes {
				if to, ok := destination(route); ok {
					list.To = append(list.To, to)
				}
			}
			r.record(func(h *History) { h.Routes = append(h.Routes, list) })
		}
	}
}

// destination is where one of leno's routes to a peer goes; not its route for
// the rest of the network, which goes nowhere.
func destination(r netlink.Route) (netip.Prefix, bool) {
	if r.Protocol != routeProtocol || r.Type != unix.RTN_UNICAST || r.Dst == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}
