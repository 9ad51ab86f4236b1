package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// lenoPath and enginePath are the programs that the script runs: leno, and the fake docker, dockerd
// and systemctl.
var lenoPath, enginePath string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "leno-docker-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = findPrograms(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// findPrograms sets the paths to the programs that LENO_TEST_LENO and LENO_TEST_ENGINE name (make
// test sets them), or builds them into dir.
func findPrograms(dir string) (err error) {
	if lenoPath, err = lab.FindLeno(context.Background(), dir); err != nil {
		return err
	}
	if enginePath = os.Getenv("LENO_TEST_ENGINE"); enginePath != "" {
		return nil
	}
	enginePath = filepath.Join(dir, "engine")
	if out, err := exec.Command("go", "build", "-o", enginePath, "./engine").CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./engine: %w: %s", err, out)
	}
	return nil
}

// A machine is the environment of the script, with the test's programs on its PATH.
type machine struct {
	t           *testing.T
	dir         string
	environment []string
	said        string // output of the last run
}

// unit is Docker's own docker.service, shortened, as `systemctl cat` prints it.
const unit = `# /usr/lib/systemd/system/docker.service
[Unit]
After=network-online.target docker.socket

[Service]
Type=notify
# the default is not to use systemd for cgroups
ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock
ExecReload=/bin/kill -s HUP $MAINPID
`

func newMachine(t *testing.T, programs ...string) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir()}
	if err := os.Mkdir(m.path("bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs {
		program := enginePath
		if name == "leno" {
			program = lenoPath
		}
		if err := os.Symlink(program, m.path("bin/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	m.write("blue.env", subnetFile, 0o644)
	m.environment = []string{"PATH=" + m.path("bin") + ":/usr/bin:/bin", "ENGINE_VERSION=28.3.2", "ENGINE_STATE=" + m.path("state"), "ENGINE_UNIT=" + unit,
		"SYSTEMD_DIR=" + m.path("systemd"), "LENO_ADDRESS=http://127.0.0.1:1"}
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) write(name, content string, mode os.FileMode) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(m.path(name)), 0o755), os.WriteFile(m.path(name), []byte(content), mode)); err != nil {
		m.t.Fatal(err)
	}
}

// run runs the script, which must exit with the code and print the words, on standard output if it
// succeeds. It returns the commands that changed something.
func (m *machine) run(code int, says string, args ...string) []string {
	m.t.Helper()
	log := m.path("state.log")
	m.write("state.log", "", 0o644)
	cmd := exec.Command("sh", append([]string{"../../examples/docker/leno-docker.sh"}, args...)...)
	cmd.Env = m.environment
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	said := out.String()
	if code != 0 {
		said = errs.String()
	}
	m.said = said
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(said, says) {
		m.t.Errorf("%q: exit %d (%v), want %d and %q:\n%s%s", args, got, err, code, says, out.String(), errs.String())
	}
	text, err := os.ReadFile(log)
	if err != nil {
		m.t.Fatal(err)
	}
	var changes []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "systemctl cat") && !strings.HasPrefix(line, "systemctl show") {
			changes = append(changes, strings.TrimSpace(line))
		}
	}
	return changes
}

// ran checks that the commands begin with the wanted words.
func (m *machine) ran(got []string, want ...string) {
	m.t.Helper()
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && strings.HasPrefix(got[i], want[i])
	}
	if !ok {
		m.t.Errorf("ran %q, want %q", got, want)
	}
}

