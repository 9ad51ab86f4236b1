package backend

import (
	"errors"
	"strings"
)

// Part is a part of a datapath that can be wrong alone.
type Part string

// The parts.
const (
	// Device is the network's device: it is there, of its kind, ours and up, with
	// its MTU and its addresses.
	Device Part = "device"
	// Routes is what leads packets from there to the peers: routes, neighbours and
	// forwarding entries, or a forwarder in this process.
	Routes Part = "routes"
)

// partError is an error with the part that it is about.
type partError struct {
	part Part
	err  error
}

func (e *partError) Error() string { return e.err.Error() }
func (e *partError) Unwrap() error { return e.err }

// About says which part an error is about, and those that it joins, but for what
// says so already. nil stays nil.
func About(p Part, err error) error {
	if err == nil {
		return nil
	}
	var out []error
	for _, single := range Apart(err) {
		if known := (*partError)(nil); !errors.As(single, &known) {
			single = &partError{p, single}
		}
		out = append(out, single)
	}
	if len(out) == 1 {
		return out[0]
	}
	return errors.Join(out...)
}

// ByPart sorts what an error joins by what it is about. What says nothing stands
// in the way of all: it is the device's, which comes first.
func ByPart(err error) map[Part]error {
	out := map[Part]error{}
	if err == nil {
		return out
	}
	for _, single := range Apart(err) {
		part := Device
		if about := (*partError)(nil); errors.As(single, &about) {
			part = about.part
		}
		out[part] = errors.Join(out[part], single)
	}
	return out
}

// Apart are the errors that one joins, at any depth. One with text of its own
// around others is one error.
func Apart(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	text := make([]string, 0, len(joined.Unwrap()))
	for _, e := range joined.Unwrap() {
		out = append(out, Apart(e)...)
		text = append(text, e.Error())
	}
	if err.Error() != strings.Join(text, "\n") {
		return []error{err}
	}
	return out
}
