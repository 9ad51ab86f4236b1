package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// seen is what doctor must report about a fault on one host.
type seen struct {
	host int
	want
	lacks []string // texts that must not occur: the name of a healthy host, a wrong number
}

// operated returns faults on a lab of three hosts, as an operator with only leno's commands
// encountered them, and what doctor must report on each host.
func operated() []struct {
	name       string
	seed, cure func(*patient) error
	seen       []seen
	lossy      []int // hosts on which a probe fails
} {
	narrow := func(peer string, words ...string) want {
		return want{check: "path_mtu", network: "NETWORK", peer: peer, words: append(words, "packets of 1350 bytes pass through the overlay, those of 1450, its MTU, do not", "1400 reach", "`ip link set dev eth0 mtu 1400`")}
	}
	port := func(peer string, words ...string) want {
		return want{check: "port", network: "NETWORK", peer: peer, words: words}
	}
	return []struct {
		name       string
		seed, cure func(*patient) error
		seen       []seen
		lossy      []int
	}{
		{"MTU of this host's own link too small", on(-1, "ip link set HOST1 mtu 1400"), on(-1, "ip link set HOST1 mtu 1500"), []seen{
			{1, narrow("", "all 2 hosts that answer show it: the fault is on this host's own link, eth0", "what eth0 is connected to"), []string{"1404"}},
			{0, narrow("HOST1", "the fault is on the side of HOST1", "what HOST1 is connected to"), []string{"own link", "1404"}},
			{2, narrow("HOST1", "the fault is on the side of HOST1"), []string{"own link", "1404"}},
		}, []int{0, 1, 2}},
		{"UDP port closed on the way to a peer", on(1, "iptables-nft -A INPUT -p udp -s ADDR0 --dport 8472 -j DROP"), on(1, "iptables-nft -F INPUT"), []seen{
			{0, port("HOST1", "packets to its UDP port 8472 are lost", "the fault is on the side of HOST1", "accept UDP port 8472 from ADDR0 to ADDR1"), []string{"1 of 2 hosts answer"}},
			{1, port("HOST0", "iptables-nft table filter chain INPUT", "-s ADDR0/32 -p udp -m udp --dport 8472 -j DROP"), []string{"1 of 2 hosts answer"}},
		}, []int{0, 1}},
		{"a rule drops some packets of containers", on(0, dropWeb), on(0, "iptables-nft -D FORWARD 1"), []seen{
			{0, want{check: "rules", warning: true, network: "NETWORK", whyPassing: "an administrator may want the rule", words: []string{"--dport 80 -j DROP", "it may be intended"}}, []string{"no rule drops overlay packets"}},
		}, nil},
	}
}

// operate tests the operator's faults. Doctor names each fault from every side, a probe fails where
// packets get lost and gives the same advice, and no command claims that the paths work. The checks
// of the agent's health stay passing.
func (p *patient) operate() error {
	if err := p.start(); err != nil {
		return err
	}
	for _, f := range operated() {
		if err := f.seed(p); err != nil {
			return fmt.Errorf("%s: seed: %w", f.name, err)
		}
		m, began := measurement{name: f.name}, time.Now()
		i := slices.IndexFunc(f.seen, func(s seen) bool { return s.host == 0 })
		if err := p.shows(f.seen[i].want); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if f.seen[i].whyPassing == "" {
			m.shown = time.Since(began)
		}
		var sees errgroup.Group
		for _, s := range f.seen {
			sees.Go(func() error { return onHost(s.host, p.sees(s)) })
		}
		if err := sees.Wait(); err != nil {
			return fmt.Errorf("%s, %w", f.name, err)
		}
		m.named = time.Since(began)
		if err := p.onAll(func(i int) error { return p.commands(i, slices.Contains(f.lossy, i)) }); err != nil {
			return fmt.Errorf("%s, %w", f.name, err)
		}
		began = time.Now()
		if err := f.cure(p); err != nil {
			return fmt.Errorf("%s: cure: %w", f.name, err)
		}
		if err := p.recovers(); err != nil {
			return fmt.Errorf("%s, cured: %w", f.name, err)
		}
		m.passing = time.Since(began)
		p.w.add(m)
		if err := p.onAll(func(i int) error { return p.w.well(p.hosts[i]) }); err != nil {
			return fmt.Errorf("%s, cured, %w", f.name, err)
		}
	}
	return nil
}

