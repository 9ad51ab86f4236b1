// Engine is a fake docker, dockerd or systemctl for the tests of package docker, depending on the
// name it is called by. It is a separate program because examples/docker starts them hundreds of
// times, and a test binary with the race detector takes long to start.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/lenonet/leno/command/dockeropts"
	"github.com/lenonet/leno/e2e/docker"
)

func main() {
	programs := map[string]func([]string) error{"docker": runDocker, "dockerd": dockerd, "systemctl": systemctl}
	name := filepath.Base(os.Args[0])
	program, ok := programs[name]
	if !ok {
		program = func([]string) error {
			return errors.New("called by a name that is none of docker, dockerd and systemctl")
		}
	}
	if err := program(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// installed returns the version of Docker that the test has set.
func installed() (dockeropts.Version, error) {
	return dockeropts.ParseVersion(os.Getenv("ENGINE_VERSION"))
}

func dockerd(args []string) error {
	if !slices.Equal(args, []string{"--version"}) {
		return fmt.Errorf("started with %q", args)
	}
	fmt.Printf("Docker version %s, build e77ff99\n", os.Getenv("ENGINE_VERSION"))
	return nil
}

// systemctl knows a docker.service like the one in Docker's packages, with the drop-ins in
// SYSTEMD_DIR. `cat` prints the files as they are, `show` as they were at the last daemon-reload.
func systemctl(args []string) error {
	note(append([]string{"systemctl"}, args...))
	if os.Getenv("ENGINE_UNIT") == "" {
		return errors.New("no files found for docker.service")
	}
	if fails := os.Getenv("ENGINE_FAILS"); fails != "" && strings.HasPrefix("systemctl "+strings.Join(args, " "), fails) {
		return errors.New("failed to connect to bus")
	}
	files, err := unitFiles()
	if err != nil {
		return err
	}
	loaded := os.Getenv("ENGINE_STATE") + ".loaded"
	switch strings.Join(args, " ") {
	case "cat docker.service":
		fmt.Print(files)
	case "daemon-reload":
		return os.WriteFile(loaded, []byte(files), 0o644)
	case "show docker.service --property=ExecStart --property=ExecStartPre --property=EnvironmentFiles":
		if text, err := os.ReadFile(loaded); err == nil {
			files = string(text)
		}
		show(files)
	case "restart docker.service":
	default:
		return fmt.Errorf("unknown command: systemctl %q", args)
	}
	return nil
}

// unitFiles returns docker.service and its drop-ins, concatenated in the order of the drop-ins'
// names.
func unitFiles() (string, error) {
	var b strings.Builder
	b.WriteString(os.Getenv("ENGINE_UNIT"))
	files, err := filepath.Glob(filepath.Join(os.Getenv("SYSTEMD_DIR"), "docker.service.d", "*.conf")) // sorted
	for _, file := range files {
		text, errRead := os.ReadFile(file)
		err = errors.Join(err, errRead)
		fmt.Fprintf(&b, "\n# %s\n%s", file, text)
	}
	return b.String(), err
}

// show prints properties as systemd does: all lines of a setting count, and an empty one discards
// those before it.
func show(files string) {
	set := map[string][]string{}
	files = strings.ReplaceAll(files, "\\\n", " ")
	for line := range strings.Lines(files) {
		key, value, ok := strings.Cut(line, "=")
		if key, value = strings.TrimSpace(key), strings.TrimSpace(value); !ok || strings.HasPrefix(key, "#") {
			continue
		}
		if set[key] = append(set[key], value); value == "" {
			set[key] = nil
		}
	}
	for _, key := range []string{"ExecStart", "ExecStartPre"} {
		for _, command := range set[key] {
			fmt.Printf("%s={ path=%s ; argv[]=%s ; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }\n", key, strings.Fields(command)[0], command)
		}
	}
	for _, file := range set["EnvironmentFile"] {
		path, ignore := strings.CutPrefix(file, "-")
		fmt.Printf("EnvironmentFiles=%s (ignore_errors=%s)\n", path, map[bool]string{true: "yes", false: "no"}[ignore])
	}
}

// note records a command that changed something.
func note(args []string) {
	f, err := os.OpenFile(os.Getenv("ENGINE_STATE")+".log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, strings.Join(args, " "))
}

// runDocker stands for the docker program and the daemon behind it. Networks are kept in a file.
func runDocker(args []string) error {
	version, err := installed()
	if err != nil {
		return err
	}
	networks := map[string]docker.Network{}
	state := os.Getenv("ENGINE_STATE")
	if text, err := os.ReadFile(state); err == nil {
		if err := json.Unmarshal(text, &networks); err != nil {
			return err
		}
	}
	words := func(n int) string { return strings.Join(args[:min(n, len(args))], " ") }
	switch {
	case os.Getenv("ENGINE_DOWN") != "":
		return errors.New("cannot connect to the Docker daemon")
	case words(1) == "info", words(1) == "version":
		return nil
	case words(4) == "network ls --quiet --filter" && len(args) == 5:
		name := strings.TrimSuffix(strings.TrimPrefix(args[4], "name=^"), "$")
		if _, ok := networks[name]; ok {
			fmt.Println("0123456789ab")
		}
		return nil
	case words(3) == "network inspect --format" && len(args) == 5:
		n, ok := networks[args[4]]
		if !ok {
			return fmt.Errorf("network %s not found", args[4])
		}
		format, err := template.New("").Parse(args[3] + "\n")
		if err != nil {
			return err
		}
		maps.DeleteFunc(n.Containers, func(_ string, c *docker.Container) bool { return c.Stopped })
		return format.Execute(os.Stdout, n)
	case words(2) == "ps --all" && len(args) == 5 && args[2] == "--filter" && args[4] == "--format={{.Names}}" || words(3) == "container inspect --format" && len(args) == 5:
		return containers(networks, args)
	}
	note(append([]string{"docker"}, args...))
	switch {
	case os.Getenv("ENGINE_FAILS") != "" && strings.HasPrefix(strings.Join(args, " "), os.Getenv("ENGINE_FAILS")):
		return fmt.Errorf("error response from daemon: out of order")
	case words(2) == "network create":
		n, err := docker.CheckCreate(version, args[2:])
		if err != nil {
			return err
		}
		if _, ok := networks[n.Name]; ok {
			return fmt.Errorf("network with name %s already exists", n.Name)
		}
		n.Containers = map[string]*docker.Container{}
		networks[n.Name] = n
		fmt.Println("0123456789ab")
	case words(2) == "network rm" && len(args) == 3:
		n, ok := networks[args[2]]
		for _, c := range n.Containers {
			ok = ok && c.Stopped
		}
		if !ok {
			return fmt.Errorf("network %s is not there or has active endpoints: %v", args[2], n.Containers)
		}
		delete(networks, args[2]) // a stopped container cannot start any more
	case words(3) == "network disconnect --force" && len(args) == 5:
		if _, ok := networks[args[3]].Containers[args[4]]; !ok {
			return fmt.Errorf("container %s is not connected to the network %s", args[4], args[3])
		}
		delete(networks[args[3]].Containers, args[4])
	case words(2) == "network connect":
		if err := connect(networks, args[2:]); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown command: docker %q", args)
	}
	text, err := json.Marshal(networks)
	if err != nil {
		return err
	}
	return os.WriteFile(state, text, 0o644)
}

// containers answers queries about containers, including stopped ones.
func containers(networks map[string]docker.Network, args []string) error {
	type settings struct{ Networks map[string]*docker.Container }
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		for _, c := range slices.Sorted(maps.Keys(networks[name].Containers)) {
			switch {
			case args[0] == "ps" && args[3] == "network="+name:
				fmt.Println(c)
			case args[0] == "container" && args[4] == c:
				format, err := template.New("").Parse(args[3] + "\n")
				if err != nil {
					return err
				}
				return format.Execute(os.Stdout, struct{ NetworkSettings settings }{settings{map[string]*docker.Container{name: networks[name].Containers[c]}}})
			}
		}
	}
	if args[0] == "container" {
		return fmt.Errorf("no such container: %s", args[4])
	}
	return nil
}

// connect attaches a container to a network. Names of stopped containers begin with "stopped".
func connect(networks map[string]docker.Network, args []string) error {
	flags := flag.NewFlagSet("docker network connect", flag.ContinueOnError)
	c := docker.Container{IPAMConfig: &struct{ IPv4Address, IPv6Address string }{}}
	flags.StringVar(&c.IPAMConfig.IPv4Address, "ip", "", "")
	flags.StringVar(&c.IPAMConfig.IPv6Address, "ip6", "", "")
	flags.Func("alias", "", func(alias string) error {
		c.Aliases = append(c.Aliases, alias)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	c.Name = flags.Arg(1)
	c.Stopped = strings.HasPrefix(c.Name, "stopped")
	n, ok := networks[flags.Arg(0)]
	if _, twice := n.Containers[c.Name]; !ok || twice || flags.NArg() != 2 {
		return fmt.Errorf("network connect %q: no such network, or on it already", args)
	}
	for _, ip := range []string{c.IPAMConfig.IPv4Address, c.IPAMConfig.IPv6Address} {
		within := ip == ""
		for _, o := range n.Options {
			if subnet, ok := strings.CutPrefix(o, "--subnet="); ok && ip != "" {
				within = within || netip.MustParsePrefix(subnet).Contains(netip.MustParseAddr(ip))
			}
		}
		if !within {
			return fmt.Errorf("no configured subnet or ip-range contain the IP address %s", ip)
		}
	}
	if *c.IPAMConfig == (struct{ IPv4Address, IPv6Address string }{}) {
		c.IPAMConfig = nil
	}
	n.Containers[c.Name] = &c
	return nil
}
