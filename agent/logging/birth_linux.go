package logging

import (
	"time"

	"golang.org/x/sys/unix"
)

// birth returns when a file was created, if its file system records that (statx(2)).
func birth(path string, otherwise time.Time) time.Time {
	var s unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &s) != nil || s.Mask&unix.STATX_BTIME == 0 {
		return otherwise
	}
	return time.Unix(s.Btime.Sec, int64(s.Btime.Nsec))
}
