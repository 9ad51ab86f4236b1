package docker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/command"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/dockeropts"
)

// versions are the Docker versions under test: the oldest one still in use, and those around every
// change.
var versions = []string{"20.10.24", "23.0.6", "24.0.7", "25.0.5", "26.1.4", "27.5.1", "28.0.0", "28.0.1", "28.0.2", "28.1.1", "28.2.2", "28.3.2", "29.0.1", "29.1.0"}

// subnetFiles are those of a network with both families and of networks with one.
var subnetFiles = map[string]string{
	"dual": "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_IPV6_NETWORK=fd00:5::/48\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\nLENO_IPMASQ=true\n",
	"four": "LENO_NETWORK=10.6.0.0/16\nLENO_SUBNET=10.6.34.33/27\nLENO_MTU=8950\nLENO_IPMASQ=false\n",
	"six":  "LENO_IPV6_NETWORK=fd00:6::/48\nLENO_IPV6_SUBNET=fd00:6:0:22::1/64\nLENO_MTU=1430\nLENO_IPMASQ=true\n",
}

// leno runs docker-opts in this process.
func leno(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := tryLeno(args...)
	if code != 0 {
		t.Fatalf("%q: exit %d: %s", args, code, errs)
	}
	return out
}

// tryLeno runs docker-opts in this process and returns what it prints, and its exit code.
func tryLeno(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	m := command.NewMeta("test", &debug.BuildInfo{})
	m.Stdin, m.Stdout, m.Stderr = strings.NewReader(""), &out, &errs
	m.Getenv = func(string) string { return "" }
	code = cli.Run(append([]string{"docker-opts"}, args...), m, command.Commands)
	return out.String(), errs.String(), code
}

// words returns the arguments of the only command that docker-opts prints for people, and the
// NAME=value words before it.
func words(t *testing.T, printed, program string) (environment, args []string) {
	t.Helper()
	var all []string
	for line := range strings.Lines(printed) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), `\`))...)
		}
	}
	text := strings.Join(all, " ")
	before, after, ok := strings.Cut(" "+text+" ", " "+program+" ")
	if !ok {
		t.Fatalf("no %s in %q", program, text)
	}
	return strings.Fields(before), strings.Fields(after)
}

// TestOptions checks that every version of Docker gets only options that it documents, in every
// format, and all the options it needs.
func TestOptions(t *testing.T) {
	dir := t.TempDir()
	for name, content := range subnetFiles {
		path := filepath.Join(dir, name+".env")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, version := range versions {
			for _, firewall := range []string{"iptables", "nftables"} {
				if firewall == "nftables" && !strings.HasPrefix(version, "29.") {
					continue
				}
				t.Run(fmt.Sprintf("%s %s %s", name, version, firewall), func(t *testing.T) {
					v, err := dockeropts.ParseVersion(version)
					if err != nil {
						t.Fatal(err)
					}
					args := []string{"-subnet-file=" + path, "-docker-version=" + version, "-docker-firewall=" + firewall}
					docker0(t, v, name, args)
					ownNetwork(t, v, name, firewall, args)
				})
			}
		}
	}
}

// docker0 checks the options of the daemon.
func docker0(t *testing.T, v dockeropts.Version, network string, args []string) {
	t.Helper()
	environment, flags := words(t, leno(t, args...), "dockerd")
	options, err := checkDaemon(v, flags)
	if err != nil {
		t.Fatal(err)
	}
	insecure := !before(v, dockeropts.Version{Major: 28, Patch: 2}) && before(v, dockeropts.Version{Major: 28, Minor: 2})
	if got := strings.Join(environment, " "); (got == "DOCKER_INSECURE_NO_IPTABLES_RAW=1") != insecure || len(environment) > 1 {
		t.Errorf("environment %q", got)
	}
	want := map[string]bool{"mtu": true, "ip-masq": true, "bip": network != "six", "ipv6": network != "four",
		"allow-direct-routing": !before(v, dockeropts.Version{Major: 28, Minor: 2})}
	for name, there := range want {
		if _, ok := options[name]; ok != there {
			t.Errorf("%s is there: %t", name, ok)
		}
	}
	if want := map[string]string{"four": "true"}[network]; (options["ip-masq"] == "true") != (want == "true") {
		t.Errorf("ip-masq is %s", options["ip-masq"])
	}

	// daemon.json contains the same options, with the types that dockerd reads.
	var members map[string]any
	if err := json.Unmarshal([]byte(leno(t, append(args, "-format=json")...)), &members); err != nil {
		t.Fatal(err)
	}
	from := map[string]string{}
	for name, value := range members {
		switch value.(type) {
		case bool:
			if daemonOptions[name].kind != truth {
				t.Errorf("daemon.json: %s is %v", name, value)
			}
		case float64:
			if daemonOptions[name].kind != number {
				t.Errorf("daemon.json: %s is %v", name, value)
			}
		}
		from[name] = fmt.Sprint(value)
	}
	if diff := cmp.Diff(options, from); diff != "" {
		t.Errorf("-flags +daemon.json:\n%s", diff)
	}

	// The environment file means the same to a shell.
	_, line, _ := strings.Cut(leno(t, append(args, "-format=env")...), "\nDOCKER_OPTS=")
	if diff := cmp.Diff(flags, strings.Fields(strings.Trim(line, "\"\n"))); diff != "" {
		t.Errorf("-flags +environment file:\n%s", diff)
	}
}

// ownNetwork checks the arguments of `docker network create`.
func ownNetwork(t *testing.T, v dockeropts.Version, network, firewall string, args []string) {
	t.Helper()
	environment, create := words(t, leno(t, append(args, "-create")...), "docker network create")
	n, err := CheckCreate(v, create)
	if err != nil {
		t.Fatal(err)
	}
	if n.Name != "leno-"+network || len(environment) > 0 {
		t.Errorf("%q %q", environment, create)
	}
	text := strings.Join(n.Options, " ")
	open := map[bool]string{true: "trusted_host_interfaces=leno-" + network, false: "=nat-unprotected"}[!before(v, dockeropts.Version{Major: 28, Minor: 2}) && firewall == "iptables"]
	if strings.Contains(text, open) == before(v, dockeropts.Version{Major: 28}) {
		t.Errorf("what opens the way, %s: %s", open, text)
	}
}
