// Package command contains leno's commands, one file each: its flags, its help text, the calls to
// the agent through package api, and the output. Package cli runs them. Only `agent`, `cleanup`,
// `doctor`, `flannel`, `store copy` and the checks of configuration files use packages of the agent.
//
// The larger commands have a package each. What several commands share is in files below them: the
// configuration's flags and checks (config.go), the comparison of a file with Consul (plan.go), and
// texts for objects of the API (package describe).
package command

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/cni"
	"github.com/lenonet/leno/command/docker"
	"github.com/lenonet/leno/command/packettrace"
	"github.com/lenonet/leno/command/status"
)

// NewMeta returns the environment of this process. build may be nil.
func NewMeta(version string, build *debug.BuildInfo) cli.Meta {
	journald, _ := journal.StderrIsJournalStream() // an error means that it does not
	return cli.Meta{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, Now: time.Now, Terminal: isatty.IsTerminal(os.Stdout.Fd()),
		ErrorTerminal: isatty.IsTerminal(os.Stderr.Fd()), ErrorJournal: journald, Size: outputSize,
		Version: version, Build: build, Backends: agent.Backends(),
	}
}

func outputSize() (columns, rows int) {
	size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}

// Main runs the program that argv selects (argv[0] is its own name). A file named leno-cni is the
// plugin. A file with any other name is also the plugin if it is called as plugins are, with a
// command in the environment and without arguments: "type": "leno" in a network configuration
// makes the runtime look for a file named leno.
func Main(argv []string, m cli.Meta) int {
	switch called := len(argv) > 0 && filepath.Base(argv[0]) == cni.Name; {
	case len(argv) <= 1 && m.Getenv("CNI_COMMAND") != "":
		return cli.Run([]string{"cni"}, m, Commands)
	case called && len(argv) == 1:
		// The reference plugins print the same when called by hand. Nomad parses the version from
		// it.
		fmt.Fprintf(m.Stderr, "CNI %s plugin v%s\nCNI protocol versions supported: %s\n", cni.Name, m.Version,
			strings.Join(cni.Versions(), ", "))
		return cli.ExitDone
	case called:
		return cli.Run(append([]string{"cni"}, argv[1:]...), m, Commands)
	case len(argv) == 0:
		return cli.Run(nil, m, Commands)
	}
	return cli.Run(argv[1:], m, Commands)
}

// SearchPath returns PATH with the directories of the system's programs at its end, where they are missing.
func SearchPath(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// Commands returns every command by name, for example "lease show".
func Commands(m cli.Meta) cli.Commands {
	groups := map[string]string{
		"flannel":     "Hand devices and routes from flannel to leno and back",
		"lease":       "List, show, renew, revoke and release leases",
		"network":     "List, show, plan, apply, switch and delete networks",
		"reservation": "Reserve subnets for hosts",
		"store":       "Copy networks and leases to another store",
	}
	return cli.NewCommands(m, groups,
		agentSpec,
		cni.Spec,
		docker.Spec,
		doctorSpec,
		cleanupSpec,
		completionSpec,
		debugSpec,
		eventsSpec,
		flannelAdoptSpec,
		flannelReturnSpec,
		fmtSpec,
		hostsSpec,
		leaseListSpec,
		leaseReleaseSpec,
		leaseRenewSpec,
		leaseRevokeSpec,
		leaseShowSpec,
		monitorSpec,
		networkApplySpec,
		networkDeleteSpec,
		networkListSpec,
		networkPlanSpec,
		networkShowSpec,
		networkSwitchSpec,
		peersSpec,
		reloadSpec,
		reservationAddSpec,
		reservationListSpec,
		reservationRemoveSpec,
		status.Spec,
		storeCopySpec,
		packettrace.Spec,
		validateSpec,
		versionSpec,
	)
}
