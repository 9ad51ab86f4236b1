package etcd

import "time"

// attempt is the outcome of the last attempt at something that one goroutine at a time tries. Those who waited for
// their turn since before it began share it: otherwise each of them would wait for a server that does not answer.
type attempt struct {
	began time.Time
	err   error
	// cancelled is true if the attempt failed because its own caller gave up.
	cancelled bool
}

// isFor reports whether the attempt is one for a caller that began to wait at the given time.
func (a attempt) isFor(since time.Time) bool {
	return !a.cancelled && a.began.After(since)
}
