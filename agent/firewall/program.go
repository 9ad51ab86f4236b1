package firewall

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

// bounds limit how long a program may run and how much it may print.
type bounds struct {
	time   time.Duration
	output int // bytes
}

// ordinary returns the usual bounds: a writer waits for the lock for half the time, and 200,000 rules print less.
func ordinary() bounds { return bounds{10 * time.Second, 32 << 20} }

// errEndless reports that a program was killed because it ran too long.
var errEndless = errors.New("did not end")

// program is one program's file, as of the last check.
type program struct {
	path    string // "" when there is none
	stamp   string // changes when the file is replaced
	version version
	err     error // why version is not known
}

// version is what iptables reports about itself.
type version struct {
	number      [3]int
	variant     string // variantNFT or variantLegacy
	randomFully bool   // it supports --random-fully
}

// The variants of iptables: the kernel can have both at once, and each sees only its own rules.
const (
	variantNFT    = "nft"
	variantLegacy = "legacy"
)

func (v version) String() string {
	return fmt.Sprintf("v%d.%d.%d", v.number[0], v.number[1], v.number[2])
}

// locate finds a program's file and returns a stamp that changes when the file is replaced.
func locate(name string) (path, stamp string) {
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

// refresh asks the program for its version again if its file was replaced, or if the last attempt failed.
func (p *program) refresh(ctx context.Context, name string) {
	path, stamp := locate(name)
	if p.stamp == stamp && (p.err == nil || path == "") {
		return
	}
	*p = program{path: path, stamp: stamp}
	if path != "" {
		p.version, p.err = askVersion(ctx, path)
	}
}

// versionLine matches "iptables v1.8.9 (nf_tables)". Before 1.8 there was one variant, which was not named.
var versionLine = regexp.MustCompile(`^\S+ v\d{1,4}\.\d{1,4}\.\d{1,4}\S*(?: \((\w+)\))?`)

// askVersion asks the program twice: go-iptables, which knows the features of each version, sets no time limit, so it
// gets a program that has just answered within ours.
func askVersion(ctx context.Context, path string) (version, error) {
	text, err := run(ctx, "", path, "--version")
	if err != nil {
		return version{}, err
	}
	variant, err := parseVariant(path, text)
	if err != nil {
		return version{}, err
	}
	known, err := goiptables.New(goiptables.Path(path))
	if err != nil {
		return version{}, fmt.Errorf("%s --version: %w", path, err)
	}
	v := version{variant: variant, randomFully: known.HasRandomFully()}
	v.number[0], v.number[1], v.number[2] = known.GetIptablesVersion()
	return v, nil
}

func parseVariant(path, text string) (string, error) {
	m := versionLine.FindStringSubmatch(text)
	switch {
	case m == nil:
		return "", fmt.Errorf("%s --version: not an answer of iptables: %.60q", path, text)
	case m[1] == "nf_tables":
		return variantNFT, nil
	}
	return variantLegacy, nil
}

// run starts a program with input and returns its output; an error contains what the program wrote to standard error.
// A program that does not end is killed.
func run(ctx context.Context, input, path string, args ...string) (string, error) {
	return ordinary().run(ctx, input, path, args...)
}

func (b bounds) run(ctx context.Context, input, path string, args ...string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, b.time)
	defer cancel()
	cmd := exec.CommandContext(limited, path, args...)
	cmd.WaitDelay = time.Second // for a child process that keeps the pipe open
	stdout, stderr := output{limit: b.output, over: cancel}, output{limit: b.output, over: cancel}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.text.String(), nil
	case stdout.full() || stderr.full():
		return "", fmt.Errorf("%s printed without end and was killed", path)
	case ctx.Err() == nil && limited.Err() != nil:
		return "", fmt.Errorf("%s %w within %s and was killed", path, errEndless, b.time)
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
