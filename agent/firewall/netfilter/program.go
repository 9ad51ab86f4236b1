package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
)

// limits bound how long a program may run and how much it may print.
type limits struct {
	time   time.Duration
	output int // bytes
}

// defaultLimits returns the usual limits: a writer waits for the lock for half the time, and 200,000 rules print less.
func defaultLimits() limits { return limits{10 * time.Second, 32 << 20} }

// errEndless reports that a program was killed because it ran too long.
var errEndless = errors.New("did not end")

// Program is one program's file, as of the last check.
type Program struct {
	Path    string // "" when there is none
	Stamp   string // changes when the file is replaced
	Version Version
	Err     error // why Version is not known
}

// Version is what iptables reports about itself.
type Version struct {
	number      [3]int
	Variant     string // VariantNFT or VariantLegacy
	RandomFully bool   // it supports --random-fully
}

// The variants of iptables: the kernel can have both at once, and each sees only its own rules.
const (
	VariantNFT    = "nft"
	VariantLegacy = "legacy"
)

func (v Version) String() string {
	return fmt.Sprintf("v%d.%d.%d", v.number[0], v.number[1], v.number[2])
}

// Locate finds a program's file and returns a stamp that changes when the file is replaced.
func Locate(name string) (path, stamp string) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", ""
	}
	info, err := os.Stat(path) // through links, as update-alternatives makes them
	if err != nil {
		return "", ""
	}
	return path, fmt.Sprint(path, fileNumber(info), info.Size(), info.ModTime().UnixNano())
}

// Refresh asks the program for its version again if its file was replaced, or if the last attempt failed.
func (p *Program) Refresh(ctx context.Context, name string) {
	path, stamp := Locate(name)
	if p.Stamp == stamp && (p.Err == nil || path == "") {
		return
	}
	*p = Program{Path: path, Stamp: stamp}
	if path != "" {
		p.Version, p.Err = askVersion(ctx, path)
	}
}

// versionLine matches "iptables v1.8.9 (nf_tables)". Before 1.8 there was one variant, which was not named.
var versionLine = regexp.MustCompile(`^\S+ v\d{1,4}\.\d{1,4}\.\d{1,4}\S*(?: \((\w+)\))?`)

// askVersion asks the program twice: go-iptables, which knows the features of each version, sets no time limit, so it
// gets a program that has just answered within ours.
func askVersion(ctx context.Context, path string) (Version, error) {
	text, err := Run(ctx, "", path, "--version")
	if err != nil {
		return Version{}, err
	}
	variant, err := parseVariant(path, text)
	if err != nil {
		return Version{}, err
	}
	known, err := goiptables.New(goiptables.Path(path))
	if err != nil {
		return Version{}, fmt.Errorf("%s --version: %w", path, err)
	}
	v := Version{Variant: variant, RandomFully: known.HasRandomFully()}
	v.number[0], v.number[1], v.number[2] = known.GetIptablesVersion()
	return v, nil
}

func parseVariant(path, text string) (string, error) {
	m := versionLine.FindStringSubmatch(text)
	switch {
	case m == nil:
		return "", fmt.Errorf("%s --version: not an answer of iptables: %.60q", path, text)
	case m[1] == "nf_tables":
		return VariantNFT, nil
	}
	return VariantLegacy, nil
}

// Run starts a program with input and returns its output; an error contains what the program wrote to standard error.
// A program that does not end is killed.
func Run(ctx context.Context, input, path string, args ...string) (string, error) {
	return defaultLimits().run(ctx, input, path, args...)
}

func (l limits) run(ctx context.Context, input, path string, args ...string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, l.time)
	defer cancel()
	cmd := exec.CommandContext(limited, path, args...)
	cmd.WaitDelay = time.Second // for a child process that keeps the pipe open
	stdout, stderr := output{limit: l.output, over: cancel}, output{limit: l.output, over: cancel}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.text.String(), nil
	case stdout.full() || stderr.full():
		return "", fmt.Errorf("%s printed without end and was killed", path)
	case ctx.Err() == nil && limited.Err() != nil:
		return "", fmt.Errorf("%s %w within %s and was killed", path, errEndless, l.time)
	}
	if text := strings.TrimSpace(stderr.text.String()); text != "" {
		return "", fmt.Errorf("%s: %w: %s", path, err, text)
	}
	return "", fmt.Errorf("%s: %w", path, err)
}

// output collects a program's output up to a limit. When the limit is exceeded, it calls over.
type output struct {
	text  bytes.Buffer // not embedded: its ReadFrom knows no limit
	limit int
	over  func()
}

func (o *output) full() bool { return o.text.Len() >= o.limit }

func (o *output) Write(p []byte) (int, error) {
	if room := o.limit - o.text.Len(); len(p) >= room {
		o.over()
		_, _ = o.text.Write(p[:room]) // never fails
		return room, io.ErrShortWrite
	}
	return o.text.Write(p)
}
