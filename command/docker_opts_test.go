package command

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// subnetFiles writes the files of two networks.
func subnetFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"default": "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_IPV6_NETWORK=fd00:5::/48\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\nLENO_IPMASQ=true\n",
		"blue":    "LENO_NETWORK=10.9.0.0/20\nLENO_SUBNET=10.9.7.1/24\nLENO_MTU=1400\nLENO_IPMASQ=false\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".env"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDockerOpts(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no Docker
	dir := subnetFiles(t)
	for name, args := range map[string]string{
		"":                 "-docker-version=28.3.2",
		"unknown version":  "",
		"old":              "-docker-version=20.10.24",
		"networks":         "-docker-version=28.3.2 -subnet-file=DIR/blue.env",
		"networks old":     "-docker-version=27.5.1 -subnet-file=DIR/blue.env",
		"create":           "-docker-version=28.3.2 -create -interface=leno-default -interface=eth0",
		"create nftables":  "-docker-version=29.0.1 -create -docker-firewall=nftables",
		"env":              "-docker-version=28.3.2 -format=env",
		"env raw":          "-docker-version=28.1.1 -format=env -key=DOCKER_NETWORK_OPTIONS",
		"env unknown":      "-format=env",
		"json":             "-docker-version=28.3.2 -format=json",
		"json unknown":     "-format=json",
		"nftables":         "-docker-version=29.0.1 -docker-firewall=nftables",
		"bad version":      "-docker-version=latest",
		"podman's version": "-docker-version=4.3.1",
		"env of two":       "-format=env -subnet-file=DIR/blue.env",
		"no file":          "-subnet-file=DIR/red.env",
	} {
		t.Run(name, func(t *testing.T) {
			shown := strings.Fields("docker-opts -subnet-file=DIR/default.env " + args)
			got := world{}.run(strings.Fields(strings.ReplaceAll(strings.Join(shown, " "), "DIR", dir))...)
			got.stdout, got.stderr = strings.ReplaceAll(got.stdout, dir, "DIR"), strings.ReplaceAll(got.stderr, dir, "DIR")
			golden(t, strings.TrimSpace("docker-opts "+strings.ReplaceAll(name, "'", "")), got.transcript(shown))
			if strings.HasPrefix(name, "json") && !json.Valid([]byte(got.stdout)) {
				t.Error("not JSON")
			}
			if !strings.HasPrefix(name, "env") { // lines of an environment file cannot be broken
				fits80(t, got.stdout)
			}
		})
	}
}

// The agent reports the files, and the devices on which packets arrive.
func TestDockerOptsAsksTheAgent(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := subnetFiles(t)
	f := newFakeAgent(t)
	f.networks[1].Local.SubnetFile = filepath.Join(dir, "default.env")
	w := world{env: map[string]string{"LENO_ADDRESS": f.url}}
	run := func(code int, args string, want ...string) {
		t.Helper()
		got := w.run(strings.Fields("docker-opts -docker-version=28.3.2 " + args)...)
		if got.code != code {
			t.Errorf("%s: %+v", args, got)
		}
		for _, text := range want {
			if !strings.Contains(got.stdout+got.stderr, text) {
				t.Errorf("%s: %q is missing in\n%s%s", args, text, got.stdout, got.stderr)
			}
		}
	}
	run(cli.ExitDone, "", "--bip=10.5.34.1/24")
	const own = "trusted_host_interfaces=leno-default:leno-default~2:leno-default~b"
	run(cli.ExitDone, "-create", own+" \\\n") // and nothing else
	f.networks[1].Backend = json.RawMessage(`{"type":"vxlan","direct_routing":true}`)
	run(cli.ExitDone, "-create", own+":eth0")
	run(cli.ExitFailed, "-network=green", "network green is not on this host: known are default")
	run(cli.ExitFailed, "-network=blue", "known are default") // this host takes no part in it

	f.networks[1].Backend = json.RawMessage(`{"type":"host-gw"}`)
	run(cli.ExitDone, "-create", own+":eth0")

	local := *f.networks[1].Local
	local.SubnetFile, local.State = filepath.Join(dir, "none.env"), "waits for a lease: network is full"
	f.networks[0].Local = &local
	run(cli.ExitUsage, "", "there are several networks, name them with -network, docker0's first: blue, default")
	run(cli.ExitDone, "-network=default", "--bip=10.5.34.1/24")
	run(cli.ExitFailed, "-network=default -network=blue", "network blue has no subnet file", "waits for a lease: network is full")
	f.networks = nil
	run(cli.ExitFailed, "", "no network has a subnet file here")
}

