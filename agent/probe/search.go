package probe

// searchTries bounds how many sizes are tried: enough for 65,000 bytes to the byte, and some hints.
const searchTries = 20

// largest returns the largest size that passes, where low does and high does not. try reports whether a size passed
// and, when it did not, the MTU from an error, 0 for none. told is an MTU that is known before. It is pure except for
// try.
func largest(low, high, told int, try func(size int) (passed bool, told int)) int {
	doubted := false
	for range searchTries {
		if low+1 >= high {
			break
		}
		size := (low + high) / 2
		if told > low && told < high {
			size = told
		}
		passed, now := try(size)
		if !passed {
			high = size
			if now > 0 {
				told = now
			}
			continue
		}
		if low = size; size == told && !doubted {
			told, doubted = size+1, true // that size should already be too large
		}
	}
	return low
}
