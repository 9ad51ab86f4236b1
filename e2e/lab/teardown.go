package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lenonet/leno/internal/testkit/owned"
)

func prefix(id string) string { return "leno-" + id + "-" }

func directory(id string) string { return filepath.Join(os.TempDir(), "leno-"+id) }

// Sweep removes the labs of processes that were killed, and other test directories with names like
// those of labs.
func Sweep(ctx context.Context) error {
	return owned.Sweep(directory("*"), func(path string) error {
		return Teardown(ctx, strings.TrimPrefix(filepath.Base(path), "leno-"))
	})
}

// Teardown removes a lab by its id alone, so it also works for one that another process left: it
// ends the processes inside the namespaces, then removes the namespaces and the directory. It is no
// error if there is nothing to remove.
func Teardown(ctx context.Context, id string) error {
	entries, err := os.ReadDir(namespaceDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix(id)) {
			names = append(names, e.Name())
		}
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, endProcesses(ctx, name))
	}
	for _, name := range names {
		_, err := run(ctx, "", "ip", "netns", "del", name)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.RemoveAll(directory(id)))...)
}

// endProcesses kills the processes in a namespace until none is left.
func endProcesses(ctx context.Context, namespace string) error {
	return WaitFor(ctx, "the processes in "+namespace+" to end", func(ctx context.Context) error {
		all, err := pids(ctx, namespace)
		if err != nil {
			return err
		}
		left := 0
		for _, pid := range all {
			if pid == os.Getpid() {
				continue
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
				left++
			}
		}
		if left > 0 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
}

// pids returns the sorted ids of the processes in a namespace.
func pids(ctx context.Context, namespace string) (out []int, err error) {
	output, err := run(ctx, "", "ip", "netns", "pids", namespace)
	if err != nil {
		return nil, err
	}
	for _, field := range strings.Fields(output) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("ip netns pids %s: %w", namespace, err)
		}
		out = append(out, pid)
	}
	slices.Sort(out)
	return out, nil
}
