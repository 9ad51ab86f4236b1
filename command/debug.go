package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/posener/complete"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/bundle"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/plural"
)

// debugIndex is the content of a bundle's index.json.
type debugIndex struct {
	Leno     string         `json:"leno"`
	Go       string         `json:"go"`
	Host     string         `json:"host"`
	Node     string         `json:"node"`  // name of the agent's node, "" when it did not respond
	Agent    string         `json:"agent"` // the agent's address
	Created  time.Time      `json:"created"`
	Duration string         `json:"duration"`
	Interval string         `json:"interval"`
	Ended    string         `json:"ended,omitempty"`  // why it ended early
	Kernel   string         `json:"kernel,omitempty"` // why there are no kernel tables
	Files    []bundle.Entry `json:"files"`
}

// debugCommand is `leno debug`.
type debugCommand struct {
	meta               cli.Meta
	agent              *cli.AgentFlags
	duration, interval time.Duration
	output             string
	networks           cli.ListFlag
}

func debugSpec(m cli.Meta) cli.Spec {
	d := &debugCommand{meta: m, agent: cli.NewAgentFlags(m)}
	return cli.Spec{
		Name:     "debug",
		Synopsis: "Collect diagnostics into one archive",
		Help: `
Captures the state of an agent and its host in a .tar.gz archive: options
without secrets, leases, reservations, peers, events, health, metrics, the log
at level debug, profiles (with enable_debug) and, on the agent's own host, the
tables of the kernel. index.json lists what could not be captured. Ctrl-C ends
the period early and keeps what has been captured.

Review the archive before you share it: it contains names and addresses.

  $ leno debug
  $ leno debug -duration=1m -network=blue -output=blue.tar.gz
  $ leno debug -output=- > bundle.tar.gz`,
		Flags: d.register,
		Values: complete.Flags{
			"-duration": complete.PredictSet("10s", "30s", "1m"),
			"-interval": complete.PredictSet("1s", "2s", "5s"),
		},
		Run: func(ctx context.Context, _ []string) error { return d.run(ctx) },
	}
}

func (d *debugCommand) register(fs *flag.FlagSet) {
	d.agent.Register(fs)
	fs.DurationVar(&d.duration, "duration", 10*time.Second,
		"`time` for which health, metrics, log and profiles are captured")
	fs.DurationVar(&d.interval, "interval", 2*time.Second,
		"`time` between two samples of health and metrics, at least 100ms")
	fs.StringVar(&d.output, "output", "",
		"`file` to write, which must not exist yet; - for standard output. Default: leno-debug-NODE-TIME.tar.gz")
	fs.Var(&d.networks, "network", "`name` of a network to capture; may be repeated. Default: all networks")
}

// Limits of a bundle.
const (
	maxDebugDuration = time.Hour
	minDebugInterval = 100 * time.Millisecond
)

