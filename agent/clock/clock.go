// Package clock deals with what a host's clocks do not tell.
//
// Go compares two times by the monotonic clock if both have been read in this process. That clock stands still while
// the host is suspended, and does not survive the process. The wall clock can be set to any time.
package clock

import "time"

// Tolerance is how far the wall clock may be corrected at once without a meaning.
const Tolerance = 5 * time.Second

// IsWithin reports whether less than d has passed since a time that this host read from its clocks, maybe in an earlier
// process. Both clocks have to say so. After a time that is to come, the wall clock was set back, and anything may have
// passed.
func IsWithin(since time.Time, d time.Duration) bool {
	now := time.Now()
	wall := now.Round(0).Sub(since.Round(0))
	return wall >= -Tolerance && wall < d && now.Sub(since) < d
}

// Jumps notices that the wall clock jumped ahead, as it does when a suspended host resumes and its clock is set. Its
// zero value is ready to use.
type Jumps struct {
	Wall func() time.Time // reads the wall clock; nil for time.Now

	at, wall time.Time // of the last call
}

// Next returns how far the wall clock jumped ahead of the monotonic one since the last call, or 0 if it did not, up to
// Tolerance.
func (j *Jumps) Next() time.Duration {
	now := time.Now()
	wall := now.Round(0)
	if j.Wall != nil {
		wall = j.Wall().Round(0)
	}
	jump := wall.Sub(j.wall) - now.Sub(j.at)
	isFirst := j.at.IsZero()
	j.at, j.wall = now, wall
	if isFirst || jump < Tolerance {
		return 0
	}
	return jump
}
