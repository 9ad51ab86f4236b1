package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// walled is a host whose agent finds the iptables variant that the test chooses.
type walled struct {
	*testWorld
	host *lab.Host
	bin  string // first directory of its PATH
}

// newWalled gives the first host a PATH of its own. Both families' programs are in it under their
// plain names.
func newWalled(w *testWorld, variant string) walled {
	w.T.Helper()
	h := walled{w, w.Hosts[0], filepath.Join(w.Dir, "bin")}
	w.Must(os.MkdirAll(h.bin, 0o755))
	h.prefer(variant)
	h.host.Program = filepath.Join(w.Dir, "leno-with-path")
	script := fmt.Sprintf("#!/bin/sh\nPATH=%s:$PATH\nexec %s \"$@\"\n", h.bin, world.Leno())
	w.Must(programs.Write(h.host.Program, []byte(script)))
	return h
}

// prefer makes iptables stand for a variant, as update-alternatives does.
func (h walled) prefer(variant string) {
	h.T.Helper()
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, part := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(command + "-" + variant + part)
			h.Must(err)
			link := filepath.Join(h.bin, command+part)
			h.Must(os.Symlink(program, link+".new"))
			h.Must(os.Rename(link+".new", link))
		}
	}
}

// rules returns leno's rules in each kind of firewall.
func (h walled) rules(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	for kind, script := range map[string]string{
		"iptables-nft":    "iptables-nft-save; ip6tables-nft-save",
		"iptables-legacy": "iptables-legacy-save; ip6tables-legacy-save",
		"nftables":        "nft list tables | grep -qx 'table inet leno' && nft list table inet leno || true",
	} {
		text, err := h.host.Exec(ctx, "sh", "-ec", script)
		if err != nil {
			return nil, err
		}
		var lines []string
		for line := range strings.Lines(text) {
			if strings.Contains(strings.ToLower(line), "leno") && !strings.HasPrefix(line, ":") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		out[kind] = strings.Join(lines, "\n")
	}
	return out, nil
}

// stand blocks until all of leno's rules are of one kind, and include or do not include rules for
// blue.
func (h walled) stand(kind string, blue bool) {
	h.T.Helper()
	h.Eventually("rules of "+kind, func(ctx context.Context) error {
		all, err := h.rules(ctx)
		if err != nil {
			return err
		}
		for other, rules := range all {
			if (rules != "") != (other == kind) {
				return fmt.Errorf("%s has %q", other, rules)
			}
		}
		if got := strings.Contains(all[kind], "leno blue"); got != blue {
			return fmt.Errorf("rules of blue: %t, want %t", got, blue)
		}
		var self api.Self
		if err := world.GetJSON(ctx, h.host, "/v1/agent/self", &self); err != nil {
			return err
		}
		if self.Firewall == nil || self.Firewall.Kind != kind {
			return fmt.Errorf("the agent says %+v", self.Firewall)
		}
		return nil
	})
}

// config returns the host's configuration. blue is the content of the second network's block, or ""
// for no such network.
func (h walled) config(firewall, blue string) string {
	blocks := []string{world.ShortLease, fmt.Sprintf("firewall {\n  type = %q\n  resync = \"1s\"\n}", firewall),
		h.host.Network("default", world.Plan("host-gw")+"\n  ip_masq = true")}
	if blue != "" {
		blocks = append(blocks, h.host.Network("blue", "  ipv4 { prefix = \"10.6.0.0/16\" }\n  backend \"host-gw\" {}\n"+blue))
	}
	return h.host.Config(blocks...)
}

func (h walled) reload(firewall, blue string) {
	h.T.Helper()
	h.Must(os.WriteFile(h.host.ConfigFile(), []byte(h.config(firewall, blue)), 0o644))
	if out, err := h.host.Leno(h.Ctx, "reload"); err != nil {
		h.T.Fatal(err, out)
	}
}

// dials counts new connections, one TCP and one UDP per millisecond, from a container to a server
// outside that reports the source address it sees.
type dials struct {
	w      *testWorld
	family int
	cancel context.CancelFunc
	made   atomic.Int64

	done  chan struct{} // closed when no more are made; the fields below are set then
	wrong []string
	err   error
}

// dial makes connections until stop is called.
func (w *testWorld) dial(from *lab.Container, to *lab.Host, family int) *dials {
	w.T.Helper()
	var streams *net.TCPListener
	var packets *net.UDPConn
	at := netip.AddrPortFrom(to.Addrs[family], 0)
	w.Must(to.Do(func() (err error) {
		if streams, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at)); err == nil {
			packets, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		}
		return err
	}))
	ctx, cancel := context.WithCancel(w.Ctx)
	d := &dials{w: w, family: family, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		defer streams.Close()
		defer packets.Close()
		want := from.Host.Addrs[family]
		d.err = from.Do(func() error {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				for _, connect := range []func() (netip.AddrPort, error){
					func() (netip.AddrPort, error) { return stream(streams) },
					func() (netip.AddrPort, error) { return packet(packets) },
				} {
					seen, err := connect()
					if err != nil {
						return err
					}
					if d.made.Add(1); seen.Addr().Unmap() != want {
						d.wrong = append(d.wrong, seen.String())
					}
				}
			}
			return nil
		})
	}()
	return d
}

