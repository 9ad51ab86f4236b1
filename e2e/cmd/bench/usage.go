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

// usage is the CPU time used until a moment.
type usage struct {
	machine time.Duration            // by everything on it
	pids    [2]map[int]time.Duration // by the overlay's processes, host by host
}

// used is the CPU time between two moments.
type used struct {
	machine time.Duration
	hosts   [2]time.Duration
}

// usage of an overlay is that of all processes in its hosts' namespaces, since
// nothing else runs there.
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

// since leaves out what processes used that have ended meanwhile.
func (u usage) since(before usage) (out used) {
	out.machine = u.machine - before.machine
	for i := range u.pids {
		for pid, t := range u.pids[i] {
			out.hosts[i] += t - before.pids[i][pid]
		}
	}
	return out
}

// resident is the memory of all processes on a host, MiB.
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
		sum += size["VmRSS"] // one that is just ending has none
	}
	return sum, nil
}

// gone says that a process has ended before it could be looked at.
func gone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist)
}