func (d *debugCommand) run(ctx context.Context) error {
	switch {
	case d.duration <= 0 || d.duration > maxDebugDuration:
		return cli.UsageErrorf("-duration is %s, must be more than 0s and at most %.0fh", d.duration,
			maxDebugDuration.Hours())
	case d.interval < minDebugInterval:
		return cli.UsageErrorf("-interval: %s is less than %s", d.interval, minDebugInterval)
	case d.output == "-" && d.meta.Terminal:
		return cli.UsageErrorf("-output=- writes an archive, which a terminal cannot show")
	}
	client, err := d.agent.Open()
	if err != nil {
		return err
	}
	defer client.Close()

	// The first Ctrl-C ends the period, the second one the command.
	period, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(period, stop)

	self, selfErr := d.self(period, client)
	name := fmt.Sprintf("leno-debug-%s-%s", bundle.FileName(self.NodeName), d.meta.Now().UTC().Format("20060102T150405Z"))
	if self.NodeName == "" {
		name = strings.Replace(name, "-_-", "-", 1)
	}
	file, path, err := d.create(name)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.meta.Stderr, "Capturing for %s; Ctrl-C ends it early and keeps what has been captured.\n", d.duration)
	index := debugIndex{Leno: d.meta.Version, Go: version(d.meta).Go, Node: self.NodeName, Agent: d.agent.Address(),
		Created: d.meta.Now().UTC(), Duration: d.duration.String(), Interval: d.interval.String()}
	index.Host, _ = os.Hostname() // "" if unknown
	networks := []string(d.networks)
	if len(networks) == 0 && selfErr == nil {
		networks = self.Networks
	}
	captures := bundle.Agent{Client: client, Duration: d.duration, Interval: d.interval, Networks: networks}.Captures()
	if index.Kernel = d.kernelMismatch(self); index.Kernel == "" {
		captures = append(captures, bundle.Kernel(d.links(period, client))...)
	}
	token, _ := d.agent.Token() // the agent does not get it, but something else may show it
	index.Files = bundle.Collect(period, captures, []string{token})
	if period.Err() != nil {
		index.Ended = "interrupted"
	}
	write := func(w io.Writer) error { return bundle.Write(w, name, index, index.Files) }
	if err := finish(file, path, write); err != nil {
		return err
	}
	d.report(path, index)
	return nil
}

// self asks the agent for its description. The bundle is written even if that fails.
func (d *debugCommand) self(ctx context.Context, c *api.Client) (api.Self, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.Self(ctx)
}

// create opens the file before anything is captured, and never overwrites an existing one. The
// path is "" for standard output.
func (d *debugCommand) create(name string) (io.WriteCloser, string, error) {
	if d.output == "-" {
		return nopCloser{d.meta.Stdout}, "", nil
	}
	path := cmp.Or(d.output, name+".tar.gz")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, "", fmt.Errorf("-output: %s already exists and is left unchanged", path)
	}
	if err != nil {
		return nil, "", fmt.Errorf("-output: %w", err)
	}
	return file, path, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// finish writes and closes a file, and removes an incomplete one.
func finish(file io.WriteCloser, path string, write func(io.Writer) error) error {
	err := errors.Join(write(file), file.Close())
	if err != nil && path != "" {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// links returns the devices of the networks and of their underlays.
func (d *debugCommand) links(ctx context.Context, c *api.Client) []string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := c.Networks(ctx)
	if err != nil {
		return nil
	}
	var links []string
	for _, n := range list.Networks {
		if n.Local != nil && (len(d.networks) == 0 || slices.Contains(d.networks, n.Name)) {
			links = append(links, n.Local.Link, n.Local.Underlay.Interface)
		}
	}
	return links
}

// kernelMismatch returns why this kernel's tables are not the agent's, "" when they are. The address
// alone can mislead, because it may be forwarded: it counts only if the agent does not report
// which kernel it is on.
func (d *debugCommand) kernelMismatch(self api.Self) string {
	same, known, reason := agent.SameKernel(self)
	switch {
	case known && !same:
		return reason + ": its kernel's tables are not read"
	case !known && !d.agent.IsLocal():
		return "the agent is on another host: its kernel's tables are not read"
	}
	return ""
}

// report prints the result.
func (d *debugCommand) report(path string, index debugIndex) {
	failed := 0
	for _, f := range index.Files {
		if f.Error != "" {
			failed++
			cli.WriteNote(d.meta.Stderr, "  ", f.File+": "+f.Error)
		}
	}
	text := fmt.Sprintf("Captured %s", plural.Count(len(index.Files)-failed, "file"))
	if failed > 0 {
		text += fmt.Sprintf("; %d missing or incomplete, see %s", failed, bundle.IndexFile)
	}
	cli.WriteNote(d.meta.Stderr, "", text+".")
	if path != "" {
		if whole, err := filepath.Abs(path); err == nil {
			path = whole
		}
		fmt.Fprintln(d.meta.Stdout, path)
	}
}
