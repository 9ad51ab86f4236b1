// Package command is leno's command line: one file per command, which parses flags, calls the
// agent through package api and prints the response. It owns flags, output and exit codes. It does
// not know how the agent works; only `agent`, `cleanup` and the checks of configuration files use
// other packages.
package command

import (
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/backend"
)

// Exit codes of every command.
const (
	exitDone   = 0
	exitFailed = 1 // the reason is on standard error
	exitUsage  = 2 // wrong flags, arguments or command
	// exitConfig is for a configuration that an agent cannot start with: EX_CONFIG of sysexits.h.
	// 2 would not do, because a Go program that panics exits with it.
	exitConfig = 78
)

// Meta is the environment of a command.
type Meta struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
	Terminal       bool // standard output is a terminal
	ErrorTerminal  bool // standard error is a terminal
	// Size returns the size of standard output's terminal, zeros if it is unknown; nil means that
	// it is never known.
	Size func() (columns, rows int)

	Version string           // "0.1.0"
	Build   *debug.BuildInfo // nil when the program was built without it

	Backends map[string]backend.Type // backends that configuration files may name
}

func outputSize() (columns, rows int) {
	size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}

// NewMeta returns the environment of this process. build may be nil.
func NewMeta(version string, build *debug.BuildInfo) Meta {
	return Meta{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, Now: time.Now, Terminal: isatty.IsTerminal(os.Stdout.Fd()),
		ErrorTerminal: isatty.IsTerminal(os.Stderr.Fd()), Size: outputSize,
		Version: version, Build: build, Backends: agent.Backends(),
	}
}
