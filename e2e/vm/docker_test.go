//go:build vm

package vm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// twoNetworks is the configuration of TestDocker's networks: docker0 is in the first one.
const twoNetworks = `  ipv4 {
    prefix = "10.5.0.0/16"
  }
  ipv6 {
    prefix = "fd00:5::/48"
  }
  ip_masq = true
  backend "vxlan" {}
}

network "blue" {
  ipv4 {
    prefix = "10.6.0.0/16"
  }
  ip_masq = true
  backend "vxlan" {
    vni = 2
  }
`

// TestDocker runs Docker on two machines, with docker0 and a Docker network in networks of leno. Docker starts before
// leno the first time, and then as the documentation says: on one machine by the script, on the other one by the
// drop-in that is copied.
func TestDocker(t *testing.T) {
	t.Parallel()
	p := newPair(t, Options{
		Kernel: defaultKernel,
		Memory: 1024,
		Files:  map[string]string{"leno-image.tar": dockerArchive(t)},
	})
	step := p.steps()
	p.configure(twoNetworks)
	for _, m := range p.both() {
		p.example(m, "docker/leno-docker.sh", "/usr/local/bin/leno-docker.sh")
		p.write(m, "/etc/docker/daemon.json", `{"live-restore": true}`+"\n")
	}
	p.example(p.b, "docker/leno.conf", "/etc/systemd/system/docker.service.d/zz-leno.conf")
	p.onBoth(webImage + `
		if [ "$(hostname)" = vm-a ]; then systemctl start docker; fi`)
	if policy := p.must(p.a, "iptables", "-S", "FORWARD"); !strings.HasPrefix(policy, "-P FORWARD DROP\n") {
		t.Fatalf("Docker did not set the policy of FORWARD to DROP:\n%s", policy)
	}
	step("Docker runs, and has set the policy of FORWARD to DROP")

	p.onBoth(`systemctl enable --quiet --now leno
		leno status -wait=2m
		if [ "$(hostname)" = vm-a ]
		then leno-docker.sh -restart docker0 default
		else systemctl daemon-reload; systemctl start docker
		fi
		` + importImage + `
		docker run --detach --restart=always --name=one --publish=8080:80 web
		leno-docker.sh network blue
		docker run --detach --restart=always --name=two --network=leno-blue --publish=8081:80 web`)
	var one, two [2]container
	for i, m := range p.both() {
		if got := p.must(m, "cat", "/run/leno-docker.env"); strings.Contains(got, "not known") {
			t.Errorf("leno docker-opts did not find the version of Docker on %s:\n%s", m.Name, got)
		}
		one[i], two[i] = p.container(m, "one"), p.container(m, "two")
	}
	step("containers run in both networks")
	for i, pool := range map[int]string{0: "10.5.0.0/16", 1: "10.6.0.0/16"} {
		for _, c := range []container{one[0], one[1], two[0], two[1]}[2*i : 2*i+2] {
			if !netip.MustParsePrefix(pool).Contains(c.v4) {
				t.Fatalf("the container %s of %s has the address %s, outside %s", c.name, c.machine.Name, c.v4, pool)
			}
		}
	}
	p.meet(one[0], one[1])
	p.meet(two[0], two[1])
	step("containers of both machines reach each other, with their addresses and exactly the MTU")

	for i, m := range p.both() {
		other := p.both()[1-i]
		host, remote := m.Addrs[0].String(), other.Addrs[0].String()
		for _, from := range []struct {
			what    string
			process string
			to      string
			port    int
			of      container
		}{
			{"another host, published", "", remote, 8080, one[1-i]},
			{"another host, published in the Docker network", "", remote, 8081, two[1-i]},
			{"another host's container, published", one[i].process, remote, 8080, one[1-i]},
			{"the host itself, published", "", host, 8080, one[i]},
			{"the host itself, published in the Docker network", "", host, 8081, two[i]},
			{"the host's loopback, published", "", "127.0.0.1", 8080, one[i]},
			{"the container itself, published", one[i].process, host, 8080, one[i]},
			{"a container of the other network, published", two[i].process, host, 8080, one[i]},
			{"another host, directly", "", one[1-i].v4.String(), 80, one[1-i]},
		} {
			if got := p.fetch(m, from.process, from.to, from.port, "/large"); got != from.of.sum {
				t.Errorf("%s on %s: %s port %d: %q is not the file of %s on %s", from.what, m.Name, from.to, from.port, got, from.of.name, from.of.machine.Name)
			}
		}
	}
	step("published ports can be reached from everywhere")
	for _, m := range p.both() {
		p.doctor(m)
	}
	p.besideOthers(one, two)
	step("a Docker network of its own works next to leno's")

	p.restarts(one, two)
	step("Docker and the agent were restarted, without losing each other's rules")

	p.moveSubnets(one, two)
	step("one machine has moved to other subnets")

	kept := p.rules(p.b, false)
	p.must(p.b, "systemctl", "stop", "leno")
	p.must(p.b, "leno", "cleanup", "-keep-lease")
	if diff := cmp.Diff(kept, p.rules(p.b, true)); diff != "" {
		t.Errorf("leno cleanup changed Docker's rules (-before +after):\n%s", diff)
	}
	step("leno cleanup has left Docker's rules as they were")

	// The command of the page about packages. The package's user owned the directory.
	p.must(p.b, "sh", "-euc", `docker load --quiet --input /mnt/leno-image.tar
		mkdir -p /run/leno /var/lib/leno
		chown -R root: /run/leno /var/lib/leno
		docker run --detach --name leno --restart=always \
			--network=host --cap-drop=ALL --cap-add=NET_ADMIN --cap-add=NET_RAW \
			--volume /etc/leno.d:/etc/leno.d:ro \
			--volume /var/lib/leno:/var/lib/leno \
			--volume /run/leno:/run/leno \
			leno:1.0.0`)
	p.wait(p.b, "the agent in a container", "docker exec leno leno status -wait=30s")
	if got := p.container(p.b, "one"); got.v4 != one[1].v4 {
		t.Errorf("the container's address is %s, was %s", got.v4, one[1].v4)
	}
	p.meet(p.container(p.a, "one"), one[1])
	step("the agent runs in a container of the image")
}

