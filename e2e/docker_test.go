package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// engine is Docker on a host, as far as packets know it: its bridge, one
// container, and the rules that it writes with iptables (moby:
// libnetwork/drivers/bridge/internal/iptabler at 28.3).
type engine struct {
	w *world
	h *lab.Host
	c *lab.Container
}

// newEngine gives the host docker0, with a container.
func newEngine(w *world, h *lab.Host) *engine {
	w.t.Helper()
	c := w.container(h, "default")
	_, err := h.Exec(w.ctx, "ip", "link", "set", "br0", "name", "docker0")
	w.must(err)
	return &engine{w, h, c}
}

// options are those that the drop-in of docker.service gives to dockerd.
func (e *engine) options() []string {
	e.w.t.Helper()
	file := filepath.Join(e.h.Dir, "docker")
	for line := range strings.Lines(source(e.w.t, "examples/docker/leno.conf")) {
		command, ok := strings.CutPrefix(line, "ExecStartPre=leno ")
		if !ok {
			continue
		}
		args := strings.Fields(strings.Replace(command, "/run/leno-docker.env", file, 1))
		_, err := e.h.Leno(e.w.ctx, append(args, "-docker-version=28.3.2")...)
		e.w.must(err)
	}
	out, err := e.h.Exec(e.w.ctx, "sh", "-c", `. "$1" && echo "$DOCKER_OPTS"`, "sh", file)
	e.w.must(err)
	return strings.Fields(out)
}

// start writes what dockerd writes when it starts with the options, over what it
// left when it ended before: its chains go and come back, in front of everything.
func (e *engine) start(options ...string) {
	e.w.t.Helper()
	for _, addr := range e.c.Addrs {
		command, subnet := "iptables", netip.PrefixFrom(addr, 24).Masked()
		if addr.Is6() {
			command, subnet = "ip6tables", netip.PrefixFrom(addr, 64).Masked()
		}
		script := `
			for jump in DOCKER-USER DOCKER-FORWARD; do IPT -D FORWARD -j $jump 2>/dev/null || true; done
			for chain in DOCKER-FORWARD DOCKER-BRIDGE DOCKER-CT DOCKER-INTERNAL DOCKER; do
				IPT -F $chain 2>/dev/null || true
				IPT -X $chain 2>/dev/null || true
				IPT -N $chain 2>/dev/null || true
			done
			IPT -N DOCKER-USER 2>/dev/null || true
			IPT -P FORWARD DROP
			IPT -I FORWARD -j DOCKER-FORWARD
			IPT -I DOCKER-FORWARD -j DOCKER-BRIDGE
			IPT -I DOCKER-FORWARD -j DOCKER-INTERNAL
			IPT -I DOCKER-FORWARD -j DOCKER-CT
			IPT -A DOCKER-BRIDGE -o docker0 -j DOCKER
			IPT -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
			IPT -A DOCKER-FORWARD -i docker0 -j ACCEPT
			IPT -A DOCKER ! -i docker0 -o docker0 -j DROP
			IPT -I FORWARD -j DOCKER-USER
			IPT -t nat -D POSTROUTING -s SUBNET ! -o docker0 -j MASQUERADE 2>/dev/null || true
			IPT -t raw -D PREROUTING -d ADDR -i leno-default -j ACCEPT 2>/dev/null || true
			IPT -t raw -D PREROUTING -d ADDR ! -i docker0 -j DROP 2>/dev/null || true
			`
		if !slices.Contains(options, "--ip-masq=false") {
			script += "IPT -t nat -I POSTROUTING -s SUBNET ! -o docker0 -j MASQUERADE\n"
		}
		if slices.Contains(options, "trusted") {
			script += "IPT -t raw -A PREROUTING -d ADDR -i leno-default -j ACCEPT\n"
		}
		if !slices.Contains(options, "--allow-direct-routing") {
			script += "IPT -t raw -A PREROUTING -d ADDR ! -i docker0 -j DROP\n"
		}
		_, err := e.h.Exec(e.w.ctx, "sh", "-euc", strings.NewReplacer("IPT", command+" -w 5", "SUBNET", subnet.String(), "ADDR", addr.String()).Replace(script))
		e.w.must(err)
	}
}

