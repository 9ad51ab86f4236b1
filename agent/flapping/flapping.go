// Package flapping tells single repairs from repairs of the same fault that are made again and again, because another
// program undoes them.
package flapping

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/backend"
)

// What another program changes is repaired each time, with one log line each time. A fault that returns again and again
// is flapping: a program believes that the device, for example, is its own. It gets one line when that begins, then one
// a minute, and health names it until it ends. The repairs go on, at a pace that costs little and keeps what is
// promised for everything else on the host.
const (
	beginsAfter = 6               // repairs of the same fault
	countedFor  = 5 * time.Minute // how long a repair counts
	repeatLine  = time.Minute     // from one line to the next

	// EndsAfter is how long a fault must not return for its flapping to end.
	EndsAfter = 2 * time.Minute

	// LongestPause is the longest pause between a change and the look at it while a fault is flapping: what is wrong
	// is right again within 2 s.
	LongestPause = 1500 * time.Millisecond
)

// A Detector remembers what was repaired. The zero value is ready. It must be used by one goroutine at a time.
type Detector struct {
	faults map[string]*fault // by backend.Repair.Fault
}

// fault is one thing that went wrong.
type fault struct {
	times    []time.Time // of its repairs, within countedFor
	last     backend.Repair
	flapping bool
	reported time.Time // when the last line was written
	line     string    // that line; health shows the same text until the next, because each change wakes its watchers
}

// Record adds repairs. single are to be logged in one line, and flapping, in words, in one line each.
func (d *Detector) Record(now time.Time, repairs []backend.Repair) (single []backend.Repair, flapping []string) {
	for _, r := range repairs {
		f := d.faults[r.Fault]
		if f == nil {
			if f = new(fault); d.faults == nil {
				d.faults = map[string]*fault{}
			}
			d.faults[r.Fault] = f
		}
		f.times = slices.DeleteFunc(append(f.times, now), func(t time.Time) bool { return now.Sub(t) > countedFor })
		f.last = r
		f.flapping = f.flapping || len(f.times) >= beginsAfter
		switch {
		case !f.flapping:
			single = append(single, r)
		case now.Sub(f.reported) >= repeatLine:
			f.reported, f.line = now, f.describe()
			flapping = append(flapping, f.line)
		}
	}
	return single, flapping
}

// Settle forgets faults that have not returned for a while, and returns those that stopped flapping.
func (d *Detector) Settle(now time.Time) (ended []string) {
	for name, f := range d.faults {
		since := now.Sub(f.times[len(f.times)-1])
		if since > countedFor || f.flapping && since > EndsAfter {
			delete(d.faults, name)
			if f.flapping {
				ended = append(ended, name)
			}
		}
	}
	slices.Sort(ended)
	return ended
}

// Describe returns the flapping faults of some parts, or of all, in words; "" when there are none.
func (d *Detector) Describe(of ...backend.Part) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(d.faults)) {
		if f := d.faults[name]; f.flapping && (len(of) == 0 || slices.Contains(of, f.last.Part)) {
			out = append(out, f.line)
		}
	}
	return strings.Join(out, "; ")
}

// Count returns the number of flapping faults.
func (d *Detector) Count() int {
	n := 0
	for _, f := range d.faults {
		if f.flapping {
			n++
		}
	}
	return n
}

func (f *fault) describe() string {
	span := f.times[len(f.times)-1].Sub(f.times[0]).Round(time.Second)
	return fmt.Sprintf("%s (%d times in %s, repaired each time)", f.last, len(f.times), span)
}

// Sentence joins repairs for a log line.
func Sentence(repairs []backend.Repair) string {
	var out []string
	for _, r := range repairs {
		out = append(out, r.String())
	}
	return strings.Join(out, "; ")
}