func (m *machine) networks() map[string]Network {
	m.t.Helper()
	out := map[string]Network{}
	text, err := os.ReadFile(m.path("state"))
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// TestScriptNetwork creates a Docker network, leaves it alone when nothing has changed, and
// recreates it when the host has another subnet, on an old Docker and on a new one.
func TestScriptNetwork(t *testing.T) {
	for _, version := range []string{"20.10.24", "28.3.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "leno", "docker", "dockerd")
			m.environment = append(m.environment, "ENGINE_VERSION="+version)
			file := m.path("blue.env")
			m.ran(m.run(0, "would run: docker network create", "-dry-run", "network", file))
			m.ran(m.run(0, "Created Docker network leno-blue.", "network", file), "docker network create --label=leno.options=--driver=bridge --subnet=10.5.34.0/24")
			m.ran(m.run(0, "Docker network leno-blue is up to date.", "network", file))

			m.write("blue.env", strings.ReplaceAll(subnetFile, "34.1/24", "77.1/24"), 0o644)
			m.ran(m.run(0, "would run: docker network rm leno-blue", "-dry-run", "network", file))
			m.ran(m.run(0, "Created Docker network leno-blue.", "network", file), "docker network rm leno-blue", "docker network create")

			// Containers are not disconnected without the user's consent.
			n := m.networks()
			n["leno-blue"].Containers["db"] = &Container{Name: "db"}
			n["leno-blue"].Containers["web"] = &Container{Name: "web"}
			m.save(n)
			m.ran(m.run(0, "up to date", "network", file))
			m.write("blue.env", subnetFile, 0o644)
			m.ran(m.run(1, "is in use by: db web", "network", file))
			m.ran(m.run(0, "Created Docker network leno-blue.", "-force", "network", file), "docker network disconnect --force leno-blue db", "docker network disconnect --force leno-blue web",
				"docker network rm leno-blue", "docker network create", "docker network connect leno-blue db", "docker network connect leno-blue web")
			if n := m.networks()["leno-blue"]; len(n.Containers) != 2 || !strings.Contains(strings.Join(n.Options, " "), "--subnet=10.5.34.0/24") {
				t.Errorf("%+v", n)
			}

			// A network that a person has created is not taken over.
			n = m.networks()
			delete(n["leno-blue"].Labels, "leno.options")
			m.save(n)
			m.ran(m.run(1, "was not created by this script", "network", file))
		})
	}
}

// TestScriptContainers checks that after any failure the containers are on the network as before,
// or the script names them with the commands that connect them.
func TestScriptContainers(t *testing.T) {
	t.Parallel()
	const db, stopped, web = "docker network connect leno-blue db", "docker network connect leno-blue stopped",
		"docker network connect --ip=10.5.34.9 --ip6=fd00:5:0:22::9 --alias=www --alias=api leno-blue web"
	for _, tt := range []struct {
		name, fails string
		code        int
		says        []string
		ran         []string // commands after the disconnects
		on          []string
	}{
		{"nothing fails", "", 0, []string{"Created Docker network leno-blue."}, []string{"docker network rm", "docker network create", db, stopped, web, "docker network connect --alias=www --alias=api leno-blue web"}, []string{"db", "stopped", "web"}},
		{"cannot take one off", "network disconnect --force leno-blue stopped", 1, []string{"out of order"}, []string{db}, []string{"db", "stopped", "web"}},
		{"cannot remove", "network rm", 1, []string{"out of order"}, []string{"docker network rm", db, stopped, web}, []string{"db", "stopped", "web"}},
		{"cannot make", "network create", 1, []string{"no longer connected to network leno-blue", "\t" + db + "\n", "\t" + stopped + "\n", "\t" + web + "\n"}, []string{"docker network rm", "docker network create", db, stopped, web, "docker network connect --alias=www"}, nil},
		{"cannot put one on", "network connect leno-blue db", 1, []string{"no longer connected to network leno-blue", "\t" + db + "\n"}, []string{"docker network rm", "docker network create", db, stopped, web, "docker network connect --alias=www"}, []string{"stopped", "web"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "leno", "docker", "dockerd")
			file := m.path("blue.env")
			m.run(0, "Created Docker network leno-blue.", "network", file)
			n := m.networks()
			on := n["leno-blue"].Containers
			on["stopped"] = &Container{Name: "stopped", Stopped: true}
			m.save(n)
			m.write("blue.env", strings.ReplaceAll(subnetFile, "34.1/24", "77.1/24"), 0o644)
			m.ran(m.run(1, "is in use by: stopped", "network", file))
			on["db"] = &Container{Name: "db"}
			on["web"] = &Container{Name: "web", IPAMConfig: &struct{ IPv4Address, IPv6Address string }{"10.5.34.9", "fd00:5:0:22::9"}, Aliases: []string{"www", "api"}}
			m.save(n)
			m.ran(m.run(0, "would run: "+web+"\n", "-dry-run", "-force", "network", file))
			m.environment = append(m.environment, "ENGINE_FAILS="+tt.fails)
			off := []string{"docker network disconnect --force leno-blue db", "docker network disconnect --force leno-blue stopped", "docker network disconnect --force leno-blue web"}
			if strings.HasPrefix(tt.fails, "network disconnect") {
				off = off[:2]
			}
			m.ran(m.run(tt.code, tt.says[0], "-force", "network", file), append(off, tt.ran...)...)
			for _, says := range tt.says[1:] {
				if !strings.Contains(m.said, says) {
					t.Errorf("%q is missing in %s", says, m.said)
				}
			}
			now := m.networks()["leno-blue"].Containers
			if got := slices.Sorted(maps.Keys(now)); !slices.Equal(got, tt.on) {
				t.Errorf("on the network are %q, want %q", got, tt.on)
			}
			if web := now["web"]; web != nil && !slices.Equal(web.Aliases, []string{"www", "api"}) {
				t.Errorf("%+v", web)
			}
		})
	}
}