// more blocks until n more connections were made, or making them has failed.
func (d *dials) more(n int64) {
	d.w.T.Helper()
	before := d.made.Load()
	d.w.Eventually(fmt.Sprintf("%d more connections", n), func(context.Context) error {
		if d.made.Load() < before+n {
			select {
			case <-d.done:
				return nil
			default:
				return fmt.Errorf("%d before, %d now", before, d.made.Load())
			}
		}
		return nil
	})
}

// stop ends the connections and checks what the server saw.
func (d *dials) stop() {
	d.w.T.Helper()
	d.cancel()
	<-d.done
	d.w.T.Logf("family %d: %d connections", d.family, d.made.Load())
	if d.err != nil || len(d.wrong) > 0 {
		d.w.T.Errorf("family %d: %d connections, wrong sources %q, %v", d.family, d.made.Load(), d.wrong, d.err)
	}
}

// stream opens a TCP connection to the listener and closes it in a way that keeps no port occupied.
func stream(to *net.TCPListener) (seen netip.AddrPort, err error) {
	conn, err := net.DialTCP("tcp", nil, to.Addr().(*net.TCPAddr))
	if err != nil {
		return seen, err
	}
	if err := to.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return seen, errors.Join(err, conn.Close())
	}
	accepted, err := to.AcceptTCP()
	if err != nil {
		return seen, errors.Join(err, conn.Close())
	}
	seen = accepted.RemoteAddr().(*net.TCPAddr).AddrPort()
	return seen, errors.Join(conn.SetLinger(0), conn.Close(), accepted.Close())
}

// packet sends one UDP packet to the listener.
func packet(to *net.UDPConn) (seen netip.AddrPort, err error) {
	conn, err := net.DialUDP("udp", nil, to.LocalAddr().(*net.UDPAddr))
	if err != nil {
		return seen, err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		return seen, err
	}
	if err := to.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return seen, err
	}
	_, seen, err = to.ReadFromUDPAddrPort(make([]byte, 1))
	return seen, err
}

