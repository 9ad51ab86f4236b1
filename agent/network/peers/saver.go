package peers

import (
	"reflect"
	"time"

	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
)

// savePause returns how long the file with so many leases is left alone after a write: a minute in a network of
// 10,000 hosts, whose file has 5 MB, and a second in one of up to 160. A process that stops writes the latest leases
// first. If a process is killed before that, the next one learns the missing leases from the store only.
func savePause(leases int) time.Duration {
	return min(max(time.Duration(leases)*6*time.Millisecond, time.Second), time.Minute)
}

// A saver writes Views to the peers file, with pauses between two writes. It must be used by one goroutine.
type saver struct {
	cache  *peerCache
	report *report.Reporter

	view    *View            // to be in the file, nil for none
	unsaved bool             // the file may lack it
	next    time.Time        // when the file may be written again
	due     <-chan time.Time // fires at next if there is something to write
	backoff *retry.Backoff   // while the file cannot be written
}

func newSaver(cache *peerCache, r *report.Reporter) *saver {
	return &saver{cache: cache, report: r, backoff: retry.NewBackoff()}
}

// save writes v, or sets due if it is too early for that. Another definition is not late: without it, the next process
// cannot use the file. save does nothing if v is in the file.
func (s *saver) save(v *View) {
	isRedefined := s.view != nil && !reflect.DeepEqual(s.view.Network, v.Network)
	s.unsaved = s.unsaved || s.view != v
	s.view, s.due = v, nil
	if s.unsaved && (isRedefined || !time.Now().Before(s.next)) {
		pause := savePause(len(v.Leases))
		if err := s.write(); err != nil {
			pause = max(pause, s.backoff.Next())
		}
		s.next = time.Now().Add(pause)
	}
	if s.unsaved {
		s.due = time.After(time.Until(s.next))
	}
}

// finish writes what is not in the file yet, without a pause.
func (s *saver) finish() {
	if s.unsaved {
		_ = s.write() // reported
	}
}

func (s *saver) write() error {
	err := s.cache.save(s.view)
	s.report.Written(report.PeersFile, err)
	s.unsaved = err != nil
	return err
}
