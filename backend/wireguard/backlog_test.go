package wireguard

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBacklog(t *testing.T) {
	t.Parallel()
	buffers := make([][]byte, 2*mostPending)
	for i := range buffers {
		buffers[i] = make([]byte, 10)
	}
	full, more := buffers[:mostPending], buffers[mostPending:]
	for name, tt := range map[string]struct {
		before   func(b *backlog)
		returned [][]byte
		waits    time.Duration
	}{
		"empty":               {func(b *backlog) {}, nil, 0},
		"one less":            {func(b *backlog) { b.read(full[1:]) }, nil, 0},
		"full":                {func(b *backlog) { b.read(full) }, nil, 2 * pendingTime},
		"read again":          {func(b *backlog) { b.read(full[1:]); b.read(full[1:]) }, nil, 0},
		"written":             {func(b *backlog) { b.read(full); b.wrote(full[:1]) }, nil, 0},
		"parts of it written": {func(b *backlog) { b.read(full); b.wrote([][]byte{full[0][:4]}) }, nil, 0},
		"others written":      {func(b *backlog) { b.read(full); b.wrote(more) }, nil, 2 * pendingTime},
		"dropped":             {func(b *backlog) { b.read(full) }, full[3:4], 0},
		"older ones": {func(b *backlog) {
			b.read(full[1:])
			time.Sleep(pendingTime)
			b.wait(nil)
			b.read(full[:1])
		}, nil, pendingTime},
		"stuck ones": {func(b *backlog) {
			b.read(full)
			b.wait(nil)
			b.read(more[1:])
		}, nil, 0},
		"written while waiting": {func(b *backlog) {
			b.read(full)
			time.AfterFunc(pendingTime/4, func() { b.wrote(full[:1]) })
		}, nil, pendingTime / 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBacklog()
				b.wait(nil)
				tt.before(b)
				start := time.Now()
				b.wait(tt.returned)
				if waited := time.Since(start); waited != tt.waits {
					t.Errorf("waited for %v, want %v", waited, tt.waits)
				}
			})
		})
	}
}

// TestBacklogReaders checks that a write lets two readers go on.
func TestBacklogReaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog()
		b.wait(nil)
		full := make([][]byte, mostPending)
		for i := range full {
			full[i] = make([]byte, 10)
		}
		b.read(full)
		start, ended := time.Now(), make(chan time.Duration)
		for range 2 {
			go func() {
				b.wait(nil)
				ended <- time.Since(start)
			}()
		}
		synctest.Wait()
		b.wrote(full)
		for range 2 {
			if waited := <-ended; waited != 0 {
				t.Errorf("waited for %v", waited)
			}
		}
	})
}
