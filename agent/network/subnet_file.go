package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
)

const (
	// subnetFileSettle is the time between the discovery that the subnet file has changed and its repair. A program that
	// removes the whole directory, as rm -r does, would fail if the file came back at once.
	subnetFileSettle = 200 * time.Millisecond
	// subnetFileCheck is how often the file is examined. A missing one is back within a second.
	subnetFileCheck = time.Second - subnetFileSettle
)

// A subnetFile keeps the subnet file of one network, which container runtimes read. It is safe for concurrent use.
type subnetFile struct {
	network      string
	path         string
	isConfigured bool // the network has a block
	state        *state.File
	report       *report.Reporter
	// subnetFileOf returns the network of this host, other than except, whose subnet file is at path, or "" if there is
	// none.
	subnetFileOf func(path, except string) string

	mu    sync.Mutex  // held while the file is written or removed
	want  []byte      // nil until the content is known
	found os.FileInfo // of the file when its content was last correct; nil for none
	said  time.Time   // when it was last logged that the file was written again
}

// write writes the subnet file if its content differs from what it should be. subnet is this host's, for the log.
func (f *subnetFile) write(want []byte, subnet netip.Prefix, mtu int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.want = want
	have, wrote, err := f.put()
	if err != nil || !wrote {
		return err
	}
	level := hclog.Info
	if bytes.Equal(state.WithoutMTU(have), state.WithoutMTU(want)) {
		level = hclog.Debug // only the MTU changed, which has been logged
	}
	f.report.Log().Log(level, "subnet file written", "path", f.path, "subnet", subnet, "mtu", mtu)
	return nil
}

// put writes the file if its content is wrong. have is the content it found. The caller holds mu.
func (f *subnetFile) put() (have []byte, wrote bool, err error) {
	if other := f.subnetFileOf(f.path, f.network); other != "" && !f.isConfigured {
		// The other network is configured with this path, and this network has no block.
		return nil, false, fmt.Errorf("%s is the subnet file of network %s: set another subnet_file there", f.path, other)
	}
	have, err = state.ReadSubnetFile(f.path)
	if errors.Is(err, files.ErrNotRegular) {
		return nil, false, err
	}
	if wrote = err != nil || !bytes.Equal(have, f.want); wrote {
		if err := state.WriteFile(f.path, f.want, 0o644); err != nil {
			return have, false, err
		}
	}
	if f.found, err = os.Stat(f.path); err != nil {
		f.found = nil // the file is gone again, and the next check notices that
	}
	return have, wrote, nil
}

// isWritten reports whether this runner has found the file correct or has written it.
func (f *subnetFile) isWritten() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found != nil
}

// reportResult updates the check of the subnet file. Without the file no container can be started, so the network
// is not ready.
func (f *subnetFile) reportResult(err error) {
	info, statErr := os.Stat(f.path)
	f.report.Withhold(health.SubnetFile, err != nil && (statErr != nil || !info.Mode().IsRegular()))
	if err != nil {
		f.report.Failing(health.SubnetFile, api.Critical, advice.SubnetFile, err)
		return
	}
	f.report.Recovered(health.SubnetFile)
	f.report.Check(health.SubnetFile, api.Passing, f.path+" is written")
}

// keep writes the subnet file again when it is removed or changed, until ctx ends. Containers cannot be started without
// the file.
func (f *subnetFile) keep(ctx context.Context) {
	for retry.Sleep(ctx, subnetFileCheck) == nil {
		if !f.stands() && retry.Sleep(ctx, subnetFileSettle) == nil {
			f.repair()
		}
	}
}

// repair writes the file again, unless it was removed because it is not wanted any more.
func (f *subnetFile) repair() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.want == nil {
		return
	}
	_, wrote, err := f.put()
	if wrote && time.Since(f.said) > time.Minute {
		f.said = time.Now()
		f.report.Log().Warn("subnet file was removed or changed, written again", "path", f.path)
	}
	f.reportResult(err)
}

// stands reports whether the file is unchanged since it was last found correct, or not wanted yet.
func (f *subnetFile) stands() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.want == nil {
		return true
	}
	now, err := os.Stat(f.path)
	return err == nil && f.found != nil && os.SameFile(now, f.found) &&
		now.ModTime().Equal(f.found.ModTime()) && now.Size() == f.found.Size()
}

// copyTo also writes the subnet file to another path, because the next runner writes none before the store has
// confirmed its lease, which can take as long as Consul is unreachable. It does nothing if there is no subnet file of
// this network.
func (f *subnetFile) copyTo(to string) error {
	from := f.path
	if files.IsSame(from, to) {
		return nil
	}
	f.mu.Lock()
	data := f.want
	f.mu.Unlock()
	if data == nil { // this process has not written the file yet
		before, err := f.state.Load()
		if err != nil || len(before.Subnets) == 0 || state.SubnetInFile(from) != before.Subnets[0] {
			return nil
		}
		if data, err = state.ReadSubnetFile(from); err != nil || !state.IsSubnetFile(data) {
			return nil
		}
	}
	return state.WriteFile(to, data, 0o644)
}

// removeAt removes the subnet file that an earlier process wrote to another path. Programs that still read it
// would use outdated values.
func (f *subnetFile) removeAt(path string) {
	if path == "" || files.IsSame(path, f.path) || f.subnetFileOf(path, "") != "" {
		return
	}
	if data, err := state.ReadSubnetFile(path); err != nil || !state.IsSubnetFile(data) {
		return
	}
	if err := os.Remove(path); err != nil {
		f.report.Log().Warn("old subnet file could not be removed", "path", path, "error", err)
		return
	}
	f.report.Log().Info("old subnet file removed", "path", path)
}

// remove removes the file from its path and from before, where an earlier process wrote it, because this host leaves
// the network. Files that another program wrote there, or that are now the subnet file of another network, stay.
func (f *subnetFile) remove(before string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.want = nil
	var errs []error
	for _, path := range []string{f.path, before} {
		if f.subnetFileOf(path, f.network) != "" {
			continue
		}
		data, err := state.ReadSubnetFile(path)
		if err == nil && !state.IsSubnetFile(data) || errors.Is(err, files.ErrNotRegular) {
			f.report.Log().Warn("file at the subnet file's path is not leno's, not removing it", "path", path)
			continue
		}
		errs = append(errs, removeFiles(append(state.Unfinished(path), path)))
	}
	return errors.Join(errs...)
}

// removeFiles removes the files that exist.
func removeFiles(paths []string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
