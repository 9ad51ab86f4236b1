package host

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// inside runs a program in the mounts of the place's agent.
func (p *place) inside(command ...string) error {
	_, err := p.Exec(p.w.Ctx, append([]string{"nsenter", fmt.Sprintf("--target=%d", p.agent.Pid()), "--mount"}, command...)...)
	return err
}

// file returns the outside path of a file that the place's agent sees at path.
func (p *place) file(path string) string { return fmt.Sprintf("/proc/%d/root%s", p.agent.Pid(), path) }

// says blocks until a check of the agent or of any network has the given status and words.
func (p *place) says(check, status string, words ...string) error {
	return p.agent.WaitFor(p.w.Ctx, fmt.Sprintf("%s: %s to be %s", p.Name, check, status), func(ctx context.Context) error {
		_, body, err := p.Get(ctx, "/healthz")
		if err != nil {
			return err
		}
		var health api.Health
		if err := json.Unmarshal([]byte(body), &health); err != nil {
			return err
		}
		all := health.Checks
		for _, n := range health.Networks {
			all = append(all, n.Checks...)
		}
		err = fmt.Errorf("no such check in %s", body)
		for _, c := range all {
			if c.Name != check {
				continue
			}
			err = fmt.Errorf("%s: %s", c.Status, c.Reason)
			missing := false
			for _, word := range words {
				missing = missing || !strings.Contains(c.Reason, word)
			}
			if c.Status == status && !missing {
				return nil
			}
		}
		return err
	})
}