func (m *machine) save(n map[string]Network) {
	m.t.Helper()
	text, err := json.Marshal(n)
	if err != nil {
		m.t.Fatal(err)
	}
	m.write("state", string(text), 0o644)
}

const dropIn = "systemd/docker.service.d/zz-leno.conf"

// TestScriptDocker0 writes the drop-in once, with the unit's own command line.
func TestScriptDocker0(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "leno", "docker", "dockerd", "systemctl")
	file := m.path("blue.env")
	m.ran(m.run(0, "would write "+m.path(dropIn), "-dry-run", "docker0", file))
	if _, err := os.Stat(m.path("systemd")); err == nil {
		t.Error("-dry-run writes")
	}
	m.ran(m.run(0, "Restart Docker to apply the change", "docker0", file), "systemctl daemon-reload")
	content := m.read(dropIn)
	for _, line := range []string{
		"ExecStartPre=" + m.path("bin/leno") + " docker-opts -subnet-file=" + file + " -format=env -key=LENO_DOCKER_OPTS -write=/run/leno-docker.env\n",
		"EnvironmentFile=-/run/leno-docker.env\n",
		"\nExecStart=\nExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $LENO_DOCKER_OPTS\n",
	} {
		if !strings.Contains(content, line) {
			t.Errorf("%q is missing in\n%s", line, content)
		}
	}
	verifyUnit(t, strings.ReplaceAll(strings.ReplaceAll(content, m.path("bin/leno"), "/bin/true"), "/usr/bin/dockerd", "/bin/true"))

	m.ran(m.run(0, "is up to date", "docker0", file))
	m.ran(m.run(0, "is up to date", "-dry-run", "docker0", file))
	m.ran(m.run(0, "is up to date", "-restart", "docker0", file), "systemctl restart docker.service")
	// systemd has not read the drop-in yet.
	m.write("state.loaded", unit, 0o644)
	m.ran(m.run(0, "is up to date", "-restart", "docker0", file), "systemctl daemon-reload", "systemctl restart docker.service")

	for _, command := range []string{"show", "daemon-reload"} {
		m.write("state.loaded", unit, 0o644)
		broken := *m
		broken.environment = append(slices.Clone(m.environment), "ENGINE_FAILS=systemctl "+command)
		broken.run(1, "failed to connect to bus", "-restart", "docker0", file)
	}

	m.environment = append(m.environment, "ENGINE_UNIT=")
	m.ran(m.run(1, "systemd has no docker.service: install Docker Engine first", "docker0", file))
	m.environment = append(m.environment, "ENGINE_UNIT=# Unit docker.service is masked.")
	m.ran(m.run(1, "docker.service has no readable ExecStart", "docker0", file))
}

