package command

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// Unused memory is returned memoryFirst after the start, then after pauses that double up to memoryEvery: the work
	// of a start takes less than a second or, in a large network on a busy machine, several.
	memoryFirst = 3 * time.Second
	memoryEvery = time.Minute
	// memoryUnused is how much memory may be unused at least. More than that may be unused if half of the memory in use
	// is more.
	memoryUnused = 2 << 20
)

// returnMemory returns memory that a burst of work has left behind to the operating system until ctx ends. The start of
// an agent in a large network and a reading of all its leases take several times the memory of what stays, and the
// garbage collector keeps twice that of what stays: it is made for programs that allocate all the time. An agent at rest
// hardly does.
func returnMemory(ctx context.Context) {
	pause := memoryFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if hasUnusedMemory() {
			debug.FreeOSMemory()
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
