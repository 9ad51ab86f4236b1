// Package command is leno's command line: one file per command, which parses flags, calls the
// agent through package api and prints the response. It owns flags, output and exit codes. It does
// not know how the agent works; only `agent`, `cleanup` and the checks of configuration files use
// other packages.
package command

import (
	"os"
	"runtime/debug"
	"time"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent"
)

// NewMeta returns the environment of this process. build may be nil.
func NewMeta(version string, build *debug.BuildInfo) Meta {
	return Meta{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, Now: time.Now, Terminal: isatty.IsTerminal(os.Stdout.Fd()),
		ErrorTerminal: isatty.IsTerminal(os.Stderr.Fd()), Size: outputSize,
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

// Run runs the command that args (without the program's name) name and returns the exit code.
func Run(args []string, m Meta) int { return runProgram(args, m, Commands) }

// Commands returns every command by name, for example "lease show".
func Commands(m Meta) commandMap {
	groups := map[string]string{
		"lease":       "List, show, renew, revoke and release leases",
		"network":     "List, show, plan, apply, import and delete networks",
		"reservation": "Keep subnets for hosts",
	}
	return newCommands(m, groups,
		agentSpec,
		cniSpec,
		dockerOptsSpec,
		doctorSpec,
		cleanupSpec,
		debugSpec,
		eventsSpec,
		fmtSpec,
		leaseListSpec,
		leaseReleaseSpec,
		leaseRenewSpec,
		leaseRevokeSpec,
		leaseShowSpec,
		monitorSpec,
		networkApplySpec,
		networkDeleteSpec,
		networkImportSpec,
		networkListSpec,
		networkPlanSpec,
		networkShowSpec,
		peersSpec,
		reloadSpec,
		reservationAddSpec,
		reservationListSpec,
		reservationRemoveSpec,
		statusSpec,
		validateSpec,
		versionSpec,
	)
}
