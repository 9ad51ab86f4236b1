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

// bounds are how long a program may run and how much it may print.
type bounds struct {
	time   time.Duration
	output int // bytes
}

// ordinary bounds: a writer waits for the lock for half the time, and 200,000
// rules print less.
func ordinary() bounds { return bounds{10 * time.Second, 32 << 20} }

// errEndless is of a program that was killed for its time.
var errEndless = errors.New("did not end")

// program is one program's file, as last looked at.
type program struct {
	path    string // "" when there is none
	stamp   string // another one when the file is another one
	version version
	err     error // why version is not known
}

// version is what iptables says of itself.
type version struct {
	number      [3]int
	variant     string // variantNFT or variantLegacy
	randomFully bool   // it knows --random-fully
}

// The variants of iptables: the kernel has room for both at once, and each sees
// its own rules only.
const (
	variantNFT    = "nft"
	variantLegacy = "legacy"
)

func (v version) String() string {
	return fmt.Sprintf("v%d.%d.%d", v.number[0], v.number[1], v.number[2])
}

// locate finds a program's file and says what would change with another one.
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

// refresh looks at the program again if its file is another one than last time,
// or could not be asked then.
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

// versionLine is "iptables v1.8.9 (nf_tables)"; before 1.8 there was one variant
// and it was not named.
var versionLine = regexp.MustCompile(`^\S+ v\d{1,4}\.\d{1,4}\.\d{1,4}\S*(?: \((\w+)\))?`)

// askVersion asks the program twice: go-iptables, which knows what each version
// can do, sets no limit of time and is given one that has just answered within
// ours.
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

// run starts a program with input and returns its output; an error carries what
// it wrote to standard error. One that does not end is killed.
func run(ctx context.Context, input, path string, args ...string) (string, error) {
	return ordinary().run(ctx, input, path, args...)
}

func (b bounds) run(ctx context.Context, input, path string, args ...string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, b.time)
	defer cancel()
	cmd := exec.CommandContext(limited, path, args...)
	cmd.WaitDelay = time.Second // for a child of its that keeps the pipe open
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

// output is a program's output up to a limit, at which over is called.
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
