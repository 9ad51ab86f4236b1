package bridges

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// An engine is Docker on a host as far as packets are concerned: its bridges, one container on
// each, and the rules that it writes with iptables (moby:
// libnetwork/drivers/bridge/internal/iptabler at 28.3).
type engine struct {
	w            *testWorld
	h            *lab.Host
	docker0, own *bridge
	c            *lab.Container // on docker0
}

// A bridge is one of Docker's bridges and the options that it was created with.
type bridge struct {
	name, network string
	c             *lab.Container
	options       []string
}

// newEngine gives the host docker0 and a bridge like that of a Docker network in the network
// "blue".
func newEngine(w *testWorld, h *lab.Host) *engine {
	w.T.Helper()
	e := &engine{w: w, h: h, docker0: &bridge{name: "docker0", network: "default"}, own: &bridge{name: "br-blue", network: "blue"}}
	for i, b := range []*bridge{e.docker0, e.own} {
		b.c = w.Container(h, b.network)
		_, err := h.Exec(w.Ctx, "ip", "link", "set", fmt.Sprintf("br%d", i), "name", b.name)
		w.Must(err)
	}
	e.c = e.docker0.c
	return e
}

// options returns the options that the drop-in of docker.service passes to dockerd.
func (e *engine) options() []string {
	e.w.T.Helper()
	file := filepath.Join(e.h.Dir, "docker")
	for line := range strings.Lines(docpages.Source(e.w.T, "examples/docker/leno.conf")) {
		command, ok := strings.CutPrefix(line, "ExecStartPre=leno ")
		if !ok {
			continue
		}
		args := strings.Fields(strings.Replace(command, "/run/leno-docker.env", file, 1))
		_, err := e.h.Leno(e.w.Ctx, append(args, "-docker-version=28.3.2")...)
		e.w.Must(err)
	}
	out, err := e.h.Exec(e.w.Ctx, "sh", "-c", `. "$1" && echo "$LENO_DOCKER_OPTS"`, "sh", file)
	e.w.Must(err)
	return strings.Fields(out)
}

// create returns the arguments of `docker network create` for the network "blue", for a version of
// Docker and a kind of rules.
func (e *engine) create(version, firewall string) []string {
	e.w.T.Helper()
	out, err := e.h.Leno(e.w.Ctx, "docker-opts", "-network=blue", "-create", "-docker-version="+version, "-docker-firewall="+firewall)
	e.w.Must(err)
	var words []string
	for _, word := range strings.Fields(out) {
		words = append(words, strings.TrimPrefix(word, "--opt=com.docker.network."))
	}
	return words
}

// has reports whether dockerd or the Docker network was given one of the options.
func (b *bridge) has(options ...string) bool {
	return slices.ContainsFunc(options, func(o string) bool { return slices.Contains(b.options, o) })
}

// trusts reports whether Docker accepts packets of other hosts from leno's device.
func (b *bridge) trusts() bool {
	return b.has("trusted") || slices.ContainsFunc(b.options, func(o string) bool {
		return strings.HasPrefix(o, "bridge.trusted_host_interfaces=leno-"+b.network+":")
	})
}

// masquerades reports whether Docker masquerades.
func (b *bridge) masquerades() bool {
	return !b.has("--ip-masq=false", "bridge.enable_ip_masquerade=false")
}