// TestFirewallNeverEmpty checks that during any change of agent and configuration no new connection
// from a container to the outside is refused or arrives with another source than the host's.
func TestFirewallNeverEmpty(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	h := newWalled(w, "nft")
	w.Must(h.host.StartAgent(h.config("auto", "")))
	w.Must(w.Hosts[1].StartAgent(w.Hosts[1].Config(world.ShortLease, w.Hosts[1].Network("default", world.Plan("host-gw")))))
	for _, host := range w.Hosts {
		w.Must(host.WaitReady(w.Ctx))
	}
	c := w.Container(h.host, "default")
	for family := range c.Addrs {
		w.Must(c.Reach(w.Ctx, w.Hosts[1].Addrs[family]))
	}
	drop := func(policy string) {
		_, err := h.host.Exec(w.Ctx, "sh", "-ec", "iptables-nft -P FORWARD "+policy+"; ip6tables-nft -P FORWARD "+policy)
		w.Must(err)
	}
	drop("DROP")
	var all []*dials
	for family := range c.Addrs {
		all = append(all, w.dial(c, w.Hosts[1], family))
	}

	const asks = "  ip_masq = true\n  forward = true"
	for _, step := range []struct {
		name string
		do   func()
		kind string
		blue bool
	}{
		{"restart", func() { w.Must(h.host.StopAgent(w.Ctx)); w.Must(h.host.RestartAgent()) }, "iptables-nft", false},
		{"kill", func() { w.Must(h.host.KillAgent()); w.Must(h.host.RestartAgent()) }, "iptables-nft", false},
		{"another network", func() { h.reload("auto", asks) }, "iptables-nft", true},
		{"which asks for less", func() { h.reload("auto", "  forward = true") }, "iptables-nft", true},
		{"and for nothing", func() { h.reload("auto", "  forward = false") }, "iptables-nft", false},
		{"and for all", func() { h.reload("auto", asks) }, "iptables-nft", true},
		{"restart with both", func() { w.Must(h.host.StopAgent(w.Ctx)); w.Must(h.host.RestartAgent()) }, "iptables-nft", true},
		{"and goes", func() { h.reload("auto", "") }, "iptables-nft", false},
		// An accept rule of another kind does not override a DROP policy of this one.
		{"nftables", func() { drop("ACCEPT"); h.reload("nftables", asks) }, "nftables", true},
		{"restart with nftables", func() { w.Must(h.host.KillAgent()); w.Must(h.host.RestartAgent()) }, "nftables", true},
		{"which loses a network", func() { h.reload("nftables", "") }, "nftables", false},
		{"iptables", func() { h.reload("iptables", "") }, "iptables-nft", false},
		{"another variant", func() { h.prefer("legacy") }, "iptables-legacy", false},
		{"its network", func() { h.reload("auto", asks) }, "iptables-legacy", true},
		{"restart with it", func() { w.Must(h.host.StopAgent(w.Ctx)); w.Must(h.host.RestartAgent()) }, "iptables-legacy", true},
		{"and back", func() { h.prefer("nft") }, "iptables-nft", true},
	} {
		step.do()
		w.Must(h.host.WaitReady(w.Ctx))
		h.stand(step.kind, step.blue)
		for _, d := range all {
			d.more(20)
		}
		if t.Failed() {
			t.Fatalf("at %q", step.name)
		}
	}
	for _, d := range all {
		d.stop()
	}
}

// A damage is done to leno's rules by a script, and the log says what it is.
type damage struct{ script, says string }