// dockerArchive returns the container image with the program of the package, in the format that Docker loads without
// its containerd image store, as the page about packages shows.
func dockerArchive(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("sh", "-euc", `dpkg-deb --extract "$1" "$2/package"
		mkdir "$2/files"
		(cd "$2/files" && mkdir -p etc/leno.d run/leno tmp usr/bin var/lib/leno)
		cp "$2/package/usr/bin/leno" "$2/files/usr/bin/"
		"$LENO_TEST_VM_CONTAINERS" -o "$2/leno_1.0.0_oci.tar" -version 1.0.0 -date 1700000000 amd64="$2/files"
		cd "$2"
		skopeo copy --quiet oci-archive:leno_1.0.0_oci.tar:1.0.0 docker-archive:leno_1.0.0_docker.tar:leno:1.0.0`,
		"sh", deb(t, ""), dir).CombinedOutput()
	if err != nil {
		t.Fatalf("container image: %v\n%s", err, out)
	}
	return filepath.Join(dir, "leno_1.0.0_docker.tar")
}

// steps returns a function that logs a step of the test with the time since now.
func (p *pair) steps() func(string) {
	began := time.Now()
	return func(what string) {
		p.t.Helper()
		p.t.Logf("%3.0f s: %s", time.Since(began).Seconds(), what)
	}
}

