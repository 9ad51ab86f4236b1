package probe

// searchTries bounds how many sizes are tried: enough for 65,000 bytes to the byte, and some hints.
const searchTries = 20

// largestSize returns the largest size that passes, where low does and high does not. try reports whether a size passed
// and, when it did not, the MTU from an error, 0 for none. hint is an MTU that was reported before. It is pure except
// for try.
func largestSize(low, high, hint int, try func(size int) (passed bool, hint int)) int {
	doubted := false
	for range searchTries {
		if low+1 >= high {
			break
		}
		size := (low + high) / 2
		if hint > low && hint < high {
			size = hint
		}
		passed, now := try(size)
		if !passed {
			high = size
			if now > 0 {
				hint = now
			}
			continue
		}
		if low = size; size == hint && !doubted {
			hint, doubted = size+1, true // that size should already be too large
		}
	}
	return low
}
