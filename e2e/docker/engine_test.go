// Package docker holds what leno tells Docker against what Docker documents, and
// examples/docker against an engine that takes nothing else. There is no real one where
// tests run.
package docker

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/lenonet/leno/command"
	"github.com/lenonet/leno/command/dockeropts"
)

// TestMain is the tests, or one of the programs that examples/docker runs when it is
// called by such a name.
func TestMain(m *testing.M) {
	programs := map[string]func([]string) error{"docker": docker, "dockerd": dockerd, "systemctl": systemctl}
	name := filepath.Base(os.Args[0])
	os.Exit(func() int {
		if name == "leno" {
			return command.Run(os.Args[1:], command.NewMeta("test", &debug.BuildInfo{}))
		}
		program, ok := programs[name]
		if !ok {
			return m.Run()
		}
		if err := program(os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			return 1
		}
		return 0
	}())
}

// installed is the version of Docker, which the test says.
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

// systemctl knows a docker.service as Docker's packages have it.
func systemctl(args []string) error {
	note(append([]string{"systemctl"}, args...))
	if !slices.Equal(args, []string{"cat", "docker.service"}) {
		return nil
	}
	fmt.Print(os.Getenv("ENGINE_UNIT"))
	if os.Getenv("ENGINE_UNIT") == "" {
		return errors.New("No files found for docker.service.")
	}
	return nil
}

// note adds a command to those that changed something.
func note(args []string) {
	f, err := os.OpenFile(os.Getenv("ENGINE_STATE")+".log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, strings.Join(args, " "))
}

// docker is its program and the daemon behind: networks stand in a file.
func docker(args []string) error {
	version, err := installed()
	if err != nil {
		return err
	}
	networks := map[string]dockerNetwork{}
	state := os.Getenv("ENGINE_STATE")
	if text, err := os.ReadFile(state); err == nil {
		if err := json.Unmarshal(text, &networks); err != nil {
			return err
		}
	}
	words := func(n int) string { return strings.Join(args[:min(n, len(args))], " ") }
	switch {
	case os.Getenv("ENGINE_DOWN") != "":
		return errors.New("Cannot connect to the Docker daemon")
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
		maps.DeleteFunc(n.Containers, func(_ string, c *dockerContainer) bool { return c.Stopped })
		return format.Execute(os.Stdout, n)
	case words(2) == "ps --all" && len(args) == 5 && args[2] == "--filter" && args[4] == "--format={{.Names}}" || words(3) == "container inspect --format" && len(args) == 5:
		return containers(networks, args)
	}
	note(append([]string{"docker"}, args...))
	switch {
	case os.Getenv("ENGINE_FAILS") != "" && strings.HasPrefix(strings.Join(args, " "), os.Getenv("ENGINE_FAILS")):
		return fmt.Errorf("Error response from daemon: out of order")
	case words(2) == "network create":
		n, err := checkCreate(version, args[2:])
		if err != nil {
			return err
		}
		if _, ok := networks[n.Name]; ok {
			return fmt.Errorf("network with name %s already exists", n.Name)
		}
		n.Containers = map[string]*dockerContainer{}
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
		delete(networks, args[2]) // a stopped container does not start any more
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

// containers answers questions about containers, stopped ones among them.
func containers(networks map[string]dockerNetwork, args []string) error {
	type settings struct{ Networks map[string]*dockerContainer }
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
				return format.Execute(os.Stdout, struct{ NetworkSettings settings }{settings{map[string]*dockerContainer{name: networks[name].Containers[c]}}})
			}
		}
	}
	if args[0] == "container" {
		return fmt.Errorf("no such container: %s", args[4])
	}
	return nil
}

// connect puts a container on a network. The names of those that are stopped begin so.
func connect(networks map[string]dockerNetwork, args []string) error {
	flags := flag.NewFlagSet("docker network connect", flag.ContinueOnError)
	c := dockerContainer{IPAMConfig: &struct{ IPv4Address, IPv6Address string }{}}
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
