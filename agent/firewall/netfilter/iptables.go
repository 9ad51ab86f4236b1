// Package netfilter reads and writes the kernel's packet filter rules: the tables of iptables through its programs, and
// those of nf_tables over netlink. It knows how rules are listed, parsed and written, but not which rules anyone wants.
package netfilter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lockWait is how long, in seconds, a writer waits for the lock that all users of iptables-legacy share.
const lockWait = "5"

// ErrLocked reports that another program kept the lock of iptables for longer than a writer waits.
var ErrLocked = errors.New("another program holds the lock of iptables, /run/xtables.lock, " +
	"which is tried again; if it stays, see who has it with: fuser -v /run/xtables.lock")

// ErrUnlisted reports that a listing was given up; nothing was written after it.
var ErrUnlisted = errors.New("list rules")

// List reads all tables that exist, with the program at path, for example "/usr/sbin/iptables-nft". Asking for a table
// by name would make the legacy variant load its kernel module. With an *UnreadableError it returns the tables that the
// program can show.
func List(ctx context.Context, path string) (map[string]Table, error) {
	return defaultLimits().list(ctx, path)
}

// ListCounted returns what List returns, with counters.
func ListCounted(ctx context.Context, path string) (map[string]Table, error) {
	saved, err := defaultLimits().save(ctx, path, "-c")
	if err != nil {
		return nil, err
	}
	return parseCounted(saved)
}

func (l limits) list(ctx context.Context, path string) (map[string]Table, error) {
	saved, err := l.save(ctx, path)
	if err != nil {
		return nil, err
	}
	return ParseSave(saved)
}

// save returns what the program's iptables-save prints.
func (l limits) save(ctx context.Context, path string, args ...string) (string, error) {
	saved, err := l.run(ctx, "", path+"-save", args...)
	if errors.Is(err, errEndless) {
		return "", fmt.Errorf("%w: %w", ErrUnlisted, err)
	}
	return saved, explain(err)
}

// Restore writes tables: input is for iptables-restore --noflush, of the program at path. Each table is written in one
// transaction. The error is ErrLocked when another program keeps the lock.
func Restore(ctx context.Context, path, input string) error {
	_, err := Run(ctx, input, path+"-restore", "--noflush", "-w", lockWait)
	return explain(err)
}

// LegacyTables returns the tables of iptables-legacy that exist in this network namespace. The kernel creates a
// table, and loads its module, when a program first asks for that table. Reading this list does not create any.
func LegacyTables(v6 bool) []string {
	path := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	if err != nil {
		return nil // the kernel has no legacy tables
	}
	return strings.Fields(string(names))
}

// explain adds to an error of iptables-restore the sentinel that tells what to do.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "xtables lock"):
		return fmt.Errorf("%w (%w)", ErrLocked, err)
	case strings.Contains(err.Error(), "Permission denied"): // "(you must be root)", even to root without rights
		return fmt.Errorf("%w: %w", unix.EPERM, err)
	}
	return err
}

// Programs returns the paths of the programs for one family, by variant: command is "iptables" or "ip6tables". The
// kernel keeps the rules of one variant where the other does not see them.
func Programs(ctx context.Context, command string) map[string]string {
	out := map[string]string{}
	if path, _ := Locate(command); path != "" {
		if v, err := askVersion(ctx, path); err == nil {
			out[v.Variant] = path
		}
	}
	for _, variant := range []string{VariantLegacy, VariantNFT} {
		if path, _ := Locate(command + "-" + variant); path != "" {
			out[variant] = path
		}
	}
	return out
}

// IsUnsupported reports whether a program's error means that the kernel lacks the tables it works on, hence has no
// rules in them.
func IsUnsupported(err error) bool {
	return strings.Contains(strings.ToLower(err.Error()), "not supported")
}
