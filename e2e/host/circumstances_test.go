package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
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
	"github.com/lenonet/leno/e2e/mounts"
	"github.com/lenonet/leno/e2e/world"
)

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
		"a device has the VXLAN port": {network: vxlan, setup: "ip link add cilium_vxlan type vxlan external dstport 8472; ip link set cilium_vxlan up",
			check: "device", words: []string{"udp port 8472 is used by the device cilium_vxlan", "another port"}, cure: "ip link del cilium_vxlan"},
		"the UDP port is taken": {network: udp, hold: "8285",
			check: "routes", words: []string{"8285", "address already in use", "ss -ulpn"}, cure: "true"},
		"the WireGuard port is taken": {network: wireguard, hold: "51820",
			check: "device", words: []string{"udp port 51820", "address already in use", "ss -ulpn"}, cure: "true"},
		"others can read the private key of WireGuard": {network: wireguard,
			script: "mkdir -p /var/lib/leno/g; echo AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHn8= >" + key + "; chmod 644 " + key + "\n" + mounts.Run,
			check:  "underlay", words: []string{"key_file: " + key + " can be read or written by others", "chmod 600"}, cure: "chmod 600 " + key},
		"the private key of WireGuard is malformed": {network: wireguard,
			script: "mkdir -p /var/lib/leno/g; echo secret >" + key + "; chmod 600 " + key + "\n" + mounts.Run,
			check:  "underlay", words: []string{"key_file: the key in " + key + " is not 32 bytes in base64"}, cure: "rm " + key},
		"no `/dev/net/tun`": {network: udp, script: private + mounts.Run,
			check: "device", words: []string{"/dev/net/tun: no such file", "kernel module tun"}, cure: "mknod -m 666 /dev/net/tun c 10 200"},
		"`/dev/net/tun` may not be opened": {network: udp,
			script: private + "mknod -m 600 /dev/net/tun c 10 200\nchown -R 64199 /run/leno /var/lib/leno\n" +
				`exec setpriv --reuid=64199 --regid=64199 --clear-groups --inh-caps=-all,+net_admin --ambient-caps=-all,+net_admin "$@"`,
			check: "device", words: []string{"/dev/net/tun: permission denied", "read and write /dev/net/tun"}, cure: "chmod 666 /dev/net/tun"},
		"iptables is asked for and not installed": {network: vxlan + "  ip_masq = true\n", blocks: "firewall {\n  type = \"iptables\"\n}\n",
			script: "mount -t tmpfs x /usr/sbin\nexport PATH=/usr/local/bin\n" + `exec leno agent -config-dir=/etc/leno.d`,
			check:  "firewall", words: []string{"not installed", "install the package iptables"},
			cure: "umount /usr/sbin"}, // which the agent searches although its PATH lacks it
		"the lock of iptables-legacy is held": {network: vxlan + "  ip_masq = true\n", blocks: "firewall {\n  type = \"iptables\"\n}\n",
			script: "(exec 9>/run/xtables.lock; flock 9; exec sleep 600) & echo $! >/run/holder\n" +
				"while flock --nonblock /run/xtables.lock true; do sleep 0.01; done\n" +
				"for p in iptables ip6tables; do for s in '' -save -restore; do ln -s /usr/sbin/$p-legacy$s /usr/local/bin/$p$s; done; done\n" + mounts.Run,
			check: "firewall", words: []string{"holds the lock of iptables", "fuser -v /run/xtables.lock"}, cure: "kill $(cat /run/holder)"},
		"`data_dir` is read-only": {network: vxlan, script: "mount -o remount,bind,ro /var/lib\n" + mounts.Run,
			check: "data_dir", words: []string{"read-only file system", "make its file system writable"}, cure: "mount -o remount,bind,rw /var/lib"},
		"`data_dir` is full": {network: vxlan, script: "mkdir -p /var/lib/leno; mount -t tmpfs -o size=1m,mode=755 x /var/lib/leno; head -c 2M /dev/zero >/var/lib/leno/filler 2>/dev/null || :\n" + mounts.Run,
			check: "data_dir", words: []string{"no space left", "free space"}, cure: "rm /var/lib/leno/filler"},
		"`/run` is read-only": {network: vxlan, script: "mount -o remount,bind,ro /run\n" + mounts.Run,
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
	for i, name := range slices.Sorted(maps.Keys(all)) {
		h, c := w.Hosts[i], all[name]
		config := strings.Replace(h.Config(world.ShortLease+"\n"+c.blocks+"network \""+"n"+"\" {"+c.network+"}\n"), fmt.Sprintf("%q", h.DataDir()), `"/var/lib/leno"`, 1)
		if strings.Contains(c.network, `"udp"`) {
			config = strings.Replace(config, `network "n"`, `network "u"`, 1)
		}
		if strings.Contains(c.network, `"wireguard"`) {
			config = strings.Replace(config, `network "n"`, `network "g"`, 1)
		}
		p := mounts.New(w.World, h, config, nil)
		runs.Go(func() {
			if err := w.meet(p, c); err != nil {
				t.Errorf("%s (%s): %v", name, h.Name, err)
			}
		})
	}
	runs.Wait()
}