// TestScriptOtherDropIns checks that, whichever other files set ExecStart, the script succeeds only
// if Docker gets leno's options, and that the administrator's own options stay.
func TestScriptOtherDropIns(t *testing.T) {
	t.Parallel()
	const override = "systemd/docker.service.d/override.conf"
	newest := func(t *testing.T) (m *machine, starts func(command string), fails func(says ...string)) {
		t.Parallel()
		m = newMachine(t, "leno", "docker", "dockerd", "systemctl")
		file := m.path("blue.env")
		starts = func(command string) {
			t.Helper()
			m.run(0, "Restart Docker to apply the change", "docker0", file)
			// This is what systemd uses, not what was written.
			cmd := exec.Command(m.path("bin/systemctl"), "show", "docker.service", "--property=ExecStart", "--property=ExecStartPre", "--property=EnvironmentFiles")
			cmd.Env = m.environment
			out, err := cmd.Output()
			if err != nil || strings.Count(string(out), "ExecStart={") != 1 || !strings.Contains(string(out), "; argv[]="+command+" ;") {
				t.Errorf("%v, want %s in\n%s", err, command, out)
			}
		}
		fails = func(says ...string) {
			t.Helper()
			for _, command := range m.run(1, says[0], "-restart", "docker0", file) {
				if strings.Contains(command, "restart") {
					t.Errorf("Docker was restarted without leno's options: %s", command)
				}
			}
			for _, words := range says {
				if !strings.Contains(m.said, words) {
					t.Errorf("%q is missing in %s", words, m.said)
				}
			}
		}
		return m, starts, fails
	}
	set := func(command string) string { return "[Service]\nExecStart=\nExecStart=" + command + "\n" }

	t.Run("override.conf", func(t *testing.T) {
		m, starts, _ := newest(t)
		m.write(override, set("/usr/bin/dockerd --debug"), 0o644)
		starts("/usr/bin/dockerd --debug $LENO_DOCKER_OPTS")
		// The administrator's file has changed since.
		m.write(override, set("/usr/bin/dockerd --experimental"), 0o644)
		starts("/usr/bin/dockerd --experimental $LENO_DOCKER_OPTS")
		if err := os.Remove(m.path(override)); err != nil {
			t.Fatal(err)
		}
		starts("/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $LENO_DOCKER_OPTS")
	})
	t.Run("a later one", func(t *testing.T) {
		const later = "systemd/docker.service.d/zzz-mine.conf"
		m, starts, fails := newest(t)
		m.write(later, set("/usr/bin/dockerd --debug"), 0o644)
		for range 2 {
			fails("starts Docker without leno's options", m.path(later)+" sets ExecStart", "$LENO_DOCKER_OPTS")
		}
		m.write(later, set("/usr/bin/dockerd --debug $LENO_DOCKER_OPTS"), 0o644)
		starts("/usr/bin/dockerd --debug $LENO_DOCKER_OPTS")
		m.write(later, set("/usr/bin/dockerd --debug --label=$LENO_DOCKER_OPTS_OLD"), 0o644)
		fails("starts Docker without leno's options")
		for _, line := range []string{"EnvironmentFile=", "ExecStartPre="} {
			m.write(later, "[Service]\n"+line+"\n", 0o644)
			fails("starts Docker without leno's options", "resets "+strings.TrimSuffix(line, "="), "systemctl cat docker.service")
		}
	})
	t.Run("options of an administrator", func(t *testing.T) {
		m, starts, _ := newest(t)
		m.write(override, "[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=\nExecStart=/usr/bin/dockerd $DOCKER_OPTS\n", 0o644)
		starts("/usr/bin/dockerd $DOCKER_OPTS $LENO_DOCKER_OPTS")
		for line := range strings.Lines(m.read(dropIn)) {
			command, ok := strings.CutPrefix(line, "ExecStartPre="+m.path("bin/leno")+" ")
			if !ok {
				continue
			}
			cmd := exec.Command(m.path("bin/leno"), strings.Fields(strings.Replace(command, "/run/leno-docker.env", m.path("env"), 1))...)
			cmd.Env = m.environment
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		if text := m.read("env"); strings.Contains(text, "\nDOCKER_OPTS=") || !strings.Contains(text, "\nLENO_DOCKER_OPTS=\"--bip=10.5.34.1/24 ") {
			t.Errorf("not leno's variable alone:\n%s", text)
		}
	})
	t.Run("of leno by an earlier name", func(t *testing.T) {
		const earlier = "systemd/docker.service.d/leno.conf"
		m, starts, _ := newest(t)
		m.write(earlier, "# docker0 in leno's network: written by leno-docker.sh\n"+
			"[Service]\nExecStartPre=/bin/true -write=/run/leno-docker.env\nEnvironmentFile=-/run/leno-docker.env\nExecStart=\nExecStart=/usr/bin/dockerd --old $DOCKER_OPTS\n", 0o644)
		m.run(0, "would run: rm "+m.path(earlier), "-dry-run", "docker0", m.path("blue.env"))
		starts("/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $LENO_DOCKER_OPTS")
		if _, err := os.Stat(m.path(earlier)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is there: %v", err)
		}
		m.write(earlier, set("/usr/bin/dockerd --mine"), 0o644) // not leno's drop-in
		starts("/usr/bin/dockerd --mine $LENO_DOCKER_OPTS")
	})
	t.Run("of another program by this name", func(t *testing.T) {
		m, _, fails := newest(t)
		m.write(dropIn, set("/usr/bin/dockerd --mine"), 0o644)
		fails("zz-leno.conf was not written by this script")
		if got := m.read(dropIn); got != set("/usr/bin/dockerd --mine") {
			t.Errorf("it was replaced: %s", got)
		}
	})
}

func (m *machine) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// TestScriptCommandLine checks that the unit's command line is kept as it is written, including the
// parts that systemd would interpret a second time if they were written back expanded.
func TestScriptCommandLine(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ unit, want string }{
		"quotes and signs":                {`ExecStart=/usr/bin/dockerd --label "a b=c;d" --log-opt 'tag={{.Name}}%%20x' -H fd://%i`, `/usr/bin/dockerd --label "a b=c;d" --log-opt 'tag={{.Name}}%%20x' -H fd://%i $LENO_DOCKER_OPTS`},
		"a drop-in in the way":            {"ExecStart=/usr/bin/dockerd -H fd://\n\n# /etc/systemd/system/docker.service.d/tcp.conf\n[Service]\nExecStart=\n ExecStart = /usr/bin/dockerd -H tcp://127.0.0.1:2375 ", "/usr/bin/dockerd -H tcp://127.0.0.1:2375 $LENO_DOCKER_OPTS"},
		"several lines":                   {"ExecStart=/usr/bin/dockerd \\\n    -H fd:// \\\n    --label=\"a\\x20b\"", `/usr/bin/dockerd  -H fd://  --label="a\x20b" $LENO_DOCKER_OPTS`},
		"where the options stand already": {`ExecStart=/usr/bin/dockerd $LENO_DOCKER_OPTS --debug`, `/usr/bin/dockerd $LENO_DOCKER_OPTS --debug`},
		"options of the administrator's":  {`ExecStart=/usr/bin/dockerd $DOCKER_OPTS --debug`, `/usr/bin/dockerd $DOCKER_OPTS --debug $LENO_DOCKER_OPTS`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "leno", "docker", "dockerd", "systemctl")
			m.environment = append(m.environment, "ENGINE_UNIT=[Service]\n"+tt.unit+"\n")
			m.run(0, "Wrote", "docker0", m.path("blue.env"))
			if content := m.read(dropIn); !strings.HasSuffix(content, "\nExecStart=\nExecStart="+tt.want+"\n") {
				t.Errorf("want %s in\n%s", tt.want, content)
			}
		})
	}
}

