package command

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	// Unused memory is returned memoryFirst after the start, then after pauses that double up to memoryEvery: the work
	// of a start takes less than a second or, in a large network on a busy machine, several.
	memoryFirst = 3 * time.Second
	memoryEvery = time.Minute
	// memoryUnused is how much memory may be unused at least. More than that may be unused if half of the memory in use
	// is more.
	memoryUnused = 2 << 20
	// unmapPass is the pass that unmaps the program's pages, some 9 s after the start.
	unmapPass = 2
)

// returnMemory returns memory that a burst of work has left behind to the operating system until ctx ends. The start of
// an agent in a large network and a reading of all its leases take several times the memory of what stays, and the
// garbage collector keeps twice that of what stays: it is made for programs that allocate all the time. An agent at rest
// hardly does.
func returnMemory(ctx context.Context) {
	pause := memoryFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for pass := 1; ; pass++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if hasUnusedMemory() {
			debug.FreeOSMemory()
		}
		if pass == unmapPass {
			_ = unmapProgram() // without it, the process only looks larger
		}
		pause = min(2*pause, memoryEvery)
		timer.Reset(pause)
	}
}

// hasUnusedMemory reports whether returning memory is worth a garbage collection.
func hasUnusedMemory() bool {
	heap := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, // including those that are no longer in use
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/gc/heap/live:bytes"}, // after the last garbage collection
	}
	metrics.Read(heap)
	resident := heap[0].Value.Uint64() + heap[1].Value.Uint64() + heap[2].Value.Uint64()
	live := heap[3].Value.Uint64()
	return resident > live+max(live/2, memoryUnused)
}

// unmapProgram removes the pages of the program file from this process. The pages that are in use come back at once, from
// the page cache. Those that only a start needs, such as the code that reads the configuration, stay in the page cache
// for as long as the kernel has no better use for them, but no longer count as resident memory of the agent.
func unmapProgram() error {
	self, err := procfs.Self()
	if err != nil {
		return err
	}
	program, err := self.Executable()
	if err != nil {
		return err
	}
	maps, err := self.ProcMaps()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range maps {
		if m.Pathname != program || m.Perms.Write {
			continue
		}
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, m.StartAddr, m.EndAddr-m.StartAddr, unix.MADV_DONTNEED)
		if errno != 0 {
			errs = append(errs, fmt.Errorf("unmap %x-%x: %w", m.StartAddr, m.EndAddr, errno))
		}
	}
	return errors.Join(errs...)
}
