package main

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
)

// usage is the CPU time used up to a moment.
type usage struct {
	machine time.Duration            // of everything on the machine
	pids    [2]map[int]time.Duration // of the overlay's processes on each host, by process id
}

// used is the CPU time used between two moments.
type used struct {
	machine time.Duration
	hosts   [2]time.Duration
}

// usage measures the CPU time of all processes in the namespaces of an overlay's hosts, where
// nothing else runs.
func (c *contender) usage(ctx context.Context) (u usage, err error) {
	for i, h := range c.hosts {
		pids, err := h.Pids(ctx)
		if err != nil {
			return u, err
		}
		u.pids[i] = map[int]time.Duration{}
		for _, pid := range pids {
			t, err := probe.CPUTime(pid)
			if gone(err) {
				continue
			}
			if err != nil {
				return u, err
			}
			u.pids[i][pid] = t
		}
	}
	u.machine, err = probe.Busy()
	return u, err
}

// since returns the CPU time used since before. It does not include processes that ended in that
// time.
func (u usage) since(before usage) (out used) {
	out.machine = u.machine - before.machine
	for i := range u.pids {
		for pid, t := range u.pids[i] {
			out.hosts[i] += t - before.pids[i][pid]
		}
	}
	return out
}

// resident returns the memory of all processes on a host in MiB.
func resident(ctx context.Context, h *lab.Host) (sum float64, err error) {
	pids, err := h.Pids(ctx)
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		size, err := probe.Memory(pid)
		if gone(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += size["VmRSS"] // a process that is just ending has none
	}
	return sum, nil
}

// gone reports whether the error means that a process ended before it could be examined.
func gone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist)
}
