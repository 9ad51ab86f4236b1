package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/hashicorp/go-hclog"
)

// lockWait is how long, in seconds, a writer waits for the lock that all users
// of iptables-legacy share.
const lockWait = "5"

// iptables applies rules with the programs of that name, one a family.
type iptables struct {
	logger   hclog.Logger
	families []*family
}

var _ applier = (*iptables)(nil)

// family is one address family's program.
type family struct {
	name    string // IPv4, IPv6
	command string // iptables, ip6tables
	v6      bool

	// clean: this process saw that no chain of ours is there, and wants none.
	// Nobody else makes them, so there is nothing to look for.
	clean bool
}

// newIPTables touches nothing. suffix "" is the variant this host prefers,
// "-nft" and "-legacy" are the others.
func newIPTables(logger hclog.Logger, suffix string) *iptables {
	return &iptables{logger: logger, families: []*family{
		{name: "IPv4", command: "iptables" + suffix},
		{name: "IPv6", command: "ip6tables" + suffix, v6: true},
	}}
}

func (i *iptables) apply(ctx context.Context, want rules) (written []string, err error) {
	var errs []error
	for _, f := range i.families {
		tables, err := f.apply(ctx, i.logger, want.of(f.v6))
		for _, table := range tables {
			written = append(written, f.command+" table "+table)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s firewall: %w", f.name, err))
		}
	}
	return written, errors.Join(errs...)
}

// apply returns the names of the tables written. While no rule of the family is
// wanted, a program that is missing or cannot work here (a kernel without IPv6)
// is as good as one that lists nothing.
func (f *family) apply(ctx context.Context, logger hclog.Logger, want rules) ([]string, error) {
	needed := !want.empty()
	if !needed && f.clean {
		return nil, nil
	}
	path, err := exec.LookPath(f.command)
	if err != nil {
		if !needed {
			return nil, nil
		}
		return nil, fmt.Errorf("%w: %s; install the package iptables, or set ip_masq = false and forward = false in every network",
			ErrNotInstalled, f.command)
	}
	tables, err := list(ctx, path)
	if err != nil && !needed && ctx.Err() == nil {
		logger.Debug("cannot look for leftover firewall rules", "command", f.command, "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	randomFully, err := randomFully(path)
	if err != nil && needed {
		return nil, err
	}

	chains := render(want, randomFully)
	var written []string
	var errs []error
	for _, h := range hooks() {
		input := change(tables[h.table], h, chains[h.own])
		if input == "" {
			continue
		}
		if _, err := run(ctx, input, path+"-restore", "--noflush", "-w", lockWait); err != nil {
			errs = append(errs, fmt.Errorf("write table %s: %w", h.table, err))
			continue
		}
		written = append(written, h.table)
	}
	f.clean = !needed && len(errs) == 0
	return written, errors.Join(errs...)
}

// randomFully says whether this iptables knows --random-fully. It is asked each
// time: the program may be replaced while the agent runs.
func randomFully(path string) (bool, error) {
	ipt, err := goiptables.New(goiptables.Path(path))
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return ipt.HasRandomFully(), nil
}

// list reads all tables that exist. Asking for a table by name would make the
// legacy variant load its kernel module.
func list(ctx context.Context, path string) (map[string]table, error) {
	saved, err := run(ctx, "", path+"-save")
	if err != nil {
		return nil, err
	}
	return parseSave(saved)
}

// run starts a program with input and returns its output; an error carries what
// it wrote to standard error.
func run(ctx context.Context, input, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			return "", fmt.Errorf("%s: %w: %s", path, err, text)
		}
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return stdout.String(), nil
}
