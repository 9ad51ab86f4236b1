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
	// is more, but not more than memoryUnusedMost.
	memoryUnused     = 2 << 20
	memoryUnusedMost = 8 << 20
	// garbageMost is by how much the heap of an agent that is not starting any more grows until the next garbage
	// collection, unless it is smaller itself.
	garbageMost = 16 << 20
	// defaultGrowth is the runtime's value for $GOGC.
	defaultGrowth = 100
	// unmapPass is the pass that unmaps the program's pages, some 9 s after the start.
	unmapPass = 2
)

// returnMemory returns memory that a burst of work has left behind to the operating system until ctx ends. The start of
// an agent in a large network and a reading of all its leases take several times the memory of what stays, and the
// garbage collector keeps twice that of what stays: it is made for programs that allocate all the time. An agent at rest
// hardly does, so a large heap may grow less before it is collected.
func returnMemory(ctx context.Context) {
	pause := memoryFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	most := debug.SetGCPercent(defaultGrowth) // as $GOGC says
	growth := most
	debug.SetGCPercent(growth)
	for pass := 1; ; pass++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		h := readHeap()
		if now := h.growth(most); most > 0 && now != growth && pause == memoryEvery {
			growth = now
			debug.SetGCPercent(growth)
		}
		if h.isUnused() {
			debug.FreeOSMemory()
		}
		if pass == unmapPass {
			_ = unmapProgram() // without it, the process only looks larger
		}
		pause = min(2*pause, memoryEvery)
		timer.Reset(pause)
	}
}

// A heap is the state of the heap, in bytes.
type heap struct {
	resident uint64 // includes objects that are no longer in use
	live     uint64 // after the last garbage collection
}

func readHeap() heap {
	all := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(all)
	value := func(i int) uint64 { return all[i].Value.Uint64() }
	return heap{resident: value(0) + value(1) + value(2), live: value(3)}
}

// isUnused reports whether returning memory is worth a garbage collection.
func (h heap) isUnused() bool {
	return h.resident > h.live+min(max(h.live/2, memoryUnused), memoryUnusedMost)
}

// growth returns by what percentage of what is in use the heap may grow until the next garbage collection, at most most.
func (h heap) growth(most int) int {
	const least = 10 // otherwise a very large heap would be collected all the time
	return min(most, max(least, int(100*garbageMost/max(h.live, 1))))
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
