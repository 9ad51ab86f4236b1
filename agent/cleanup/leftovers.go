package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// The kinds of leftovers.
const (
	Device   = "device"
	Bridge   = "bridge" // of leno-cni
	Route    = "route"
	Rule     = "rule"     // that chooses a routing table
	Firewall = "firewall" // chains and jumps, or a table
	File     = "file"
	Lease    = "lease"
	Session  = "session"
	Service  = "service"
)

// A Leftover is one thing that leno left on this host or in the store.
type Leftover struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Network string `json:"network,omitempty"` // if it is known
	Detail  string `json:"detail,omitempty"`
	// Reason is why it was not removed, or why it is not leno's although it looks like it.
	Reason string `json:"reason,omitempty"`

	remove func(context.Context) error
}

// A Report says what Run found.
type Report struct {
	DataDir string `json:"data_dir"`
	DryRun  bool   `json:"dry_run"`
	// Removed was removed in this order, or would be.
	Removed []Leftover `json:"removed"`
	// Left is leno's and still exists, with the reason.
	Left []Leftover `json:"left"`
	// Foreign looks like leno's and is not, with the reason.
	Foreign []Leftover `json:"foreign"`
}

// leftovers is the list of what all finders have found, in the order in which it is removed, once.
type leftovers struct {
	log    hclog.Logger
	found  []Leftover
	report Report
}

func newLeftovers(dataDir string, o Options) *leftovers {
	return &leftovers{
		log: o.Logger,
		report: Report{
			DataDir: dataDir,
			DryRun:  o.DryRun,
			Removed: []Leftover{},
			Left:    []Leftover{},
			Foreign: []Leftover{},
		},
	}
}

// add notes a leftover that remove can remove. If it has gone by itself, remove returns os.ErrNotExist.
func (s *leftovers) add(l Leftover, remove func(context.Context) error) {
	l.remove = remove
	s.found = append(s.found, l)
}

// addLeft reports a leftover that cannot be removed, or of which err says that it cannot be found.
func (s *leftovers) addLeft(l Leftover, err error) {
	l.Reason = err.Error()
	s.report.Left = append(s.report.Left, l)
}

func (s *leftovers) addForeign(l Leftover, format string, args ...any) {
	l.Reason = fmt.Sprintf(format, args...)
	s.report.Foreign = append(s.report.Foreign, l)
}

// hasFile reports whether the file at path will be removed.
func (s *leftovers) hasFile(path string) bool {
	return slices.ContainsFunc(s.found, func(l Leftover) bool { return l.Kind == File && l.Name == path })
}

// isForeign reports whether the file at path was reported as not leno's.
func (s *leftovers) isForeign(path string) bool {
	return slices.ContainsFunc(s.report.Foreign, func(l Leftover) bool { return l.Name == path })
}

// removeAll removes what was found, and continues after failures. A dry run only lists it.
func (s *leftovers) removeAll(ctx context.Context) {
	for _, l := range s.found {
		err := whyKept(l, s.report.Left)
		if err == nil && !s.report.DryRun {
			err = l.remove(ctx)
		}
		switch {
		case err == nil && s.report.DryRun:
			s.report.Removed = append(s.report.Removed, l)
		case err == nil:
			s.log.Info("removed", "kind", l.Kind, "name", l.Name)
			s.report.Removed = append(s.report.Removed, l)
		case !errors.Is(err, os.ErrNotExist):
			s.addLeft(l, err)
		}
	}
}

// whyKept returns why a leftover must not be removed: a lease stays as long as a device or a route of its network is
// left, also one of which the network is not known.
func whyKept(l Leftover, left []Leftover) error {
	if l.Kind != Lease {
		return nil
	}
	for _, other := range left {
		carries := other.Kind == Device || other.Kind == Route
		if carries && (other.Network == "" || other.Network == l.Network) {
			return fmt.Errorf("packets may still flow here, so no other host may get the subnet: remove the %s %s first",
				other.Kind, other.Name)
		}
	}
	return nil
}
