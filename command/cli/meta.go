// Package cli is the framework of leno's commands: how they declare flags and arguments, reach the
// agent, print tables, texts and JSON, and say what is wrong with a command line.
// It does not know any command.
//
// From the bottom up: text on a screen (colour.go, output.go), command lines and what is wrong with
// them (nearest.go, errors.go), what commands use (flags.go, agent.go, session.go,
// watch.go, network.go, predict.go), and one command (command.go), which is parsed (parse.go)
// and run (run.go).
package cli

import (
	"io"
	"runtime/debug"
	"time"

	"github.com/lenonet/leno/backend"
)

// Exit codes of every command.
const (
	ExitDone   = 0
	ExitFailed = 1 // the reason is on standard error
	ExitUsage  = 2 // wrong flags, arguments or command
	// ExitConfig is for a configuration that an agent cannot start with: EX_CONFIG of sysexits.h.
	// 2 would not do, because a Go program that panics exits with it.
	ExitConfig = 78
)

// Meta is the environment of a command.
type Meta struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
	Terminal       bool // standard output is a terminal
	ErrorTerminal  bool // standard error is a terminal
	ErrorJournal   bool // standard error is read by systemd's journal
	// Size returns the size of standard output's terminal, zeros if it is unknown; nil means that
	// it is never known.
	Size func() (columns, rows int)

	Version string           // "0.1.0"
	Build   *debug.BuildInfo // nil when the program was built without it

	Backends map[string]backend.Type // backends that configuration files may name
}