// onAll runs do for all hosts at the same time.
func (p *patient) onAll(do func(host int) error) error {
	var all errgroup.Group
	for i := range p.hosts {
		all.Go(func() error { return onHost(i, do(i)) })
	}
	return all.Wait()
}

// onHost adds the number of the host to an error.
func onHost(host int, err error) error {
	if err != nil {
		err = fmt.Errorf("on host %d: %w", host, err)
	}
	return err
}

// sees blocks until doctor's findings on the host are as wanted.
func (p *patient) sees(s seen) error {
	w := p.filled(s.want)
	return p.w.until(p.hosts[s.host], w.check, func(d api.Diagnosis) error {
		if err := w.is(d); err != nil {
			return err
		}
		for _, f := range d.Findings {
			for _, text := range s.lacks {
				if strings.Contains(f.Saw+f.Do, text) {
					return fmt.Errorf("it says %q: %s", text, told(f))
				}
			}
			if strings.Contains(f.Do, "…") {
				return fmt.Errorf("a command cannot be pasted: %s", told(f))
			}
		}
		return nil
	})
}

// commands checks the output of status, peers and probe on a host. lossy says that packets get
// lost.
func (p *patient) commands(host int, lossy bool) error {
	h := p.hosts[host]
	// What was wrong before is forgotten a few tests later.
	if err := lab.WaitFor(p.w.ctx, "the status of "+h.Name, func(ctx context.Context) error {
		status, err := h.Leno(ctx, "status")
		if err != nil || !lossy && !strings.Contains(status, "packets reach") || strings.Contains(status, "foreign_rules") {
			err = fmt.Errorf("leno status: %v: %s", err, status)
		}
		return err
	}); err != nil {
		return err
	}
	peers, err := h.Leno(p.w.ctx, "peers")
	if err != nil || !strings.Contains(peers, "LEASE") || !strings.Contains(peers, "PATH") {
		return fmt.Errorf("leno peers: %w: %s", err, peers)
	}
	// With dozens of other hosts running, a packet may get lost by chance.
	return lab.WaitFor(p.w.ctx, "a probe on "+h.Name, func(ctx context.Context) error { return p.probes(ctx, h, lossy) })
}

// probes compares a probe with doctor on the same host: it gives the same advice, and it fails
// where packets get lost.
func (p *patient) probes(ctx context.Context, h *lab.Host, lossy bool) error {
	text, failed := h.Leno(ctx, "peers", "-probe", "-format=json")
	var probe api.Probe
	if err := json.Unmarshal([]byte(text), &probe); err != nil {
		return fmt.Errorf("%w: %w: %s", err, failed, text)
	}
	if lossy != (failed != nil) {
		return fmt.Errorf("leno peers -probe: %v, though packets get lost: %t: %+v", failed, lossy, probe.Findings)
	}
	d, err := p.w.examine(ctx, h)
	if err != nil {
		return err
	}
	ofPaths := func(list []api.Finding) (out []string) {
		for _, f := range list {
			if f.Status == api.FindingFault && f.Check != "rules" {
				out = append(out, told(f))
			}
		}
		return out
	}
	if doctor, probed := ofPaths(d.Findings), ofPaths(probe.Findings); !slices.Equal(doctor, probed) {
		return fmt.Errorf("doctor says\n%s\nthe probe says\n%s", strings.Join(doctor, "\n"), strings.Join(probed, "\n"))
	}
	return nil
}