// TestScriptRefuses checks that the script names what is missing and changes nothing.
func TestScriptRefuses(t *testing.T) {
	t.Parallel()
	full := newMachine(t, "leno", "docker", "dockerd", "systemctl")
	file := full.path("blue.env")
	for _, args := range [][]string{{}, {"network"}, {"docker1"}, {"network", "a", "b"}, {"-x", "network", "a"}, {"docker0", "a", "b"}} {
		full.ran(full.run(2, "leno-docker.sh [-dry-run]", args...))
	}
	full.ran(full.run(1, "cannot get the Docker options for network", "network", full.path("none.env")))
	full.ran(full.run(1, "is not a valid network name", "docker0", "a;b"))
	newMachine(t, "docker", "systemctl").run(1, "leno is not on PATH", "network", file)
	newMachine(t, "leno", "systemctl").run(1, "docker is not installed", "network", file)
	down := newMachine(t, "leno", "docker", "dockerd")
	down.environment = append(down.environment, "ENGINE_DOWN=1")
	down.run(1, "Docker does not respond", "network", file)
}

// verifyUnit makes systemd read a docker.service with the drop-in.
func verifyUnit(t *testing.T, dropIn string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"docker.service":             "[Unit]\nDescription=Docker\n[Service]\nType=notify\nExecStart=/bin/true -H fd://\n",
		"leno.service":               "[Unit]\nDescription=leno\n[Service]\nExecStart=/bin/true\n",
		"docker.service.d/leno.conf": dropIn,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("systemd-analyze", "verify", "--man=no", filepath.Join(dir, "docker.service"))
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "leno.conf") || strings.Contains(string(out), "docker.service") {
		t.Errorf("systemd-analyze verify: %v\n%s\n%s", err, out, dropIn)
	}
}

// TestDropIn checks that systemd accepts the drop-in and finds programs by name in /usr/bin and in
// /usr/local/bin.
func TestDropIn(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../examples/docker/leno.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("ExecStartPre=leno ", "ExecStartPre=true ", "ExecStart=dockerd ", "ExecStart=true ").Replace(string(content))
	if strings.Contains(text, "Pre=leno") || strings.Count(text, "=true ") != 2 {
		t.Fatalf("not as this test knows it:\n%s", text)
	}
	verifyUnit(t, text)
}