// well blocks until all checks are passing.
func (p *place) well() error {
	return p.agent.WaitFor(p.w.Ctx, p.Name+" to be well", func(ctx context.Context) error {
		status, body, err := p.Get(ctx, "/healthz")
		if err == nil && (status != http.StatusOK || !strings.Contains(body, `"ready":true`)) {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
}

// lines returns how often the log reports the beginning and the end of a fault.
func (p *place) lines(check string) (begun, over int) {
	for line := range strings.Lines(p.agent.Output()) {
		if strings.Contains(line, "check="+check) {
			begun += strings.Count(line, "operation failed on this host")
			over += strings.Count(line, "operation works again")
		}
	}
	return begun, over
}

// A circumstance is something wrong on a host when its agent starts.
type circumstance struct {
	network string // content of the network block
	blocks  string // other blocks
	setup   string // shell script that runs on the host before the agent starts, with the host's directory as $1
	script  string // what is done to the agent's process; "" for root without limits
	hold    string // "udp 8285": a port that another process occupies

	check string
	words []string // words for the fault and the remedy

	cure string // shell script that runs in the agent's mounts; an occupied port is released in any case
}

const plainStart = `exec "$@"`

// circumstances returns the rows of the table in operations/host-faults.mdx, by their names there.
func circumstances() map[string]circumstance {
	vxlan, udp := "\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n  backend \"vxlan\" {}\n", "\n  ipv4 {\n    prefix = \"10.6.0.0/16\"\n  }\n  backend \"udp\" {}\n"
	wireguard := strings.NewReplacer("10.6.", "10.7.", "udp", "wireguard").Replace(udp)
	const key = "/var/lib/leno/g/wireguard.key"
	private := "mount -t tmpfs -o mode=755 dev /dev; mkdir /dev/net; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9\n"
	return map[string]circumstance{
		"another program's device has the name of the network's device": {network: vxlan, setup: "ip link add leno-n type bridge",
			check: "device", words: []string{`kind "bridge"`, "is not leno's", "remove or rename"}, cure: "ip link del leno-n"},
		"the VNI is taken": {network: vxlan, setup: "ip link add other type vxlan id 1 dstport 8472 dev eth0",
			check: "device", words: []string{"file exists", "vni 1 on port 8472", "remove the device"}, cure: "ip link del other"},
		"the VXLAN port is taken by a program": {network: vxlan, hold: "8472",
			check: "device", words: []string{"address already in use", "ss -ulpn"}, cure: "true"},
		"the UDP port is taken": {network: udp, hold: "8285",
			check: "routes", words: []string{"8285", "address already in use", "ss -ulpn"}, cure: "true"},
		"the WireGuard port is taken": {network: wireguard, hold: "51820",
			check: "device", words: []string{"udp port 51820", "address already in use", "ss -ulpn"}, cure: "true"},
		"others can read the private key of WireGuard": {network: wireguard,
			script: "mkdir -p /var/lib/leno/g; echo AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHn8= >" + key + "; chmod 644 " + key + "\n" + plainStart,
			check:  "underlay", words: []string{"key_file: " + key + " can be read or written by others", "chmod 600"}, cure: "chmod 600 " + key},
		"the private key of WireGuard is malformed": {network: wireguard,
			script: "mkdir -p /var/lib/leno/g; echo secret >" + key + "; chmod 600 " + key + "\n" + plainStart,
			check:  "underlay", words: []string{"key_file: the key in " + key + " is not 32 bytes in base64"}, cure: "rm " + key},
		"no `/dev/net/tun`": {network: udp, script: private + plainStart,
			check: "device", words: []string{"/dev/net/tun: no such file", "kernel module tun"}, cure: "mknod -m 666 /dev/net/tun c 10 200"},
		"`/dev/net/tun` may not be opened": {network: udp,
			script: private + "mknod -m 600 /dev/net/tun c 10 200\nchown -R 64199 /run/leno /var/lib/leno\n" +
				`exec setpriv --reuid=64199 --regid=64199 --clear-groups --inh-caps=-all,+net_admin --ambient-caps=-all,+net_admin "$@"`,
			check: "device", words: []string{"/dev/net/tun: permission denied", "read and write /dev/net/tun"}, cure: "chmod 666 /dev/net/tun"},
		"iptables is asked for and not installed": {network: vxlan + "  ip_masq = true\n", blocks: "firewall {\n  type = \"iptables\"\n}\n",
			script: "export PATH=/usr/local/bin\n" + `exec leno agent -config-dir=/etc/leno.d`,
			check:  "firewall", words: []string{"not installed", "install the package iptables"},
			cure: "for p in iptables ip6tables; do for s in '' -save -restore; do ln -s /usr/sbin/$p$s /usr/local/bin/$p$s; done; done"},
		"the lock of iptables-legacy is held": {network: vxlan + "  ip_masq = true\n", blocks: "firewall {\n  type = \"iptables\"\n}\n",
			script: "(exec 9>/run/xtables.lock; flock 9; exec sleep 600) & echo $! >/run/holder\n" +
				"for p in iptables ip6tables; do for s in '' -save -restore; do ln -s /usr/sbin/$p-legacy$s /usr/local/bin/$p$s; done; done\n" + plainStart,
			check: "firewall", words: []string{"holds the lock of iptables", "fuser -v /run/xtables.lock"}, cure: "kill $(cat /run/holder)"},
		"`data_dir` is read-only": {network: vxlan, script: "mount -o remount,bind,ro /var/lib\n" + plainStart,
			check: "data_dir", words: []string{"read-only file system", "make its file system writable"}, cure: "mount -o remount,bind,rw /var/lib"},
		"`data_dir` is full": {network: vxlan, script: "mkdir -p /var/lib/leno; mount -t tmpfs -o size=16k,mode=755 x /var/lib/leno; head -c 1M /dev/zero >/var/lib/leno/filler 2>/dev/null || :\n" + plainStart,
			check: "data_dir", words: []string{"no space left", "free space"}, cure: "rm /var/lib/leno/filler"},
		"`/run` is read-only": {network: vxlan, script: "mount -o remount,bind,ro /run\n" + plainStart,
			check: "subnet_file", words: []string{"read-only file system", "make its file system writable"}, cure: "mount -o remount,bind,rw /run"},
	}
}

// TestCircumstances starts an agent in each circumstance. The agent reports the fault and its
// remedy in the fault's own check and keeps retrying without more log lines. Once the fault is
// repaired, the same process recovers within a short time.
func TestCircumstances(t *testing.T) {
	all := circumstances()
	w := newWorld(t, lab.Options{Hosts: len(all)})
	var runs sync.WaitGroup
	i := 0
	for name, c := range all {
		h := w.Hosts[i]
		i++
		config := strings.Replace(h.Config(world.ShortLease+"\n"+c.blocks+"network \""+"n"+"\" {"+c.network+"}\n"), fmt.Sprintf("%q", h.DataDir()), `"/var/lib/leno"`, 1)
		if strings.Contains(c.network, `"udp"`) {
			config = strings.Replace(config, `network "n"`, `network "u"`, 1)
		}
		if strings.Contains(c.network, `"wireguard"`) {
			config = strings.Replace(config, `network "n"`, `network "g"`, 1)
		}
		p := newPlace(w, h, config, nil)
		runs.Go(func() {
			if err := p.meet(c); err != nil {
				t.Errorf("%s (%s): %v", name, h.Name, err)
			}
		})
	}
	runs.Wait()
}

// meet starts the agent in a circumstance and repairs the fault.
func (p *place) meet(c circumstance) error {
	if c.setup != "" {
		if _, err := p.Exec(p.w.Ctx, "sh", "-euc", c.setup); err != nil {
			return err
		}
	}
	var held net.PacketConn
	if c.hold != "" {
		if err := p.Do(func() (err error) {
			held, err = net.ListenPacket("udp4", ":"+c.hold)
			return err
		}); err != nil {
			return err
		}
		defer held.Close()
	}
	if err := p.start("mkdir -p /run/leno /var/lib/leno\n"+cmp.Or(c.script, plainStart), "leno", "agent", "-config-dir=/etc/leno.d"); err != nil {
		return err
	}
	if err := p.says(c.check, api.Critical, c.words...); err != nil {
		return err
	}
	pid := p.agent.Pid()
	if err := p.inside("sh", "-euc", c.cure); err != nil {
		return err
	}
	if held != nil {
		if err := held.Close(); err != nil {
			return err
		}
	}
	cured := time.Now()
	if err := p.well(); err != nil {
		return err
	}
	p.w.T.Logf("%s: well %s after the cure", c.words[0], time.Since(cured).Round(10*time.Millisecond))
	want := 1
	if c.check == "underlay" {
		want = 0 // the network waits for it, which is another line
	}
	if begun, over := p.lines(c.check); begun != want || over != want || p.agent.Pid() != pid {
		return fmt.Errorf("%d lines of the beginning and %d of the end", begun, over)
	}
	return nil
}

// TestDocumentationCircumstances compares the table of host faults with the circumstances that are
// tested, and checks that every test that it names exists.
func TestDocumentationCircumstances(t *testing.T) {
	tests := map[string]bool{}
	for _, path := range []string{"e2e/host/circumstances_test.go", "e2e/host/rights_test.go", "backend/vxlan/unsupported_linux_test.go", "e2e/vm/kernels_test.go", "e2e/vm/underlay_test.go", "e2e/datapath/wireguard_test.go"} {
		for _, name := range docpages.Found(t, path, `(?m)^func (Test\w+)\(`) {
			tests[filepath.Base(filepath.Dir(path))+"."+name] = true
		}
	}
	all := circumstances()
	for _, row := range docpages.Rows(t, docpages.Path("operations/host-faults"), "") {
		shown := docpages.Codes(row[4])
		if len(shown) == 0 {
			t.Errorf("%s: no test shows that", row[0])
		}
		for _, name := range shown {
			if !tests[name] {
				t.Errorf("%s: there is no %s", row[0], name)
			}
		}
		c, tried := all[row[0]]
		if tried != slices.Contains(shown, "host.TestCircumstances") {
			t.Errorf("%s: tried %t, shown by %v", row[0], tried, shown)
		}
		delete(all, row[0])
		if !tried {
			continue
		}
		if !slices.Contains(docpages.Codes(row[1]), c.check) {
			t.Errorf("%s: check %s on the page, %s here", row[0], row[1], c.check)
		}
		text := strings.ReplaceAll(row[2]+" "+row[3], "`", "")
		for _, words := range c.words {
			if !strings.Contains(text, words) {
				t.Errorf("%s: the page does not say %q: %s", row[0], words, text)
			}
		}
	}
	for name := range all {
		t.Errorf("no row %q", name)
	}
}

// TestAddressTaken checks that an agent whose API address is in use says what to do and exits,
// after it has waited for a previous agent to end.
func TestAddressTaken(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1, NoConsul: true})
	h := w.Hosts[0]
	var l net.Listener
	w.Must(h.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:5366")
		return err
	}))
	defer l.Close()
	began := time.Now()
	w.Must(h.StartAgent(h.Config(h.Network("default", world.Plan("vxlan")))))
	if err := h.Agent().Wait(w.Ctx); err == nil || h.Agent().ExitCode() != 1 {
		t.Errorf("%v, exit code %d", err, h.Agent().ExitCode())
	}
	for _, words := range []string{"http.address", "address already in use", "ss -ltnp", "waiting for it to end"} {
		if !strings.Contains(h.Agent().Output(), words) {
			t.Errorf("it does not say %q:\n%s", words, h.Agent().Output())
		}
	}
	if took := time.Since(began); took < 4*time.Second {
		t.Errorf("ended after %s: started again at once, that is a loop", took)
	}
}