// TestDockerOptsBelievesNoStranger: a program that listens at the agent's address while no agent runs names a file of its
// own, or words for the shell.
func TestDockerOptsBelievesNoStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of another user")
	}
	t.Setenv("PATH", t.TempDir())
	dir := subnetFiles(t)
	f := newFakeAgent(t)
	file := filepath.Join(dir, "default.env")
	f.networks[1].Local.SubnetFile = file
	w := world{env: map[string]string{"LENO_ADDRESS": f.url}}
	if err := os.Chown(file, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for format := range strings.FieldsSeq("table env json") {
		if got := w.run("docker-opts", "-docker-version=28.3.2", "-format="+format); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "belongs to user 65534") {
			t.Errorf("%s: %+v", format, got)
		}
	}
	if got := w.run("docker-opts", "-docker-version=28.3.2", "-subnet-file="+file); got.code != cli.ExitDone {
		t.Errorf("a file that the operator names: %+v", got)
	}
	if err := os.Chown(file, 0, 0); err != nil {
		t.Fatal(err)
	}
	f.networks[1].Backend = json.RawMessage(`{"type":"vxlan","direct_routing":true}`)
	right := f.networks[1]
	for what, give := range map[string]func(n *api.Network){
		"device":               func(n *api.Network) { n.Local.Underlay.Interface = "eth0; reboot" },
		"network":              func(n *api.Network) { n.Name = "default; reboot" },
		"network to be quoted": func(n *api.Network) { n.Name = "$(reboot)" },
		"network in two lines": func(n *api.Network) { n.Name = "default\nreboot" },
	} {
		local := *right.Local
		f.networks[1] = right
		f.networks[1].Local = &local
		give(&f.networks[1])
		for _, option := range []string{"-create", "-format=table", "-format=env", "-format=json"} {
			if got := w.run("docker-opts", "-docker-version=28.3.2", option); got.code == cli.ExitDone || strings.Contains(got.stdout, "reboot") {
				t.Errorf("a %s for the shell, %s: %+v", what, option, got)
			}
		}
	}
	f.networks[1] = right
	if got := w.run("docker-opts", "-docker-version=28.3.2", "-create"); got.code != cli.ExitDone {
		t.Errorf("what the agent says of the same network otherwise: %+v", got)
	}
}

// TestTokenIsNotSentToAStranger: a user who may not run an agent listens at its address.
func TestTokenIsNotSentToAStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a socket of another user")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(65534); err != nil { // the user of a new socket, for this thread
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if back := unix.Setfsuid(0); err != nil || back != nil {
		t.Fatal(err, back)
	}
	asked := 0
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("X-Leno-Token")+r.Header.Get("X-Consul-Token")+r.Header.Get("Authorization") != "" {
			t.Errorf("it got %v", r.Header)
		}
		w.WriteHeader(http.StatusNotFound)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	address := "http://" + l.Addr().String()
	for name, w := range map[string]world{
		"environment": {env: map[string]string{"LENO_ADDRESS": address, "LENO_TOKEN": "secret"}},
		"flag":        {env: map[string]string{"LENO_ADDRESS": address}},
	} {
		args := []string{"network", "delete", "blue"}
		if name == "flag" {
			args = append(args, "-token=secret")
		}
		if got := w.run(args...); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "the token is not sent to "+l.Addr().String()+": user 65534 listens there") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if asked != 0 {
		t.Errorf("asked %d times", asked)
	}
	if got := (world{env: map[string]string{"LENO_ADDRESS": address}}).run("network", "list"); asked == 0 {
		t.Errorf("without a token: %+v", got)
	}
}

// An agent given by address must respond; otherwise the files are enough.
func TestDockerOptsWithoutAgent(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	w := world{env: map[string]string{"LENO_ADDRESS": "http://127.0.0.1:1"}}
	if got := w.run("docker-opts", "-address=http://127.0.0.1:1"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "no agent answers") {
		t.Errorf("%+v", got)
	}
	if got := w.run("docker-opts", "-network=is-not-here"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "no agent") && !strings.Contains(got.stderr, "/run/leno/*.env") &&
		!strings.Contains(got.stderr, "is not on this host: known are") {
		t.Errorf("%+v", got)
	}
}

