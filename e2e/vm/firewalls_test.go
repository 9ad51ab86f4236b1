//go:build vm

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// containersBehind starts the agents and Docker on both machines, with docker0 in a network of leno, and one container
// on each.
func (p *pair) containersBehind() (c [2]container) {
	p.t.Helper()
	p.configure(`  ipv4 {
    prefix = "10.5.0.0/16"
  }
  ip_masq = true
  backend "vxlan" {}
`)
	p.onBoth(webImage + `
		systemctl start leno
		leno status -wait=2m
		mkdir -p /etc/docker
		leno docker-opts -network=default -format=json -write=/etc/docker/daemon.json
		systemctl start docker
		` + importImage + `
		docker run --detach --restart=always --name=one --publish=8080:80 web`)
	for i, m := range p.both() {
		c[i] = p.container(m, "one")
	}
	return c
}

// pass checks that packets pass between containers in both directions, and to published ports.
func (p *pair) pass(c [2]container, when string) {
	p.t.Helper()
	for i, from := range c {
		to := c[1-i]
		for addr, port := range map[string]int{to.v4.String(): 80, to.machine.Addrs[0].String(): 8080} {
			if got := p.fetch(from.machine, from.process, addr, port, "/large"); got != to.sum {
				p.t.Errorf("%s: %s port %d from %s: got %q", when, addr, port, from.machine.Name, got)
			}
		}
		if got := p.fetch(from.machine, from.process, to.v4.String(), 80, "/cgi-bin/source"); !strings.Contains(got, from.v4.String()) {
			p.t.Errorf("%s: %s is %q for %s", when, from.v4, got, to.v4)
		}
	}
}

// blocked checks that no packet passes between containers to a port.
func (p *pair) blocked(c [2]container, port int, when string) {
	p.t.Helper()
	for i, from := range c {
		if got, err := p.tryFetch(6*time.Second, from.machine, from.process, c[1-i].v4.String(), port, "/large"); err == nil {
			p.t.Errorf("%s: %s got %q from %s", when, from.v4, got, c[1-i].v4)
		}
	}
}

