package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// A tracing is two hosts of a network, each with a container.
type tracing struct {
	*patient
	from, to *lab.Container
	second   *lab.Namespace // with the address of from, while that is a fault
}

// A placedFault is a fault and what a trace must say about it.
type placedFault struct {
	name    string
	begin   func(*tracing) error
	again   func(*tracing) error // before each trace, nil for nothing
	end     func(*tracing) error // nil if the printed remedy ends it
	stage   string
	host    int // whose stage it is
	words   []string
	remedy  []string // words of the remedy, if it is not a command that is run
	partial bool     // small packets arrive
}

// TestTrace places faults on the path between two containers. The trace names the stage, the host and a remedy of each.
// Where the remedy is a command, that command ends the fault.
func TestTrace(t *testing.T) {
	t.Parallel()
	w := open(t, 4)
	p := w.admit(2, `"vxlan" {}`)
	w.visit(p, func() error {
		tr := &tracing{patient: p}
		if err := tr.build("http {\n  address = \"0.0.0.0:5366\"\n}\n"); err != nil {
			return err
		}
		if err := tr.arrives(); err != nil {
			return err
		}
		for _, f := range placedFaults() {
			if err := tr.check(f); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
		return nil
	})
	closed := w.admit(2, `"vxlan" {}`)
	w.visit(closed, func() error { return (&tracing{patient: closed}).checkClosed() })
	if err := w.runs.Wait(); err != nil {
		t.Error(err)
	}
}

// build starts the agents and the containers.
func (t *tracing) build(more ...string) error {
	if err := t.start(more...); err != nil {
		return err
	}
	for i, c := range []**lab.Container{&t.from, &t.to} {
		var err error
		if *c, err = t.hosts[i].AddContainer(t.w.ctx, t.network); err != nil {
			return err
		}
	}
	return nil
}

// inContainer runs a script in the container of a host, outside runs it on the host.
func inContainer(host int, script string) func(*tracing) error {
	return func(t *tracing) error {
		_, err := []*lab.Container{t.from, t.to}[host].Exec(t.w.ctx, "sh", "-euc", t.words(script))
		return err
	}
}

func outside(host int, script string) func(*tracing) error {
	return func(t *tracing) error { return on(host, t.words(script))(t.patient) }
}

// words replaces the placeholders in a text.
func (t *tracing) words(text string) string {
	return t.fill(strings.NewReplacer("SOURCE", t.from.Addrs[0].String(), "TARGET", t.to.Addrs[0].String()).Replace(text))
}

// duplicate makes a second container with the address of the first one.
func (t *tracing) duplicate() (err error) {
	if t.second, err = t.w.AddNamespace(t.w.ctx, "second-"+t.network); err != nil {
		return err
	}
	return outside(0, "ip link add dup0 type veth peer name eth0 netns "+t.second.Name+"; ip link set dup0 master br0 up; ip -n "+t.second.Name+
		" addr add SOURCE/24 dev eth0; ip -n "+t.second.Name+" link set eth0 up")(t)
}

// claim makes the host send packets for the address to the second container, as it does by turns.
func (t *tracing) claim() error {
	_, err := t.second.Exec(t.w.ctx, "sh", "-euc", t.words("ip neigh flush dev eth0; ping -c 1 $(echo SOURCE | sed 's/[0-9]*$/1/') > /dev/null || true"))
	return err
}

func (t *tracing) removeDuplicate() error {
	return errors.Join(outside(0, "ip link del dup0")(t), t.w.RemoveNamespace(t.w.ctx, t.second))
}

// placedFaults returns the faults.
func placedFaults() []placedFault {
	return []placedFault{
		{name: "no default route", begin: inContainer(0, "ip route del default"), stage: "container route", host: 0,
			words: []string{"no route to TARGET", "unreachable"}},
		{name: "wrong gateway", begin: inContainer(0, "ip route replace default via $(echo SOURCE | sed 's/[0-9]*$/250/')"), stage: "container route", host: 0,
			words: []string{"gateway is", "not an address of this host", "nothing answers for it"}},
		{name: "interface down", begin: inContainer(0, "ip link set eth0 down"), stage: "container", host: 0,
			words: []string{"eth0 is down"}},
		{name: "duplicate address", begin: (*tracing).duplicate, again: (*tracing).claim, end: (*tracing).removeDuplicate, stage: "container", host: 0,
			words: []string{"2 containers have the address SOURCE"}, remedy: []string{"restart one of the containers"}},
		{name: "the bridge has no address", begin: outside(0, "ip addr flush dev br0 scope global"), stage: "bridge", host: 0,
			words: []string{"br0 has no address in"}},
		{name: "FORWARD rule", begin: outside(0, "iptables-nft -I FORWARD 1 -s SOURCE -j DROP"), stage: "rules", host: 0,
			words: []string{"-s SOURCE/32 -j DROP", "dropped 5 packets"}},
		{name: "FORWARD rule on the other host", begin: outside(1, "iptables-nft -I FORWARD 1 -d TARGET -j DROP"), stage: "rules", host: 1,
			words: []string{"-d TARGET/32 -j DROP", "drops packets"}},
		{name: "a more specific route", begin: outside(0, "ip link add lan0 type bridge; ip link set lan0 up; ip route add TARGET/32 dev lan0"), stage: "route", host: 0,
			words: []string{"leave by lan0", "TARGET/32"}},
		{name: "a routing rule before main", begin: outside(0, "ip link add ts0 type veth peer name ts1; ip link set ts0 up; ip link set ts1 up; ip route add POOL.0.0/16 dev ts0 table 52; ip rule add pref 5270 lookup 52"),
			stage: "route", host: 0, words: []string{"leave by ts0", "5270", "lookup 52"}},
		{name: "blocked tunnel port", begin: outside(1, rule("input", "udp dport 8472 drop")), end: outside(1, flush), stage: "tunnel", host: 0,
			words: []string{"UDP port 8472 are lost"}, remedy: []string{"accept UDP port 8472 from ADDR0 to ADDR1"}},
		{name: "blocked tunnel port, and a policy that drops packets of others", begin: func(t *tracing) error {
			return errors.Join(
				outside(1, rule("input", "udp dport 8472 drop"))(t),
				outside(0, "ip link add lan1 type bridge; ip link set lan1 up; ip route add 203.0.113.1 dev lan1; iptables-nft -P FORWARD DROP")(t),
				outside(1, "ip route add 203.0.113.1 via ADDR0; timeout 300 bash -c 'while sleep 0.1; do echo > /dev/udp/203.0.113.1/23; done' > /dev/null 2>&1 & echo $! > DIR1/noise")(t))
		}, end: func(t *tracing) error {
			return errors.Join(outside(1, flush+"; kill $(cat DIR1/noise) || true; ip route del 203.0.113.1")(t),
				outside(0, "iptables-nft -P FORWARD ACCEPT; ip link del lan1")(t))
		}, stage: "tunnel", host: 0, words: []string{"UDP port 8472 are lost"}, remedy: []string{"accept UDP port 8472 from ADDR0 to ADDR1"}},
		{name: "MTU of the underlay", begin: outside(-1, "ip link set HOST1 mtu 1400"), end: outside(-1, "ip link set HOST1 mtu 1500"), stage: "tunnel", host: 0,
			words: []string{"those of 1450, its MTU, do not"}, remedy: []string{"ip link set dev eth0 mtu 1400"}, partial: true},
		{name: "interface down on the other host", begin: inContainer(1, "ip link set eth0 down"), stage: "container", host: 1,
			words: []string{"eth0 is down"}},
		{name: "no default route on the other host", begin: inContainer(1, "ip route del default"), stage: "container route", host: 1,
			words: []string{"no route to SOURCE"}},
		{name: "the bridge's port is down", begin: outside(1, "ip link set br0-1 down"), stage: "bridge", host: 1,
			words: []string{"br0-1"}},
	}
}

// firstCommand finds a command in a remedy.
var firstCommand = regexp.MustCompile("`([^`]+)`")

// check places a fault and ends it.
func (t *tracing) check(f placedFault) error {
	if err := f.begin(t); err != nil {
		return fmt.Errorf("place: %w", err)
	}
	var hop api.TraceHop
	err := lab.WaitFor(t.w.ctx, "the trace to show it", func(ctx context.Context) (err error) {
		if f.again != nil {
			if err := f.again(t); err != nil {
				return err
			}
		}
		hop, err = t.verdict(ctx, f)
		return err
	})
	if err != nil {
		return err
	}
	t.w.t.Logf("%s: %s", f.name, hop.Saw)
	if f.end != nil {
		if err := f.end(t); err != nil {
			return fmt.Errorf("end: %w", err)
		}
		return t.arrives()
	}
	// A device that was down has lost its routes, which a later trace says.
	for range 2 {
		done := command(hop)
		if done == "" {
			return fmt.Errorf("no command in %q", hop.Do)
		}
		host := t.hosts[0]
		if hop.Node != host.Name {
			host = t.hosts[1]
		}
		if _, err := host.Exec(t.w.ctx, "sh", "-euc", done); err != nil {
			return fmt.Errorf("the remedy %q: %w", done, err)
		}
		isLost := false
		err := lab.WaitFor(t.w.ctx, "the effect of "+done, func(ctx context.Context) error {
			out, err := t.trace(ctx)
			if err != nil {
				return err
			}
			if hop, isLost = out.Lost(); isLost && (hop.Stage == "answer" || command(hop) == "" || command(hop) == done) {
				return fmt.Errorf("the stage is %+v", hop) // what was repaired may take a moment
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !isLost {
			break
		}
	}
	return t.arrives()
}

// command returns the first command in the remedy of a stage, "" if there is none.
func command(hop api.TraceHop) string {
	if m := firstCommand.FindStringSubmatch(hop.Do); m != nil {
		return m[1]
	}
	return ""
}

// verdict returns the stage at which packets are lost, or an error if it is not that of the fault.
func (t *tracing) verdict(ctx context.Context, f placedFault) (api.TraceHop, error) {
	out, err := t.trace(ctx)
	if err != nil {
		return api.TraceHop{}, err
	}
	hop, isLost := out.Lost()
	text, _ := json.MarshalIndent(out, "", " ")
	if !isLost || hop.Stage != f.stage || hop.Node != t.hosts[f.host].Name || (out.Arrived == api.ArrivedNo) == f.partial {
		return hop, fmt.Errorf("the verdict is %+v: %s", hop, text)
	}
	if hop.Do == "" {
		return hop, fmt.Errorf("no remedy: %+v", hop)
	}
	for _, word := range f.words {
		if !strings.Contains(hop.Saw, t.words(word)) {
			return hop, fmt.Errorf("%q is not in %q: %s", t.words(word), hop.Saw, text)
		}
	}
	for _, word := range f.remedy {
		if !strings.Contains(hop.Do, t.words(word)) {
			return hop, fmt.Errorf("%q is not in the remedy %q", t.words(word), hop.Do)
		}
	}
	return hop, nil
}

// trace runs the command on the host of the source.
func (t *tracing) trace(ctx context.Context) (out api.Trace, err error) {
	text, failed := t.hosts[0].Leno(ctx, "trace", "-format=json", t.from.Addrs[0].String(), t.to.Addrs[0].String())
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return out, fmt.Errorf("%w: %w: %s", err, failed, text)
	}
	if _, isLost := out.Lost(); isLost != (failed != nil) {
		return out, fmt.Errorf("exit code: %w, with %s", failed, text)
	}
	return out, nil
}

// arrives blocks until a trace finds that packets arrive, and no stage is wrong.
func (t *tracing) arrives() error {
	return lab.WaitFor(t.w.ctx, "packets to arrive", func(ctx context.Context) error {
		out, err := t.trace(ctx)
		if err != nil {
			return err
		}
		for _, h := range out.Stages {
			if h.Status != api.HopOK {
				return fmt.Errorf("the stage is %+v", h)
			}
		}
		if out.Arrived != api.ArrivedYes {
			return fmt.Errorf("arrived: %s, %s", out.Arrived, out.Why)
		}
		return nil
	})
}

// checkClosed tests hosts whose agents listen on 127.0.0.1: the trace says how to continue on the other host. There, the
// agent shows what the first one could not. `leno doctor ADDRESS` is the short form.
func (t *tracing) checkClosed() error {
	if err := t.build(); err != nil {
		return err
	}
	if err := inContainer(1, "ip link set eth0 down")(t); err != nil {
		return err
	}
	return lab.WaitFor(t.w.ctx, "traces on both hosts", func(ctx context.Context) error {
		out, err := t.trace(ctx)
		if err != nil {
			return err
		}
		hop, _ := out.Lost()
		if command := t.words("run `sudo leno trace SOURCE TARGET` on HOST1"); hop.Stage != "answer" || !strings.Contains(hop.Do, command) {
			return fmt.Errorf("on the first host: %+v", out)
		}
		client, err := api.New(api.Config{HTTPClient: t.hosts[1].HTTP()})
		if err != nil {
			return err
		}
		there, err := client.Trace(ctx, api.TraceRequest{Source: t.from.Addrs[0], Destination: t.to.Addrs[0]})
		if err != nil {
			return err
		}
		if hop, _ := there.Lost(); hop.Stage != "container" || !strings.Contains(hop.Saw, "eth0 is down") {
			return fmt.Errorf("on the second host: %+v", there)
		}
		for of, words := range map[string]string{"TARGET": "lost on HOST1", "SOURCE": "packets arrive"} {
			text, failed := t.hosts[0].Leno(ctx, "doctor", t.words(of))
			if plain := strings.Join(strings.Fields(text), " "); !strings.Contains(plain, t.words(words)) || (failed != nil) != (of == "TARGET") {
				return fmt.Errorf("doctor %s: %w: %s", of, failed, text)
			}
		}
		return nil
	})
}