// onBoth runs a shell script on both machines at the same time.
func (p *pair) onBoth(script string) {
	p.t.Helper()
	var group errgroup.Group
	for _, m := range p.both() {
		group.Go(func() error {
			_, err := m.Run(p.ctx, "sh", "-euc", script)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		p.t.Fatal(err)
	}
}

// example installs a file of examples/ as an executable.
func (p *pair) example(m *Machine, name, path string) {
	p.t.Helper()
	text, err := os.ReadFile("../../examples/" + name)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(m, path, string(text))
	p.must(m, "chmod", "755", path)
}

// webImage creates the file system of a container: a web server with a large file and a page that shows the client's
// address. There is no registry to take one from. importImage makes it Docker's.
const (
	webImage = `mkdir -p /srv/image/bin /srv/image/www/cgi-bin
		cd /srv/image
		cp /bin/busybox bin/busybox
		for name in sh httpd printf; do ln bin/busybox bin/$name; done
		printf '#!/bin/sh\nprintf "Content-Type: text/plain\\r\\n\\r\\n%%s\\n" "$REMOTE_ADDR"\n' >www/cgi-bin/source
		chmod 755 www/cgi-bin/source
		head -c 3000000 /dev/urandom >www/large
		cat >/usr/local/bin/fetch <<-'END'
			#!/bin/sh
			# fetch ADDRESS PORT PATH
			printf 'GET %s HTTP/1.0\r\n\r\n' "$3" | busybox nc -w 5 "$1" "$2" | sed '1,/^\r*$/d'
		END
		chmod 755 /usr/local/bin/fetch
		# The first process of a container ends at SIGTERM only if it has a handler.
		echo '["sh", "-c", "trap exit TERM; httpd -f -p 80 -h /www & wait"]' >/srv/image.cmd
		cd /`
	importImage = `tar -C /srv/image -c . | docker import --change "CMD $(cat /srv/image.cmd)" - web`
)

// A container is one of Docker's.
type container struct {
	machine *Machine
	name    string
	process string // its process id on the machine
	v4, v6  netip.Addr
	sum     string // SHA-256 of its large file
}

// container returns a container that runs.
func (p *pair) container(m *Machine, name string) container {
	p.t.Helper()
	p.wait(m, "the container "+name+" to run", `[ "$(docker inspect --format '{{.State.Running}}' `+name+`)" = true ]`)
	fields := strings.Fields(p.must(m, "docker", "inspect", "--format",
		`{{.State.Pid}}{{range .NetworkSettings.Networks}} {{.IPAddress}} {{.GlobalIPv6Address}}{{end}}`, name))
	if len(fields) < 2 {
		p.t.Fatalf("docker inspect %s on %s: %q", name, m.Name, fields)
	}
	c := container{machine: m, name: name, process: fields[0]}
	for _, text := range fields[1:] {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			p.t.Fatal(err)
		}
		if addr.Is4() {
			c.v4 = addr
		} else {
			c.v6 = addr
		}
	}
	c.sum, _, _ = strings.Cut(p.must(m, "sha256sum", "/srv/image/www/large"), " ")
	return c
}

// inside returns a command that runs in the network namespace of a process, or on the machine itself without one.
func inside(process string, command ...string) []string {
	if process == "" {
		return command
	}
	return append([]string{"nsenter", "--net=/proc/" + process + "/ns/net"}, command...)
}

// fetch gets a page until something is received: of /large its checksum.
func (p *pair) fetch(m *Machine, process, addr string, port int, path string) string {
	p.t.Helper()
	got, err := p.tryFetch(time.Minute, m, process, addr, port, path)
	if err != nil {
		p.t.Error(err)
	}
	return got
}

func (p *pair) tryFetch(patience time.Duration, m *Machine, process, addr string, port int, path string) (got string, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	script := fmt.Sprintf("fetch %s %d %s >/tmp/fetched; test -s /tmp/fetched; ", addr, port, path)
	if path == "/large" {
		script += "sha256sum </tmp/fetched | cut -d' ' -f1"
	} else {
		script += "cat /tmp/fetched"
	}
	err = lab.WaitFor(ctx, fmt.Sprintf("an answer from %s port %d on %s", addr, port, m.Name), func(ctx context.Context) error {
		got, err = m.Run(ctx, inside(process, "sh", "-euc", script)...)
		return err
	})
	return strings.TrimSpace(got), err
}

// meet checks that two containers reach each other at their own addresses, in both directions and with packets of
// exactly the network's MTU.
func (p *pair) meet(a, b container) {
	p.t.Helper()
	for _, way := range [][2]container{{a, b}, {b, a}} {
		from, to := way[0], way[1]
		if got := p.fetch(from.machine, from.process, to.v4.String(), 80, "/large"); got != to.sum {
			p.t.Errorf("%s of %s got %q from %s of %s: not its file", from.name, from.machine.Name, got, to.name, to.machine.Name)
		}
		for _, addrs := range [][2]netip.Addr{{from.v4, to.v4}, {from.v6, to.v6}} {
			if !addrs[0].IsValid() {
				continue
			}
			text := strings.Trim(p.fetch(from.machine, from.process, addrs[1].String(), 80, "/cgi-bin/source"), "[]")
			if source, err := netip.ParseAddr(text); err != nil || source.Unmap() != addrs[0] {
				p.t.Errorf("%s of %s sees %q instead of %s", to.name, to.machine.Name, text, addrs[0])
			}
			for size, fits := range map[int]bool{1450: true, 1451: false} {
				out, err := from.machine.Run(p.ctx, inside(from.process, "ping", "-n", "-c", "3", "-i", "0.2", "-W", "10", "-M", "do",
					"-s", strconv.Itoa(size-headers(addrs[1])), addrs[1].String())...)
				if fits != (err == nil) {
					p.t.Errorf("%d bytes from %s to %s: %v\n%s", size, addrs[0], addrs[1], err, out)
				}
			}
		}
	}
}

// rules returns the rules of iptables of both families without counters: those that are not leno's, or all.
func (p *pair) rules(m *Machine, all bool) string {
	p.t.Helper()
	var kept strings.Builder
	for line := range strings.Lines(p.must(m, "sh", "-euc", `{ iptables-save; ip6tables-save; } | sed '/^#/d; s/ \[[0-9:]*\]$//'`)) {
		if all || !strings.Contains(line, "LENO-") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// besideOthers runs a container in a Docker network that has nothing to do with leno.
func (p *pair) besideOthers(one, two [2]container) {
	p.t.Helper()
	m := p.a
	p.must(m, "docker", "network", "create", "--opt=com.docker.network.bridge.name=br-other", "other")
	p.must(m, "docker", "run", "--detach", "--name=three", "--network=other", "--publish=8082:80", "web")
	three := p.container(m, "three")
	host := m.Addrs[0].String()
	for _, from := range []struct {
		what    string
		m       *Machine
		process string
		to      string
		port    int
		of      container
	}{
		{"a container of leno's network on another host, published", p.b, one[1].process, host, 8082, three},
		{"a container of leno's network on the same host, published", m, one[0].process, host, 8082, three},
		{"the other network's container, published by leno's", m, three.process, host, 8080, one[0]},
		{"the other network's container, published by another host", m, three.process, p.b.Addrs[0].String(), 8080, one[1]},
		// leno accepts packets from and to its networks before Docker's isolation drops them.
		{"the other network's container, directly", m, three.process, one[0].v4.String(), 80, one[0]},
		{"a container of leno's network, directly", m, one[0].process, three.v4.String(), 80, three},
	} {
		if got := p.fetch(from.m, from.process, from.to, from.port, "/large"); got != from.of.sum {
			p.t.Errorf("%s: %s port %d: got %q", from.what, from.to, from.port, got)
		}
	}
	// The documented rules that keep both apart.
	for _, direction := range [][]string{{"-i", "br-other", "-d"}, {"-o", "br-other", "-s"}} {
		p.must(m, append(append([]string{"iptables", "-I", "DOCKER-USER"}, direction...), "10.5.0.0/16", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")...)
	}
	for _, from := range []struct {
		process, to string
	}{{three.process, one[0].v4.String()}, {one[0].process, three.v4.String()}} {
		if out, err := p.tryFetch(8*time.Second, m, from.process, from.to, 80, "/large"); err == nil {
			p.t.Errorf("in spite of a rule in DOCKER-USER, %s answers: %q", from.to, out)
		}
	}
	p.meet(one[0], one[1])
	p.must(m, "iptables", "-F", "DOCKER-USER")
	p.must(m, "iptables", "-A", "DOCKER-USER", "-j", "RETURN")
	p.must(m, "docker", "rm", "--force", "three")
	p.must(m, "docker", "network", "rm", "other")
}

// restarts restarts a container, the agent and Docker on the first machine.
func (p *pair) restarts(one, two [2]container) {
	p.t.Helper()
	m := p.a
	before := p.rules(m, true)
	p.must(m, "docker", "restart", "--time=1", "one")
	one[0] = p.container(m, "one")
	p.meet(one[0], one[1])
	if diff := cmp.Diff(sorted(before), sorted(p.rules(m, true))); diff != "" {
		p.t.Errorf("docker restart changed rules (-before +after):\n%s", diff)
	}
	before = p.rules(m, true)
	p.startPings(p.b, one[0].v4)
	p.must(m, "systemctl", "restart", "leno")
	p.must(m, "leno", "status", "-wait=2m")
	if diff := cmp.Diff(before, p.rules(m, true)); diff != "" {
		p.t.Errorf("a restart of the agent changed rules (-before +after):\n%s", diff)
	}

	p.must(m, "systemctl", "restart", "docker")
	// Docker 20.10 may put the jump to DOCKER-USER behind its own others then.
	p.wait(m, "leno's rules after Docker's restart", `iptables -S FORWARD | awk '/-j LENO-FORWARD$/ { found = 1 } /-j DOCKER-ISOLATION/ { exit } END { exit !found }'`)
	if got := p.container(m, "one"); got != one[0] {
		p.t.Errorf("with live-restore, the container is %+v after Docker's restart, was %+v", got, one[0])
	}
	missing, answered := p.stopPings(p.b)
	if len(missing) != 0 || answered < 20 {
		p.t.Errorf("%d packets answered while the agent and Docker were restarted, lost: %v", answered, missing)
	}
	p.meet(one[0], one[1])
	p.meet(two[0], two[1])
	if got := p.fetch(p.b, "", m.Addrs[0].String(), 8080, "/large"); got != one[0].sum {
		p.t.Errorf("the published port after Docker's restart: got %q", got)
	}
}

// moveSubnets gives the first machine other subnets, and follows the documentation: Docker's next start changes
// docker0, and the script the Docker network.
func (p *pair) moveSubnets(one, two [2]container) {
	p.t.Helper()
	m := p.a
	old := netip.MustParsePrefix(strings.TrimSpace(p.must(m, "sh", "-euc", `. /run/leno/default.env; echo "$LENO_IPV6_SUBNET"`)))
	for network, reserved := range map[string]string{"default": "10.5.200.0/24", "blue": "10.6.200.0/24"} {
		for _, other := range p.both() {
			if strings.Contains(p.must(other, "cat", "/run/leno/"+network+".env"), "="+strings.Replace(reserved, ".0/", ".1/", 1)) {
				reserved = strings.Replace(reserved, ".200.", ".201.", 1)
			}
		}
		p.must(m, "leno", "reservation", "add", network, reserved, "-node="+m.Name)
		p.must(m, "sh", "-euc", `. /run/leno/`+network+`.env; leno lease revoke `+network+` "${LENO_SUBNET%.*}.0/24"`)
		p.wait(m, "the reserved subnet", `. /run/leno/`+network+`.env; [ "$LENO_SUBNET" = `+strings.Replace(reserved, ".0/", ".1/", 1)+` ]`)
	}
	// With live-restore, Docker would keep docker0's addresses for the containers that run.
	p.write(m, "/etc/docker/daemon.json", `{"live-restore": false}`+"\n")
	p.must(m, "systemctl", "reload", "docker")
	p.wait(m, "live-restore to be off", `[ "$(docker info --format '{{.LiveRestoreEnabled}}')" = false ]`)
	p.must(m, "systemctl", "restart", "docker")
	// Docker 20.10 leaves the route of the old IPv6 subnet. It would lead packets for the next host that has the subnet
	// astray, so leno doctor reports it.
	p.finding(m, "overlap", old.Masked().String()+" over docker0 lies in the pool")
	p.must(m, "ip", "-6", "route", "del", old.Masked().String(), "dev", "docker0")
	var exit *ExitError
	if out, err := m.Run(p.ctx, "leno-docker.sh", "network", "blue"); !errors.As(err, &exit) || !strings.Contains(err.Error(), "is in use by: two") {
		p.t.Errorf("the script recreates a Docker network that is in use: %v\n%s", err, out)
	}
	p.must(m, "leno-docker.sh", "-force", "network", "blue")
	one[0], two[0] = p.container(m, "one"), p.container(m, "two")
	for _, c := range []container{one[0], two[0]} {
		if c.v4.As4()[2] != 200 {
			p.t.Errorf("the container %s has the address %s after the move", c.name, c.v4)
		}
	}
	p.must(m, "leno", "status", "-wait=2m")
	p.meet(one[0], one[1])
	p.meet(two[0], two[1])
	if got := p.fetch(p.b, "", m.Addrs[0].String(), 8080, "/large"); got != one[0].sum {
		p.t.Errorf("the published port after the move: got %q", got)
	}
	p.doctor(m)
}