// TestFilesUnderTraffic checks that files that cannot be written while an agent runs stop no
// packet, and that the files written before stay as they are.
func TestFilesUnderTraffic(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	config := func(h *lab.Host, masq bool) string {
		return strings.Replace(h.Config(fmt.Sprintf("%s\nnetwork \"default\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n  backend \"vxlan\" {}\n  ip_masq = %t\n}\n", world.ShortLease, masq)),
			fmt.Sprintf("%q", h.DataDir()), `"/var/lib/leno"`, 1)
	}
	const small = "mount -t tmpfs -o size=64k,mode=755 run /run/leno; mkdir -p /var/lib/leno; mount -t tmpfs -o size=64k,mode=755 lib /var/lib/leno\n"
	var places []*place
	for _, h := range w.Hosts {
		p := newPlace(w, h, config(h, false), nil)
		w.Must(p.start(small+plainStart, "leno", "agent", "-config-dir=/etc/leno.d"))
		w.Must(p.says("subnet_file", api.Passing))
		w.Must(os.Symlink(p.file("/run/leno/default.env"), p.SubnetFile("default")))
		places = append(places, p)
		w.Container(h, "default")
	}
	w.Settle("default")
	w.Matrix()
	p, other := places[0], w.Containers[1]
	pings, err := other.StartEchoes(w.Containers[0].Addrs[0], 20*time.Millisecond)
	w.Must(err)

	masq := false
	for _, tt := range []struct{ dir, file, check, status, breaks, mends, says string }{
		{"/run/leno", "default.env", "subnet_file", api.Critical, "mount -o remount,bind,ro /run/leno", "mount -o remount,bind,rw /run/leno", "read-only file system"},
		{"/run/leno", "default.env", "subnet_file", api.Critical, "head -c 1M /dev/zero >/run/leno/filler 2>/dev/null || :", "rm /run/leno/filler", "no space left"},
		{"/var/lib/leno", "default.json", "data_dir", api.Warning, "rm /var/lib/leno/default.json; mount --bind /var/lib/leno /var/lib/leno; mount -o remount,bind,ro /var/lib/leno", "umount /var/lib/leno", "read-only file system"},
		{"/var/lib/leno", "default.json", "data_dir", api.Warning, "rm /var/lib/leno/default.json; head -c 1M /dev/zero >/var/lib/leno/filler 2>/dev/null || :", "rm /var/lib/leno/filler", "no space left"},
		{"/var/lib/leno", "peers/default.json", "data_dir", api.Warning, "rm -r /var/lib/leno/peers /var/lib/leno/default.json; touch /var/lib/leno/peers", "rm /var/lib/leno/peers", "not a directory"},
	} {
		path := filepath.Join(tt.dir, tt.file)
		before, err := os.ReadFile(p.file(path))
		w.Must(err)
		begun, over := p.lines(tt.check)
		w.Must(p.inside("sh", "-euc", tt.breaks))
		masq = !masq
		p.configure(config(p.Host, masq))
		_, err = p.Exec(w.Ctx, world.Leno(), "reload")
		w.Must(err)
		w.Must(p.says(tt.check, tt.status, tt.says))
		if now, err := os.ReadFile(p.file(path)); tt.check == "subnet_file" && (err != nil || string(now) != string(before)) {
			t.Errorf("%s: %v, %q, before %q", tt.says, err, now, before)
		}
		w.Must(p.inside("sh", "-euc", tt.mends))
		w.Must(p.says(tt.check, api.Passing))
		w.Eventually(path+" to be written", func(context.Context) error {
			now, err := os.ReadFile(p.file(path))
			if err == nil && tt.check == "subnet_file" && !strings.Contains(string(now), fmt.Sprintf("LENO_IPMASQ=%t", masq)) {
				err = fmt.Errorf("%q", now)
			}
			return err
		})
		if b, o := p.lines(tt.check); b != begun+1 || o != over+1 {
			t.Errorf("%s: %d lines of the beginning and %d of the end", tt.says, b-begun, o-over)
		}
		left, err := filepath.Glob(p.file(tt.dir) + "/.*.env.*")
		if w.Must(err); len(left) > 0 {
			t.Errorf("%s: left behind: %q", tt.says, left)
		}
	}
	result, err := pings.Stop()
	if err != nil || result.Lost() != 0 {
		t.Errorf("%d of %d lost, %v", result.Lost(), result.Sent, err)
	}
	for _, p := range places {
		w.Must(p.agent.Stop(w.Ctx))
	}
}
