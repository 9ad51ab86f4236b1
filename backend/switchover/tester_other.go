//go:build !linux

package switchover

import "errors"

// noTester is the tester of systems on which no backend runs.
type noTester struct{}

func newTester() tester { return noTester{} }

func (noTester) test(string, []testPacket) (map[uint64]bool, error) {
	return nil, errors.ErrUnsupported
}

func (noTester) close() {}