// TestFirewallRepairs checks that leno repairs changes to its rules within 2 s, for every kind of
// firewall, and logs what was wrong, also while Consul is unreachable.
func TestFirewallRepairs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, variant, firewall, kind string
		damage                        []damage
	}{
		{"iptables-nft", "nft", "auto", "iptables-nft", []damage{
			{"iptables-nft -F", "no jump in FORWARD to LENO-FORWARD"},
			{"nft flush chain ip6 nat LENO-POSTROUTING", "other rules in LENO-POSTROUTING"},
			{"nft flush ruleset", "no chain LENO-OVERLAY"},
			{"iptables-nft -N X; iptables-nft -I FORWARD -j X", "a misplaced jump in FORWARD to LENO-FORWARD"},
		}},
		{"iptables-legacy", "legacy", "auto", "iptables-legacy", []damage{
			{"iptables-legacy -F", "no jump in FORWARD to LENO-FORWARD"},
			{"ip6tables-legacy -t nat -F LENO-POSTROUTING", "other rules in LENO-POSTROUTING"},
			{"iptables-legacy -N X; iptables-legacy -I FORWARD -j X", "a misplaced jump in FORWARD to LENO-FORWARD"},
		}},
		{"nftables", "nft", "nftables", "nftables", []damage{
			{"nft flush ruleset", "table inet leno"},
			{"nft flush chain inet leno overlay", "table inet leno"},
			{"nft insert rule inet leno forward drop", "table inet leno"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 1})
			h := newWalled(w, tt.variant)
			// The periodic check would be too late; only the watch is in time.
			config := strings.Replace(h.config(tt.firewall, ""), `resync = "1s"`, `resync = "1h"`, 1)
			w.Must(h.host.StartAgent(config))
			w.Must(h.host.WaitReady(w.Ctx))
			h.stand(tt.kind, false)
			before, err := h.rules(w.Ctx)
			w.Must(err)
			w.Must(w.Consul.Kill())
			w.Must(h.host.KillAgent())
			w.Must(h.host.RestartAgent())
			w.WaitHealth(h.host, 429)
			h.stand(tt.kind, false)
			for _, d := range tt.damage {
				script, says := d.script, d.says
				told := len(h.host.Agent().Output())
				_, err := h.host.Exec(w.Ctx, "sh", "-ec", script)
				w.Must(err)
				began := time.Now()
				w.Eventually("rules after "+script, func(ctx context.Context) error {
					now, err := h.rules(ctx)
					if err == nil && now[tt.kind] != before[tt.kind] {
						err = fmt.Errorf("%s, before %s", now[tt.kind], before[tt.kind])
					}
					return err
				})
				w.Eventually("a line about "+script, func(context.Context) error {
					if out := h.host.Agent().Output()[told:]; !strings.Contains(out, "firewall rules were changed by another program, repaired") || !strings.Contains(out, says) {
						return fmt.Errorf("it says %q", out)
					}
					return nil
				})
				if took := time.Since(began); took > repairTime {
					t.Errorf("%s: repaired after %s", script, took)
				}
			}
		})
	}
}

// TestFirewallUnreadable checks that an agent whose tables iptables cannot show keeps one jump to each chain, says
// which tables they are, and blames no other program; and that leno cleanup finds its rules.
func TestFirewallUnreadable(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1})
	h := newWalled(w, "nft")
	w.Must(h.host.StartAgent(h.config("auto", "")))
	w.Must(h.host.WaitReady(w.Ctx))
	h.stand("iptables-nft", false)
	run := func(script string) string {
		out, err := h.host.Exec(w.Ctx, "sh", "-ec", script)
		w.Must(err)
		return out
	}
	run(`nft add rule ip nat POSTROUTING 'ip saddr { 10.1.0.0/16, 10.2.0.0/16 } counter masquerade'
		nft add rule ip filter FORWARD 'ct state vmap { established : accept, related : accept }'`)
	w.WaitHealth(h.host, 200, "iptables-nft cannot show the tables ip nat, ip filter")
	jumps := func() string { return run("nft list ruleset 2>/dev/null | grep 'jump LENO' | sed 's/.*jump//' | sort") }
	want := jumps()
	for range 5 { // each time, the agent looks at the rules at least once
		run("iptables-nft -t filter -D FORWARD -j LENO-FORWARD")
		w.Eventually("the jumps", func(context.Context) error {
			if now := jumps(); now != want {
				return fmt.Errorf("there are %q, not %q", now, want)
			}
			return nil
		})
	}
	w.Must(h.host.StopAgent(w.Ctx))
	_, err := h.host.Leno(w.Ctx, "cleanup", "-config-file="+h.host.ConfigFile())
	w.Must(err)
	if left := run("nft list ruleset 2>/dev/null"); strings.Contains(left, "LENO-") || !strings.Contains(left, "vmap") {
		t.Errorf("leno cleanup left\n%s", left)
	}
}
