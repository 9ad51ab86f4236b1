//go:build !linux

package pathtest

import "errors"

// Tester does nothing on systems on which no backend runs.
type Tester struct{}

// New returns a tester.
func New() *Tester { return &Tester{} }

// Test returns an error.
func (*Tester) Test(string, []Packet) (map[uint64]bool, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (*Tester) Close() {}