// start writes the rules that dockerd writes when it starts with the options, replacing those of
// its previous run: its chains are removed and added again in front of everything.
func (e *engine) start(options ...string) {
	e.w.T.Helper()
	e.docker0.options = options
	for i, command := range []string{"iptables", "ip6tables"} {
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
			IPT -I FORWARD -j DOCKER-USER
			`
		for _, b := range []*bridge{e.docker0, e.own} {
			rules := `
			IPT -A DOCKER-BRIDGE -o LINK -j DOCKER
			IPT -A DOCKER-CT -o LINK -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
			IPT -A DOCKER-FORWARD -i LINK -j ACCEPT
			IPT -A DOCKER ! -i LINK -o LINK -j DROP
			IPT -t nat -D POSTROUTING -s SUBNET ! -o LINK -j MASQUERADE 2>/dev/null || true
			IPT -t raw -D PREROUTING -d ADDR -i leno-NETWORK -j ACCEPT 2>/dev/null || true
			IPT -t raw -D PREROUTING -d ADDR ! -i LINK -j DROP 2>/dev/null || true
			`
			if b.masquerades() {
				rules += "IPT -t nat -I POSTROUTING -s SUBNET ! -o LINK -j MASQUERADE\n"
			}
			if b.trusts() {
				rules += "IPT -t raw -A PREROUTING -d ADDR -i leno-NETWORK -j ACCEPT\n"
			}
			if !e.docker0.has("--allow-direct-routing") {
				rules += "IPT -t raw -A PREROUTING -d ADDR ! -i LINK -j DROP\n"
			}
			script += b.replace(rules, i)
		}
		_, err := e.h.Exec(e.w.Ctx, "sh", "-euc", strings.ReplaceAll(script, "IPT", command+" -w 5"))
		e.w.Must(err)
	}
}

// replace fills the bridge's values for an address family into rules.
func (b *bridge) replace(rules string, family int) string {
	addr, bits := b.c.Addrs[family], []int{24, 64}[family]
	return strings.NewReplacer("LINK", b.name, "NETWORK", b.network, "SUBNET", netip.PrefixFrom(addr, bits).Masked().String(), "ADDR", addr.String()).Replace(rules)
}

// startNFTables writes the rules that dockerd 29 writes for the Docker network with
// --firewall-backend=nftables (moby: libnetwork/drivers/bridge/internal/nftabler) and removes those
// of iptables.
func (e *engine) startNFTables() {
	e.w.T.Helper()
	for i, family := range []string{"ip", "ip6"} {
		b, mode := e.own, fmt.Sprintf("bridge.gateway_mode_ipv%d=nat-unprotected", []int{4, 6}[i])
		raw := `FAMILY daddr ADDR iifname != "LINK" counter drop comment "DROP DIRECT ACCESS"`
		in := `counter drop comment "UNPUBLISHED PORT DROP"`
		if b.has(mode) {
			raw, in = "", "counter accept"
		}
		tables := `table FAMILY docker-bridges
delete table FAMILY docker-bridges
table FAMILY docker-bridges {
	chain raw-PREROUTING {
		type filter hook prerouting priority raw; policy accept;
		` + raw + `
	}
	chain filter-FORWARD {
		type filter hook forward priority filter; policy accept;
		oifname "LINK" jump filter-forward-in__LINK
		iifname "LINK" accept
	}
	chain filter-forward-in__LINK {
		ct state established,related counter accept
		iifname "LINK" counter accept comment "ICC"
		` + in + `
	}
}
`
		file := filepath.Join(e.h.Dir, "docker.nft")
		e.w.Must(os.WriteFile(file, []byte(strings.ReplaceAll(b.replace(tables, i), "FAMILY", family)), 0o644))
		command := []string{"iptables", "ip6tables"}[i]
		_, err := e.h.Exec(e.w.Ctx, "sh", "-euc", strings.ReplaceAll(b.replace(`
			IPT -P FORWARD ACCEPT
			for jump in DOCKER-USER DOCKER-FORWARD; do IPT -D FORWARD -j $jump 2>/dev/null || true; done
			IPT -t raw -F PREROUTING
			nft -f "$1"`, i), "IPT", command+" -w 5"), "sh", file)
		e.w.Must(err)
	}
}

// reached pings a container once from another.
func (w *testWorld) reached(from, to *lab.Container) error {
	for _, addr := range to.Addrs {
		r, err := from.Ping(w.Ctx, addr, lab.PingOptions{})
		if err != nil {
			return err
		}
		if r.Received == 0 {
			return fmt.Errorf("%s does not answer", addr)
		}
	}
	return nil
}

// foreign blocks until the check of foreign rules in the network "default" has the given status and
// words, and returns its reason.
func (w *testWorld) foreign(h *lab.Host, status string, words ...string) (reason string) {
	w.T.Helper()
	return w.foreignTo("default", h, status, words...)
}

func (w *testWorld) foreignTo(network string, h *lab.Host, status string, words ...string) (reason string) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%s: foreign_rules of %s %s %q", h.Name, network, status, words), func(context.Context) error {
		_, health := w.Health(h)
		i := slices.IndexFunc(health.Networks, func(n api.NetworkHealth) bool { return n.Network == network })
		if i < 0 {
			return fmt.Errorf("%+v", health.Networks)
		}
		for _, c := range health.Networks[i].Checks {
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

// TestDocker checks that containers on Docker's bridges reach each other if Docker has the options
// that `leno docker-opts` prints. Otherwise, health and status name Docker's rule and the missing
// option.
func TestDocker(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.Start(func(h *lab.Host) []string {
		masq := fmt.Sprintf("\n  ip_masq = %t\n", h == w.Hosts[0])
		blue := strings.NewReplacer("10.5.", "10.6.", "fd00:5:", "fd00:6:", "{}", "{ vni = 2 }").Replace(world.Plan("vxlan"))
		return []string{world.ShortLease, h.Network("default", world.Plan("vxlan")+masq), h.Network("blue", blue+"\n  ip_masq = true\n")}
	})
	w.Settle("default")
	w.Settle("blue")
	a, b := newEngine(w, w.Hosts[0]), newEngine(w, w.Hosts[1])
	options := a.options()
	gateway := w.Subnet(a.h, "default").Addr().Next()
	for _, want := range []string{fmt.Sprintf("--bip=%s/24", gateway), "--ipv6", "--mtu=1450", "--ip-masq=false", "--allow-direct-routing"} {
		if !slices.Contains(options, want) {
			t.Errorf("%s is missing in %q", want, options)
		}
	}

	// The correct setup: a DROP policy, and Docker's own drop of packets from other devices than
	// its bridge, come after leno's accept.
	a.start(options...)
	b.start("--ip-masq=false", "--allow-direct-routing")
	w.Eventually("containers to reach each other", func(context.Context) error {
		return errors.Join(w.reached(a.c, b.c), w.reached(b.c, a.c))
	})
	w.foreign(a.h, api.Passing)

	// Docker with its default options: its drop comes before any rule of leno's.
	a.start()
	if err := w.reached(b.c, a.c); err == nil {
		t.Error("packets pass Docker's drop in the table raw")
	}
	reason := w.foreign(a.h, api.Warning, fmt.Sprintf(`-d %s/32 ! -i docker0 -j DROP`, a.c.Addrs[0]),
		fmt.Sprintf(`-d %s/128 ! -i docker0 -j DROP`, a.c.Addrs[1]), "--allow-direct-routing", "trusted_host_interfaces=leno-default")
	status, err := a.h.Leno(w.Ctx, "status")
	w.Must(err)
	if !strings.Contains(strings.Join(strings.Fields(status), " "), "start dockerd with --allow-direct-routing") {
		t.Errorf("status does not say what to do:\n%s", status)
	}
	if strings.Contains(reason, "MASQUERADE") {
		t.Errorf("leno's own rules come before Docker's, and yet: %s", reason)
	}
	w.foreign(b.h, api.Passing)

	// Both remedies that the advice names.
	a.start("trusted")
	w.Eventually("a trusted device to be let in", func(context.Context) error { return w.reached(b.c, a.c) })
	w.foreign(a.h, api.Passing)
	a.start(options...)
	w.Eventually("direct routing", func(context.Context) error { return w.reached(b.c, a.c) })
	w.foreign(a.h, api.Passing)

	// Where leno does not masquerade, Docker does, including packets that stay in the overlay.
	b.start("--allow-direct-routing")
	w.foreign(b.h, api.Warning, "! -o docker0 -j MASQUERADE", "--ip-masq=false", "ip_masq = true")

	// Docker restarts and puts its chains in front.
	a.start(options...)
	w.Eventually("packets after a restart of Docker", func(context.Context) error { return w.reached(b.c, a.c) })
	w.foreign(a.h, api.Passing)

	// A Docker network: as Docker creates it by default, as `leno docker-opts` configures it, and
	// with the nftables rules of Docker 29.
	reached := func() error { return w.reached(b.own.c, a.own.c) }
	b.own.options = b.create("28.3.2", "iptables")
	b.start("--ip-masq=false")
	a.own.options = []string{"bridge.enable_ip_masquerade=false"}
	a.start("--ip-masq=false")
	if err := reached(); err == nil {
		t.Error("packets pass Docker's drop in the table raw, on a network of its own")
	}
	w.foreignTo("blue", a.h, api.Warning, fmt.Sprintf(`-d %s/32 ! -i br-blue -j DROP`, a.own.c.Addrs[0]), "trusted_host_interfaces=leno-blue")
	a.own.options = a.create("28.3.2", "iptables")
	a.start("--ip-masq=false")
	w.Eventually("a network of its own", func(context.Context) error { return errors.Join(reached(), w.reached(a.own.c, b.own.c)) })
	w.foreignTo("blue", a.h, api.Passing)
	w.foreignTo("default", a.h, api.Warning, "! -i docker0 -j DROP") // this does not open the other one

	a.own.options = nil
	a.startNFTables()
	if err := reached(); err == nil {
		t.Error("packets pass Docker's drop in nftables")
	}
	w.foreignTo("blue", a.h, api.Warning, "docker-bridges", "DROP DIRECT ACCESS", "UNPUBLISHED PORT DROP", "gateway_mode_ipv4=nat-unprotected")
	a.own.options = a.create("29.0.1", "nftables")
	a.startNFTables()
	w.Eventually("a network of its own in nftables", func(context.Context) error { return reached() })
	w.foreignTo("blue", a.h, api.Passing)
}
