package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
)

func TestParsePeers(t *testing.T) {
	cases := []struct {
		name, text string
		want       []string // name, command, name, command ...
		err        string
	}{
		{name: "none"},
		{name: "none but space", text: " ;;\n"},
		{name: "one", text: "flannel=./flannel.sh -v=1", want: []string{"flannel", "./flannel.sh -v=1"}},
		{name: "several", text: "a=x; y ;; b = z\nc=A=1 sh -c 'echo $A'", want: []string{"a", "x; y", "b", "z", "c", "A=1 sh -c 'echo $A'"}},
		{name: "no command", text: "a", err: "NAME=COMMAND"},
		{name: "an empty command", text: "a= ", err: "NAME=COMMAND"},
		{name: "no name", text: "=x", err: "NAME=COMMAND"},
		{name: "a name that is none", text: "Über=x", err: "NAME=COMMAND"},
		{name: "a long name", text: "abcdefghijklm=x", err: "NAME=COMMAND"},
		{name: "one of ours", text: "vxlan=x", err: "vxlan already"},
		{name: "twice", text: "a=x\na=y", err: "a already"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			peers, err := parsePeers(c.text)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one with %q", err, c.err)
				}
				return
			}
			var got []string
			for _, p := range peers {
				got = append(got, p.name, p.command)
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("error %v, difference:\n%s", err, diff)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	good := options{rounds: 1, seconds: 1, pings: 10, consul: "consul"}
	cases := []struct {
		name, contenders, peers string
		change                  func(*options)
		err                     string
	}{
		{name: "good", contenders: "udp,vxlan"},
		{name: "only another overlay", peers: "a=x"},
		{name: "unknown", contenders: "udp,alloc", err: `"alloc"`},
		{name: "twice", contenders: "udp,udp", err: "at most once"},
		{name: "nobody", err: "nobody"},
		{name: "a bad peer", contenders: "udp", peers: "x", err: "-peers"},
		{name: "no round", contenders: "udp", change: func(o *options) { o.rounds = 0 }, err: "-rounds"},
		{name: "no time", contenders: "udp", change: func(o *options) { o.seconds = 0 }, err: "-seconds"},
		{name: "few pings", contenders: "udp", change: func(o *options) { o.pings = 9 }, err: "-pings"},
	}
	for _, c := range cases {
		o := good
		if c.change != nil {
			c.change(&o)
		}
		o.names, o.commands = c.contenders, c.peers
		err := o.check()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		}
	}
}

func TestAdopt(t *testing.T) {
	subnet := netip.MustParsePrefix("10.5.1.1/24")
	cases := []struct{ name, text, want, err string }{
		{name: "the MTU alone", text: "MTU=1400\n", want: "LENO_SUBNET=10.5.1.1/24\nLENO_MTU=1400\n"},
		{name: "flannel's file", text: "FLANNEL_NETWORK=10.9.0.0/16\nFLANNEL_SUBNET=10.9.7.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n",
			want: "LENO_SUBNET=10.9.7.1/24\nLENO_MTU=1472\n"},
		{name: "leno's prefix", text: "LENO_MTU=1300", want: "LENO_SUBNET=10.5.1.1/24\nLENO_MTU=1300\n"},
		{name: "empty", err: "there are 0"},
		{name: "small", text: "MTU=100", err: "there are 100"},
		{name: "no number", text: "MTU=auto", err: "MTU"},
		{name: "no subnet", text: "MTU=1400\nSUBNET=10.5.1.1", err: "SUBNET"},
		{name: "IPv6", text: "MTU=1400\nSUBNET=fd00::1/64", err: "IPv4"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
			if err := adopt(from, to, subnet); err == nil {
				t.Error("no file: no error")
			}
			if err := os.WriteFile(from, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			err := adopt(from, to, subnet)
			got, _ := os.ReadFile(to) // there is none after an error
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || string(got) != c.want {
				t.Errorf("error %v, want %q; %q", err, c.err, got)
			}
		})
	}
}

// TestPeerFails checks the errors about an overlay that does not come up.
func TestPeerFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	cases := []struct {
		name, command string
		limit         time.Duration
		want          []string
	}{
		{"ends", `echo "no licence on $LENO_BENCH_HOST"; exit 3`, time.Minute, []string{"the command ended on host", "no licence on ", "output on host 2"}},
		{"no MTU", "echo waiting; exec sleep infinity", 3 * time.Second, []string{"MTU in LENO_BENCH_SUBNET_FILE", "no such file", "waiting"}},
		{"carries nothing", `echo MTU=1400 >"$LENO_BENCH_SUBNET_FILE"; exec sleep infinity`, 10 * time.Second, []string{"containers to reach each other", "a ping had no answer"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it waits
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			o := options{peers: []*peer{{name: "broken", command: c.command, limit: c.limit}}}
			b, err := newBench(ctx, o, t.Logf)
			if err == nil {
				b.close()
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
		})
	}
}

// TestPeerEnds checks that the command and its child processes are asked to end, and that a command
// that ends by itself is not measured.
func TestPeerEnds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel() // it waits
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	l, err := lab.New(ctx, lab.Options{Hosts: 2, NoConsul: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	wire, err := l.Wire(ctx, l.Hosts[0], l.Hosts[1])
	if err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(t.TempDir(), "said")
	p := &peer{name: "routes", limit: time.Minute, command: `
		trap 'echo "$LENO_BENCH_HOST" >>` + said + `; exit' TERM
		ip route add "$LENO_BENCH_PEER_SUBNET" via "$LENO_BENCH_PEER_ADDRESS" dev "$LENO_BENCH_INTERFACE"
		echo "MTU=$LENO_BENCH_INTERFACE_MTU" >"$LENO_BENCH_SUBNET_FILE"
		sleep infinity`}
	c, err := p.setUp(ctx, l.Hosts, wire)
	if err != nil {
		t.Fatal(err)
	}
	if c.mtu != 1500 || c.from.addr.String() != "10.5.1.2" || c.to.addr.String() != "10.5.2.2" {
		t.Errorf("MTU %d, %s to %s", c.mtu, c.from.addr, c.to.addr)
	}
	if mib, err := resident(ctx, l.Hosts[0]); err != nil || mib <= 0 {
		t.Errorf("%g MiB, %v", mib, err)
	}
	if err := c.running(); err != nil {
		t.Error(err)
	}
	if err := p.end(ctx); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(said); err != nil || len(text) != len("1\n2\n") {
		t.Errorf("the commands that ended as they were asked to: %q, %v", text, err)
	}
	if err := c.running(); err == nil {
		t.Error("it ended, which is no error")
	}
}
