package docker

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// subnetFile is that of a network with both families.
const subnetFile = "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_IPV6_NETWORK=fd00:5::/48\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\nLENO_IPMASQ=true\n"

// findDockerd sets the PATH on which leno finds the dockerd that LENO_TEST_DOCKERD names (make test sets it), or else the
// one that tools/get finds or builds. Its docker-proxy is only looked up.
func findDockerd(t *testing.T) {
	t.Helper()
	program := os.Getenv("LENO_TEST_DOCKERD")
	if program == "" {
		out, err := exec.Command("../../tools/get", "dockerd").Output()
		if err != nil {
			t.Fatal(err)
		}
		program = strings.TrimSpace(string(out))
	}
	bin := t.TempDir()
	for name, target := range map[string]string{"dockerd": program, "docker-proxy": "/bin/true"} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
}

// tryLeno runs leno docker-opts and returns the errors that it prints, and its exit code.
func tryLeno(t *testing.T, args ...string) (stderr string, code int) {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.Command(lenoPath, append([]string{"docker-opts"}, args...)...)
	cmd.Stderr, cmd.Env = &errs, []string{"PATH=" + os.Getenv("PATH")}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return errs.String(), cmd.ProcessState.ExitCode()
}

// TestDockerdValidates: a real dockerd accepts each daemon.json that leno writes, and each set of flags that leno writes for
// use beside one. A daemon.json that leno or dockerd refuses is not changed.
func TestDockerdValidates(t *testing.T) {
	findDockerd(t)
	const none = "-" // there is no daemon.json
	for name, tt := range map[string]struct {
		before string // daemon.json
		merged string // part of the error of -format=json, "" for none
		beside string // part of the error of -format=env, "" for none
	}{
		"none":             {before: none},
		"empty":            {},
		"unrelated":        {before: `{"hosts":["unix:///tmp/d.sock"],"live-restore":true,"userland-proxy":false,"debug":true}`},
		"other values":     {before: `{"bip":"172.26.0.1/16","mtu":1400}`, beside: "bip is 172.26.0.1/16, mtu is 1400"},
		"the same values":  {before: `{"bip":"10.5.34.1/24","mtu":1450}`},
		"bridge":           {before: `{"bridge":"br0"}`, merged: `bridge is "br0"`, beside: `bridge is "br0"`},
		"no bridge":        {before: `{"bridge":"none"}`, merged: `bridge is "none"`, beside: `bridge is "none"`},
		"fixed-cidr":       {before: `{"fixed-cidr":"10.5.34.128/25"}`},
		"other fixed-cidr": {before: `{"fixed-cidr":"10.6.0.0/25"}`, merged: "fixed-cidr is 10.6.0.0/25", beside: "fixed-cidr is 10.6.0.0/25"},
		"pools": {
			before: `{"default-address-pools":[{"base":"10.5.0.0/16","size":24}]}`,
			merged: "default-address-pools has 10.5.0.0/16", beside: "default-address-pools has 10.5.0.0/16",
		},
		"comment":         {before: "{\n\t\"debug\": true, // more\n}", merged: "line 2", beside: "line 2"},
		"byte order mark": {before: "\ufeff" + `{"debug":true}`, merged: "byte order mark"},
		"unknown":         {before: `{"graph":"/x"}`, merged: "dockerd --validate refuses it: unable to configure the Docker daemon with file the file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config, subnet, env := filepath.Join(dir, "daemon.json"), filepath.Join(dir, "dual.env"), filepath.Join(dir, "docker.env")
			write(t, subnet, subnetFile)
			if tt.before != none {
				write(t, config, tt.before)
			}
			args := []string{"-subnet-file=" + subnet, "-docker-version=29.1.0", "-docker-firewall=iptables"}

			// Flags beside the file as it is. dockerd also refuses what is not about leno's options.
			errs, code := tryLeno(t, append(args, "-format=env", "-write="+env, "-daemon-json="+config)...)
			if (code == 0) != (tt.beside == "") || !strings.Contains(errs, tt.beside) {
				t.Errorf("the environment file: exit %d: %s", code, errs)
			}
			if code == 0 && name != "unknown" {
				_, line, _ := strings.Cut(read(t, env), "\nDOCKER_OPTS=")
				flags := strings.Fields(strings.Trim(line, "\"\n"))
				beside := config
				if tt.before == none { // this machine may have one
					beside = filepath.Join(dir, "empty.json")
					write(t, beside, "{}")
				}
				flags = append(flags, "--config-file="+beside)
				if ok, said := accepts(t, flags...); !ok {
					t.Errorf("dockerd refuses %q: %s", flags, said)
				}
			}

			// The options in the file.
			errs, code = tryLeno(t, append(args, "-format=json", "-write="+config)...)
			if (code == 0) != (tt.merged == "") || !strings.Contains(errs, tt.merged) {
				t.Errorf("daemon.json: exit %d: %s", code, errs)
			}
			switch {
			case code != 0:
				if got := read(t, config); got != tt.before {
					t.Errorf("daemon.json was refused and became %q", got)
				}
			case !strings.Contains(read(t, config), `"bip": "10.5.34.1/24"`):
				t.Errorf("daemon.json lacks leno's options: %s", read(t, config))
			default:
				if ok, said := accepts(t, "--config-file="+config); !ok {
					t.Errorf("dockerd refuses %s: %s", read(t, config), said)
				}
			}
		})
	}
	// dockerd itself sees why leno leaves options out of the flags.
	config := filepath.Join(t.TempDir(), "daemon.json")
	write(t, config, `{"bip":"10.5.34.1/24"}`)
	if ok, said := accepts(t, "--config-file="+config, "--bip=10.5.34.1/24"); ok {
		t.Errorf("dockerd accepts an option in both places: %s", said)
	}
}

// accepts reports whether dockerd --validate accepts flags, and what it prints.
func accepts(t *testing.T, flags ...string) (bool, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "dockerd", append([]string{"--validate"}, flags...)...).CombinedOutput()
	return err == nil && strings.Contains(string(out), "configuration OK"), string(out)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