// finding waits until `leno doctor` finds a fault of a check that contains all words, and returns it.
func (p *pair) finding(m *Machine, check string, words ...string) api.Finding {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	var found api.Finding
	err := lab.WaitFor(ctx, "leno doctor to find a fault of "+check+" on "+m.Name, func(ctx context.Context) error {
		diagnosis, err := p.diagnose(ctx, m)
		i := slices.IndexFunc(diagnosis.Findings, func(f api.Finding) bool {
			without := func(word string) bool { return !strings.Contains(f.Saw, word) }
			return f.Check == check && f.Status == api.FindingFault && !slices.ContainsFunc(words, without)
		})
		if err == nil && i < 0 {
			err = fmt.Errorf("it finds %+v", diagnosis.Findings)
		}
		if err == nil {
			found = diagnosis.Findings[i]
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return found
}

func (p *pair) diagnose(ctx context.Context, m *Machine) (d api.Diagnosis, err error) {
	out, err := m.Run(ctx, "leno", "doctor", "-format=json")
	if exit := (*ExitError)(nil); errors.As(err, &exit) && exit.Code == 1 {
		err = nil
	}
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal([]byte(out), &d)
}

var inBackticks = regexp.MustCompile("`([^`]+)`")

// apply runs the only command of a finding's remedy.
func (p *pair) apply(m *Machine, f api.Finding, want string) {
	p.t.Helper()
	commands := inBackticks.FindAllStringSubmatch(f.Do, -1)
	if len(commands) != 1 || commands[0][1] != want {
		p.t.Fatalf("on %s, the remedy is %q, want only the command %q", m.Name, f.Do, want)
	}
	p.change(m, want)
}

// change runs a script that changes the firewall, again if firewall-cmd gave up: it waits a minute for firewalld,
// which an emulated machine may need longer.
func (p *pair) change(m *Machine, script string) {
	p.t.Helper()
	for {
		_, err := m.Run(p.ctx, "sh", "-euc", script)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "Did not receive a reply") {
			p.t.Fatal(err)
		}
		p.wait(m, "firewalld to answer", "firewall-cmd --state")
	}
}

// noFault checks that `leno doctor` finds no fault of the paths and of rules.
func (p *pair) noFault(m *Machine) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	err := lab.WaitFor(ctx, "leno doctor to find no fault on "+m.Name, func(ctx context.Context) error {
		diagnosis, err := p.diagnose(ctx, m)
		for _, f := range diagnosis.Findings {
			if f.Status == api.FindingFault {
				err = errors.Join(err, fmt.Errorf("%+v", f))
			}
		}
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
}

// TestUFW enables ufw with its defaults, which drop received and forwarded packets, next to Docker.
func TestUFW(t *testing.T) {
	t.Parallel()
	p := newPair(t, Options{Kernel: defaultKernel, Memory: 1024})
	step := p.steps()
	c := p.containersBehind()
	p.pass(c, "without ufw")
	for _, m := range p.both() {
		p.must(m, "ufw", "--force", "enable")
	}
	step("ufw is enabled with its defaults")

	p.blocked(c, 80, "with ufw")
	for i, m := range p.both() {
		peer := c[1-i].machine.Addrs[0].String()
		f := p.finding(m, "port", "table filter chain INPUT", "policy DROP")
		p.apply(m, f, "ufw allow proto udp from "+peer+" to any port 8472")
	}
	p.pass(c, "after the remedy for the port")
	for _, m := range p.both() {
		p.noFault(m)
	}
	step("the port is open; forwarded packets pass before ufw's rules")

	// ufw writes the rules of limits for IPv6 completely only the second time.
	p.must(p.a, "ufw", "reload")
	before := p.rules(p.a, true)
	for _, change := range []string{"systemctl restart leno", "ufw reload", "ufw disable && ufw --force enable", "systemctl restart docker"} {
		p.must(p.a, "sh", "-euc", change)
		p.must(p.a, "leno", "status", "-wait=2m")
		c[0] = p.container(p.a, "one")
		p.pass(c, "after "+change)
		if diff := cmp.Diff(sorted(before), sorted(p.rules(p.a, true))); diff != "" {
			t.Errorf("rules that %s changed (-before +after):\n%s", change, diff)
		}
	}
	step("ufw, Docker and the agent were restarted; all rules are there")

	for _, m := range p.both() {
		p.must(m, "sed", "-i", `s/^  ip_masq = true$/&\n  forward = false/`, "/etc/leno.d/leno.hcl")
		p.must(m, "leno", "reload")
		p.wait(m, "leno's rules for forwarded packets to be removed", "! iptables -S FORWARD | grep LENO-")
	}
	// Docker accepts packets to the port that it publishes.
	p.onBoth("docker exec one httpd -p 81 -h /www")
	p.blocked(c, 81, "with forward = false")
	for _, m := range p.both() {
		f := p.finding(m, "rules", "chain FORWARD", "policy DROP")
		p.apply(m, f, "ufw route allow from 10.5.0.0/16 to 10.5.0.0/16")
	}
	p.pass(c, "after the remedy for forwarded packets")
	if got := p.fetch(p.a, c[0].process, c[1].v4.String(), 81, "/large"); got != c[1].sum {
		t.Errorf("after the remedy for forwarded packets: port 81: got %q", got)
	}
	for _, m := range p.both() {
		p.noFault(m)
	}
	step("without leno's rules, ufw's own let forwarded packets pass")

	before = p.rules(p.b, false)
	p.must(p.b, "systemctl", "stop", "leno")
	p.must(p.b, "leno", "cleanup", "-keep-lease")
	if diff := cmp.Diff(before, p.rules(p.b, true)); diff != "" {
		t.Errorf("leno cleanup changed ufw's rules (-before +after):\n%s", diff)
	}
	step("leno cleanup has left ufw's rules as they were")
}

// sorted sorts lines: Docker and ufw change the order of their own rules when they restart.
func sorted(lines string) string {
	return strings.Join(slices.Sorted(strings.Lines(lines)), "")
}

// TestFirewalld starts firewalld with its defaults, next to Docker: the rules are in a table of nftables, where leno's
// rules in iptables do not count.
func TestFirewalld(t *testing.T) {
	t.Parallel()
	p := newPair(t, Options{Kernel: defaultKernel, Memory: 1024})
	step := p.steps()
	c := p.containersBehind()
	p.pass(c, "without firewalld")
	// Docker writes its rules again after a reload of firewalld only if firewalld ran when Docker started.
	p.onBoth("systemctl start firewalld; systemctl restart docker")
	for i, m := range p.both() {
		c[i] = p.container(m, "one")
	}
	step("firewalld runs with its defaults")

	p.blocked(c, 80, "with firewalld")
	for _, m := range p.both() {
		f := p.finding(m, "port", `table inet firewalld chain filter_IN_public: "reject"`)
		p.apply(m, f, "firewall-cmd --permanent --zone=public --add-port=8472/udp && firewall-cmd --reload")
	}
	p.blocked(c, 80, "with the port open")
	for _, m := range p.both() {
		f := p.finding(m, "rules", `table inet firewalld chain filter_FWD_public: "reject"`)
		p.apply(m, f, "firewall-cmd --permanent --zone=trusted --add-source=10.5.0.0/16 && firewall-cmd --reload")
	}
	p.pass(c, "after both remedies")
	for _, m := range p.both() {
		p.noFault(m)
	}
	step("both remedies let packets pass")

	before, ours := p.firewalldRules(p.a), p.lenoRules(p.a)
	for _, change := range []string{"systemctl restart leno", "firewall-cmd --reload", "firewall-cmd --complete-reload", "systemctl restart firewalld"} {
		p.change(p.a, change)
		// So many reloads after one another are flapping, for two minutes after the last.
		p.wait(p.a, "leno to be healthy", "leno status | grep '^Status *passing, ready$'")
		p.pass(c, "after "+change)
		if diff := cmp.Diff(before, p.firewalldRules(p.a)); diff != "" {
			t.Errorf("firewalld's rules that %s changed (-before +after):\n%s", change, diff)
		}
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		err := lab.WaitFor(ctx, "leno's rules", func(context.Context) error {
			if got := p.lenoRules(p.a); got != ours {
				return fmt.Errorf("after %s they are\n%s\nwant\n%s", change, got, ours)
			}
			return nil
		})
		cancel()
		if err != nil {
			t.Error(err)
		}
	}
	step("firewalld was reloaded and restarted; all rules are there")

	// A narrower remedy on a host whose docker0 is in Docker's own zone.
	for _, m := range p.both() {
		p.change(m, "firewall-cmd --permanent --zone=trusted --remove-source=10.5.0.0/16 && firewall-cmd --permanent --zone=trusted --add-interface=leno-default && firewall-cmd --reload")
	}
	p.pass(c, "with leno's device in the zone trusted")
	for _, m := range p.both() {
		p.noFault(m)
	}

	before = p.firewalldRules(p.b)
	p.must(p.b, "systemctl", "stop", "leno")
	p.must(p.b, "leno", "cleanup", "-keep-lease")
	if diff := cmp.Diff(before, p.firewalldRules(p.b)); diff != "" {
		t.Errorf("leno cleanup changed firewalld's rules (-before +after):\n%s", diff)
	}
	step("leno cleanup has left firewalld's rules as they were")
}

// firewalldRules returns the rules of firewalld's table.
func (p *pair) firewalldRules(m *Machine) string {
	p.t.Helper()
	return p.must(m, "nft", "--stateless", "list", "table", "inet", "firewalld")
}

// lenoRules returns the rules of leno's chains, and of others that jump to them.
func (p *pair) lenoRules(m *Machine) string {
	p.t.Helper()
	return p.must(m, "sh", "-euc", "iptables-save | grep LENO- | sed 's/ \\[[0-9:]*\\]$//'")
}