// reached pings a container once from another.
func (w *world) reached(from, to *lab.Container) error {
	for _, addr := range to.Addrs {
		r, err := from.Ping(w.ctx, addr, lab.PingOptions{})
		if err != nil {
			return err
		}
		if r.Received == 0 {
			return fmt.Errorf("%s does not answer", addr)
		}
	}
	return nil
}

// foreign waits for the check of others' rules to say that, and returns its
// reason.
func (w *world) foreign(h *lab.Host, status string, words ...string) (reason string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s: foreign_rules %s %q", h.Name, status, words), func(context.Context) error {
		_, health := w.health(h)
		for _, c := range health.Networks[0].Checks {
			if c.Name != "foreign_rules" || c.Status != status {
				continue
			}
			reason = c.Reason
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(reason, word) }) {
				return nil
			}
		}
		return fmt.Errorf("%+v", health.Networks)
	})
	return reason
}

// TestDocker: containers on Docker's bridges reach each other where Docker's
// options are as `leno docker-opts` says; where they are not, health and status
// name Docker's rule and the option.
func TestDocker(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.start(func(h *lab.Host) []string {
		masq := fmt.Sprintf("\n  ip_masq = %t\n", h == w.Hosts[0])
		return []string{shortLease, h.Network("default", plan("vxlan")+masq)}
	})
	w.settle("default")
	a, b := newEngine(w, w.Hosts[0]), newEngine(w, w.Hosts[1])
	options := a.options()
	gateway := w.subnet(a.h, "default").Addr().Next()
	for _, want := range []string{fmt.Sprintf("--bip=%s/24", gateway), "--ipv6", "--mtu=1450", "--ip-masq=false", "--allow-direct-routing"} {
		if !slices.Contains(options, want) {
			t.Errorf("%s is missing in %q", want, options)
		}
	}

	// As it should be: a policy of DROP, and Docker's own drop of what does not come
	// from its bridge, are behind leno's accept.
	a.start(options...)
	b.start("--ip-masq=false", "--allow-direct-routing")
	w.eventually("containers to reach each other", func(context.Context) error {
		return errors.Join(w.reached(a.c, b.c), w.reached(b.c, a.c))
	})
	w.foreign(a.h, api.Passing)

	// Docker as it is by default: its drop comes before any rule of leno's.
	a.start()
	if err := w.reached(b.c, a.c); err == nil {
		t.Error("packets pass Docker's drop in the table raw")
	}
	reason := w.foreign(a.h, api.Warning, fmt.Sprintf(`-d %s/32 ! -i docker0 -j DROP`, a.c.Addrs[0]),
		fmt.Sprintf(`-d %s/128 ! -i docker0 -j DROP`, a.c.Addrs[1]), "--allow-direct-routing", "trusted_host_interfaces=leno-default")
	status, err := a.h.Leno(w.ctx, "status")
	w.must(err)
	if !strings.Contains(strings.Join(strings.Fields(status), " "), "start dockerd with --allow-direct-routing") {
		t.Errorf("status does not say what to do:\n%s", status)
	}
	if strings.Contains(reason, "MASQUERADE") {
		t.Errorf("leno's own rules come before Docker's, and yet: %s", reason)
	}
	w.foreign(b.h, api.Passing)

	// What the advice says, in both ways.
	a.start("trusted")
	w.eventually("a trusted device to be let in", func(context.Context) error { return w.reached(b.c, a.c) })
	w.foreign(a.h, api.Passing)
	a.start(options...)
	w.eventually("direct routing", func(context.Context) error { return w.reached(b.c, a.c) })
	w.foreign(a.h, api.Passing)

	// Where leno does not masquerade Docker does, also what stays in the overlay.
	b.start("--allow-direct-routing")
	w.foreign(b.h, api.Warning, "! -o docker0 -j MASQUERADE", "--ip-masq=false", "ip_masq = true")

	// Docker starts anew and puts its chains in front.
	a.start(options...)
	w.eventually("packets after a restart of Docker", func(context.Context) error { return w.reached(b.c, a.c) })
	w.foreign(a.h, api.Passing)
}