// meet starts the agent of a host in a circumstance and repairs the fault.
func (w *testWorld) meet(p *mounts.Host, c circumstance) error {
	if c.setup != "" {
		if _, err := p.Exec(w.Ctx, "sh", "-euc", c.setup); err != nil {
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
	if err := p.Launch("mkdir -p /run/leno /var/lib/leno\n" + cmp.Or(c.script, mounts.Run)); err != nil {
		return err
	}
	if err := p.WaitCheck(c.check, api.Critical, c.words...); err != nil {
		return err
	}
	if err := p.Inside("sh", "-euc", c.cure); err != nil {
		return err
	}
	if held != nil {
		if err := held.Close(); err != nil {
			return err
		}
	}
	cured := time.Now()
	if err := p.WaitPassing(); err != nil { // an error if the process has ended
		return err
	}
	w.T.Logf("%s: passing %s after the cure", c.words[0], time.Since(cured).Round(10*time.Millisecond))
	lines := 1
	if c.check == "underlay" {
		lines = 0 // the network waits for it, which is another line
	}
	return p.WaitFaults(c.check, lines, lines)
}

// TestDocumentationCircumstances compares the table of host faults with the circumstances that are
// tested, and with the table of their tests. TestDocumentationFailures checks that these tests exist.
func TestDocumentationCircumstances(t *testing.T) {
	shownBy := map[string][]string{}
	for _, row := range docpages.Rows(t, docpages.Path("contributing/failures"), "Host faults") {
		shownBy[row[0]] = docpages.Codes(row[1])
	}
	all := circumstances()
	for _, row := range docpages.Rows(t, docpages.Path("operations/host-faults"), "") {
		shown, excepted := shownBy[row[0]]
		if excepted && len(shown) == 0 {
			t.Errorf("%s: no test shows that", row[0])
		}
		delete(shownBy, row[0])
		c, tried := all[row[0]]
		if tried == excepted {
			t.Errorf("%s: tried by TestCircumstances %t, named as an exception %t", row[0], tried, excepted)
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
	for name := range shownBy {
		t.Errorf("%s has tests and is not on the page", name)
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
	var hosts []*mounts.Host
	for _, h := range w.Hosts {
		p := mounts.New(w.World, h, config(h, false), nil)
		w.Must(p.Launch(small + mounts.Run))
		w.Must(p.WaitCheck("subnet_file", api.Passing))
		w.Must(os.Symlink(p.File("/run/leno/default.env"), p.SubnetFile("default")))
		hosts = append(hosts, p)
		w.Container(h, "default")
	}
	w.Settle("default")
	w.Linked(w.Containers)
	p, other := hosts[0], w.Containers[1]
	pings, err := other.StartEchoes(w.Ctx, w.Containers[0].Addrs[0], 20*time.Millisecond)
	w.Must(err)

	// The agent writes a missing file again as soon as it notices, so a file is removed when it cannot be written any more.
	const readOnly = "mkdir -p /run/writable; mount --bind /var/lib/leno /run/writable; mount --bind /var/lib/leno /var/lib/leno; " +
		"mount -o remount,bind,ro /var/lib/leno; rm /run/writable/default.json; umount /run/writable"
	const full = "until [ ! -e /var/lib/leno/default.json ]; do rm /var/lib/leno/default.json; head -c 1M /dev/zero >>/var/lib/leno/filler 2>/dev/null || :; done"
	const replaced = "rm /var/lib/leno/default.json; until [ -f /var/lib/leno/peers ]; do rm -r /var/lib/leno/peers; touch /var/lib/leno/peers; done"
	masq := false
	for _, tt := range []struct{ dir, file, check, status, breaks, mends, says string }{
		{"/run/leno", "default.env", "subnet_file", api.Critical, "mount -o remount,bind,ro /run/leno", "mount -o remount,bind,rw /run/leno", "read-only file system"},
		{"/run/leno", "default.env", "subnet_file", api.Critical, "head -c 1M /dev/zero >/run/leno/filler 2>/dev/null || :", "rm /run/leno/filler", "no space left"},
		{"/var/lib/leno", "default.json", "data_dir", api.Warning, readOnly, "umount /var/lib/leno", "read-only file system"},
		{"/var/lib/leno", "default.json", "data_dir", api.Warning, full, "rm /var/lib/leno/filler", "no space left"},
		{"/var/lib/leno", "peers/default.json", "data_dir", api.Warning, replaced, "rm /var/lib/leno/peers", "not a directory"},
	} {
		path := filepath.Join(tt.dir, tt.file)
		before, err := os.ReadFile(p.File(path))
		w.Must(err)
		begun, ended := p.Faults(tt.check)
		w.Must(p.Inside("sh", "-euc", tt.breaks))
		masq = !masq
		p.Configure(config(p.Host, masq))
		_, err = p.Exec(w.Ctx, world.Leno(), "reload")
		w.Must(err)
		w.Must(p.WaitCheck(tt.check, tt.status, tt.says))
		if now, err := os.ReadFile(p.File(path)); tt.check == "subnet_file" && (err != nil || string(now) != string(before)) {
			t.Errorf("%s: %v, %q, before %q", tt.says, err, now, before)
		}
		w.Must(p.Inside("sh", "-euc", tt.mends))
		w.Must(p.WaitCheck(tt.check, api.Passing))
		w.Eventually(path+" to be written", func(context.Context) error {
			now, err := os.ReadFile(p.File(path))
			if err == nil && tt.check == "subnet_file" && !strings.Contains(string(now), fmt.Sprintf("LENO_IPMASQ=%t", masq)) {
				err = fmt.Errorf("%q", now)
			}
			return err
		})
		if err := p.WaitFaults(tt.check, begun+1, ended+1); err != nil {
			t.Errorf("%s: %v", tt.says, err)
		}
		left, err := filepath.Glob(p.File(tt.dir) + "/.*.env.*")
		if w.Must(err); len(left) > 0 {
			t.Errorf("%s: left behind: %q", tt.says, left)
		}
	}
	result, err := pings.Stop()
	if err != nil || result.Lost() != 0 {
		t.Errorf("%d of %d lost, %v", result.Lost(), result.Sent, err)
	}
	for _, p := range hosts {
		w.Must(p.Process.Stop(w.Ctx))
	}
}
