package backend

import (
	"errors"
	"strings"
)

// Part is a part of a datapath that can fail on its own.
type Part string

// The parts of a datapath.
const (
	// Device is the network's device: it exists, is of the right kind, is leno's and is up, with
	// its MTU and its addresses.
	Device Part = "device"
	// Routes is what carries packets from the device to the peers: routes, neighbours and
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

// About marks err, and each error it joins, as being about part p. Errors that are already marked
// keep their part. nil stays nil.
func About(p Part, err error) error {
	if err == nil {
		return nil
	}
	var out []error
	for _, single := range Apart(err) {
		if _, ok := errors.AsType[*partError](single); !ok {
			single = &partError{p, single}
		}
		out = append(out, single)
	}
	if len(out) == 1 {
		return out[0]
	}
	return errors.Join(out...)
}

// ByPart groups the errors that err joins by part. An unmarked error blocks everything and counts
// as the device's, which comes first.
func ByPart(err error) map[Part]error {
	out := map[Part]error{}
	if err == nil {
		return out
	}
	for _, single := range Apart(err) {
		part := Device
		if about, ok := errors.AsType[*partError](single); ok {
			part = about.part
		}
		out[part] = errors.Join(out[part], single)
	}
	return out
}

// Apart returns the errors that err joins, at any depth. An error that adds text of its own around
// others counts as one error.
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
