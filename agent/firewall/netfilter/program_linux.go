package netfilter

import (
	"io/fs"
	"syscall"
)

// fileNumber returns numbers that distinguish successive files at the same path.
func fileNumber(info fs.FileInfo) [2]uint64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return [2]uint64{}
	}
	return [2]uint64{uint64(stat.Dev), stat.Ino}
}