// TestDockerOptsFindsTheVersion runs programs that respond as Docker's do.
func TestDockerOptsFindsTheVersion(t *testing.T) {
	dir := subnetFiles(t)
	const dockerd = `[ "$1" = --version ] && echo "Docker version 28.3.2, build e77ff99"`
	const server = `case "$*" in *Server*) echo 27.5.1;; *Client*) echo 29.0.0;; info*Firewall*) echo nftables;; esac`
	const client = `case "$*" in *Client*) echo 26.1.5+dfsg1; echo Cannot connect >&2; exit 1;; *) exit 1;; esac`
	for _, tt := range []struct {
		name, dockerd, docker, want string
	}{
		{"the daemon that is installed", dockerd, server, "Docker 28.3.2 with nftables"},
		{"the one that runs", "", server, "Docker 27.5.1 with nftables"},
		{"the client", "", client, "Docker 26.1.5:"},
		{"Podman", "", "echo 4.3.1", "an unknown version of Docker:"},
		{"none that works", "exit 127", "exit 127", "an unknown version of Docker:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bin := t.TempDir()
			for name, script := range map[string]string{"dockerd": tt.dockerd, "docker": tt.docker} {
				if script != "" {
					if err := programs.Write(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n")); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Setenv("PATH", bin)
			got := world{}.run("docker-opts", "-subnet-file="+filepath.Join(dir, "default.env"))
			if got.code != cli.ExitDone || !strings.Contains(got.stdout, tt.want) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestDockerOptsBeforeDocker checks that the environment file, which systemd has written before it starts Docker, does
// not wait for a Docker that cannot answer yet.
func TestDockerOptsBeforeDocker(t *testing.T) {
	bin, dir := t.TempDir(), subnetFiles(t)
	for name, script := range map[string]string{
		"dockerd": "echo Docker version 29.1.0, build 360952c",
		"docker":  "touch " + bin + "/asked",
	} {
		if err := programs.Write(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n")); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for _, tt := range []struct {
		format string
		asks   bool
	}{{"env", false}, {"json", true}} {
		got := world{}.run("docker-opts", "-subnet-file="+dir+"/default.env", "-format="+tt.format)
		_, err := os.Stat(bin + "/asked")
		if got.code != 0 || !strings.Contains(got.stdout, "allow-direct-routing") || (err == nil) != tt.asks {
			t.Errorf("-format=%s: exit %d, asked docker: %t\n%s", tt.format, got.code, err == nil, got.stdout)
		}
	}
}

// TestDockerOptsRefuses: nothing is written with which dockerd would not start, and the error names the setting that is in
// the way.
func TestDockerOptsRefuses(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := subnetFiles(t)
	config, env := filepath.Join(dir, "daemon.json"), filepath.Join(dir, "docker.env")
	for _, tt := range []struct{ text, json, env string }{ // the errors, "" for none
		{text: `{ "bip": "172.26.0.1/16", "mtu": 1400 }`, env: "bip is 172.26.0.1/16"},
		{text: `{ "bridge": "br0", "log-driver": "json-file" }`, json: `bridge is "br0"`, env: `bridge is "br0"`},
		{text: `{ "bip": "192.168.100.1/24", "fixed-cidr": "192.168.100.128/25", "default-gateway": "192.168.100.254" }`,
			json: "fixed-cidr is 192.168.100.128/25", env: "bip is 192.168.100.1/24"},
		{text: "{\n\"ipv6\": true,\n\"fixed-cidr-v6\": \"fdd4:95c2:f557::/64\", // own ULA\n}", json: "line 3: invalid character '/'", env: "line 3: invalid character '/'"},
		{text: `{ "bridge": "none", "iptables": false }`, json: `bridge is "none"`, env: `bridge is "none"`},
		{text: `{ "default-address-pools": [ { "base": "10.5.0.0/16", "size": 24 } ], "bip": "10.5.34.1/24" }`,
			json: "overlaps 10.5.0.0/16 of network default", env: "overlaps 10.5.0.0/16 of network default"},
		{text: `{ "hosts": ["fd://", "tcp://0.0.0.0:2376"], "ip-masq": true }`, env: "ip-masq is true"},
		{text: `{ "ipv6": true, "fixed-cidr-v6": "fdd4:95c2:f557::/64" }`, json: "fixed-cidr-v6 is fdd4:95c2:f557::/64", env: "fixed-cidr-v6 is fdd4:95c2:f557::/64"},
		{text: "\ufeff{ \"debug\": true }", json: "begins with a byte order mark"},
		{text: `{ "mtu": 1400, "debug": true, "mtu": 1300 }`, env: "mtu is 1300"},
		{text: ``},
		{text: `{ "mtu": 1450 }`},
	} {
		if err := os.WriteFile(config, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][2]string{{"-format=env", env}, {"-format=json", config}} {
			want := map[string]string{env: tt.env, config: tt.json}[args[1]]
			got := world{}.run("docker-opts", "-docker-version=28.3.2", "-subnet-file="+filepath.Join(dir, "default.env"),
				"-daemon-json="+config, args[0], "-write="+args[1])
			if (got.code == cli.ExitDone) != (want == "") || !strings.Contains(got.stderr, want) {
				t.Errorf("%s %s: %+v, want %q", tt.text, args[0], got, want)
			}
			if text, err := os.ReadFile(config); tt.json != "" && (err != nil || string(text) != tt.text) {
				t.Errorf("%s became %q, %v", tt.text, text, err)
			}
		}
		err := os.Remove(env)
		if (err == nil) != (tt.env == "") {
			t.Errorf("%s: environment file: %v", tt.text, err)
		}
	}
	if err := os.WriteFile(config, []byte(`{ "mtu": 1400 }`), 0o644); err != nil {
		t.Fatal(err)
	}
	got := world{}.run("docker-opts", "-docker-version=28.3.2", "-subnet-file="+filepath.Join(dir, "default.env"), "-daemon-json="+config)
	if got.code != cli.ExitDone || !strings.Contains(strings.ReplaceAll(got.stdout, "\n# ", " "), "mtu is 1400") {
		t.Errorf("the options for people: %+v", got)
	}
}

// TestDockerOptsPipe: a pipe in place of a file is refused, because reading it could wait forever.
func TestDockerOptsPipe(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := subnetFiles(t)
	pipe := filepath.Join(dir, "pipe.env")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	subnets := "-subnet-file=" + filepath.Join(dir, "default.env")
	for _, args := range [][]string{
		{"-subnet-file=" + pipe, "-daemon-json=" + os.DevNull},
		{subnets, "-daemon-json=" + pipe, "-format=env"},
		{subnets, "-format=json", "-write=" + pipe},
		{subnets, "-daemon-json=" + os.DevNull, "-format=env", "-write=" + pipe},
	} {
		got := world{}.run(append([]string{"docker-opts", "-docker-version=28.3.2"}, args...)...)
		if got.code != cli.ExitFailed || !strings.Contains(strings.Join(strings.Fields(got.stderr), " "), pipe+": is not a regular file") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// TestDockerOptsReadsDaemonJSON: the kind of rules is that of daemon.json, unless a flag says it.
func TestDockerOptsReadsDaemonJSON(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := subnetFiles(t)
	config := filepath.Join(dir, "daemon.json")
	for _, tt := range []struct {
		text, flag string
		nftables   bool
	}{
		{`{"firewall-backend":"nftables"}`, "", true},
		{`{"firewall-backend":"nftables"}`, "iptables", false},
		{`{"firewall-backend":"iptables"}`, "", false},
		{`{}`, "nftables", true},
		{`{}`, "", false},
	} {
		if err := os.WriteFile(config, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		args := []string{"docker-opts", "-docker-version=29.0.1", "-subnet-file=" + filepath.Join(dir, "default.env"), "-daemon-json=" + config}
		if tt.flag != "" {
			args = append(args, "-docker-firewall="+tt.flag)
		}
		got := world{}.run(args...)
		if got.code != cli.ExitDone || strings.Contains(got.stdout, "with nftables") != tt.nftables {
			t.Errorf("%s %s: %+v", tt.text, tt.flag, got)
		}
	}
}

// TestDockerOptsValidates: dockerd is asked before daemon.json is replaced.
func TestDockerOptsValidates(t *testing.T) {
	bin, dir := t.TempDir(), subnetFiles(t)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	config := filepath.Join(dir, "daemon.json")
	const text = `{"graph":"/x"}`
	const script = `#!/bin/sh
[ "$1" = --version ] && { echo Docker version 28.3.2, build e77ff99; exit; }
grep -q graph "${2#--config-file=}" && { echo "unable to configure the Docker daemon with file ${2#--config-file=}: graph" >&2; exit 1; }
echo configuration OK >&2
`
	for name, content := range map[string]string{filepath.Join(bin, "dockerd"): script, config: text} {
		if err := programs.Write(name, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	run := func() result {
		return world{}.run("docker-opts", "-subnet-file="+filepath.Join(dir, "default.env"), "-format=json", "-write="+config)
	}
	if got := run(); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "was not changed: dockerd --validate refuses it") {
		t.Errorf("%+v", got)
	}
	if now, err := os.ReadFile(config); err != nil || string(now) != text {
		t.Errorf("it became %q, %v", now, err)
	}
	if err := os.WriteFile(config, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := run(); got.code != cli.ExitDone || !strings.Contains(got.stdout, "Wrote") {
		t.Errorf("%+v", got)
	}
}

func TestDockerOptsWrites(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := subnetFiles(t)
	path := filepath.Join(dir, "daemon.json")
	run := func(code int, want string, args ...string) {
		t.Helper()
		got := world{}.run(append([]string{"docker-opts", "-docker-version=28.3.2", "-subnet-file=" + filepath.Join(dir, "default.env")}, args...)...)
		if got.code != code || !strings.Contains(got.stdout+got.stderr, want) {
			t.Errorf("%q: %+v, want %d and %q", args, got, code, want)
		}
	}
	content := func() string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}

	write(`{"fixed-cidr-v6":"fd00:5:0:23::/64","debug":true,"bip":"172.17.0.1/16","max":12345678901234567890,"insecure-registries":["<x>"]}`, 0o600)
	run(cli.ExitDone, "Wrote "+path, "-format=json", "-write="+path)
	want := `{
  "allow-direct-routing": true,
  "bip": "10.5.34.1/24",
  "bip6": "fd00:5:0:22::1/64",
  "debug": true,
  "insecure-registries": [
    "<x>"
  ],
  "ip-masq": false,
  "ipv6": true,
  "max": 12345678901234567890,
  "mtu": 1450
}
`
	if diff := cmp.Diff(want, content()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	run(cli.ExitDone, "is up to date", "-format=json", "-write="+path)

	for _, broken := range []string{"{", "[]", "{} {}", "null x", "null", "{} }", "{}]"} {
		write(broken, 0o600)
		run(cli.ExitFailed, "was not changed", "-format=json", "-write="+path)
		if content() != broken {
			t.Errorf("%q became %q", broken, content())
		}
	}
	link := filepath.Join(dir, "link.json")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	run(cli.ExitDone, "Wrote", "-format=env", "-write="+link)
	if to, err := os.Readlink(link); err != nil || to != path {
		t.Errorf("the link became %q, %v", to, err)
	}
	if !strings.HasSuffix(content(), "\nDOCKER_OPTS=\"--bip=10.5.34.1/24 --ipv6 --bip6=fd00:5:0:22::1/64 --ip-masq=false --mtu=1450 --allow-direct-routing\"\n") {
		t.Errorf("got\n%s", content())
	}
	run(cli.ExitDone, "is up to date", "-format=env", "-write="+path)
	run(cli.ExitFailed, "no such file or directory", "-format=env", "-write="+filepath.Join(dir, "none", "x"))
	run(cli.ExitFailed, "is not a regular file", "-format=env", "-write="+dir)
	run(cli.ExitUsage, "-write needs", "-write="+path)
	run(cli.ExitUsage, `-format: "xml" is none of`, "-format=xml")
	run(cli.ExitUsage, "cannot be used together", "-network=x")
	run(cli.ExitUsage, `-key: "a b" is not`, "-format=env", "-key=a b")
	run(cli.ExitUsage, "neither iptables nor nftables", "-docker-firewall=ufw")
	run(cli.ExitUsage, "is not the name of a network or device", "-create", "-interface=a;b")
	files, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(files) > 0 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}
