package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// subnetFileEvery is how often a network's subnet file is examined. Containers cannot be started without the file.
const subnetFileEvery = time.Second

// subnetFileState holds the wanted content of the subnet file, and the state in which the file was last found correct.
type subnetFileState struct {
	mu    sync.Mutex  // held during every write of the file
	want  []byte      // nil until the content is known
	found os.FileInfo // of the file when its content was last correct; nil for none
	said  time.Time   // when it was last logged that the file was written again

	unready atomic.Bool // the network was ready, but is not now because the file is missing
}

// subnetFileOf returns the network of this host, other than except, whose subnet file is at path in the current
// configuration, or "" if there is none. Networks with a block come first.
func (a *Agent) subnetFileOf(path, except string) string {
	var names []string
	for _, n := range a.current().Networks {
		names = append(names, n.Name)
	}
	a.mu.Lock()
	names = append(names, slices.Sorted(maps.Keys(a.runners))...)
	a.mu.Unlock()
	for _, name := range names {
		local, wanted := a.wanted(name)
		if name != except && wanted && config.SamePath(local.SubnetFile, path) {
			return name
		}
	}
	return ""
}

// writeSubnetFile writes the subnet file if its content differs from what it should be.
func (r *runner) writeSubnetFile(n registry.Network, lease registry.Lease, s backend.State) error {
	want := state.FormatSubnetFile(n.Plan, s.Subnets, s.MTU, r.local.IPMasq)
	r.file.mu.Lock()
	defer r.file.mu.Unlock()
	r.file.want = want
	have, wrote, err := r.putSubnetFile()
	if err != nil || !wrote {
		return err
	}
	level := hclog.Info
	if bytes.Equal(state.WithoutMTU(have), state.WithoutMTU(want)) {
		level = hclog.Debug // only the MTU changed, and the change of the underlay has been logged
	}
	r.log.Log(level, "subnet file written", "path", r.local.SubnetFile, "subnet", lease.Subnet(), "mtu", s.MTU)
	return nil
}

// putSubnetFile writes the file if its content is wrong. have is the content it found. The caller holds file.mu.
func (r *runner) putSubnetFile() (have []byte, wrote bool, err error) {
	path := r.local.SubnetFile
	if other := r.env.subnetFileOf(path, r.local.Name); other != "" && !slices.ContainsFunc(r.config.Networks, func(n config.Network) bool { return n.Name == r.local.Name }) {
		// The other network is configured with this path, and this network has no block.
		return nil, false, fmt.Errorf("%s is the subnet file of network %s: set another subnet_file there", path, other)
	}
	have, err = state.ReadSubnetFile(path)
	if errors.Is(err, config.ErrNotRegular) {
		return nil, false, err
	}
	if wrote = err != nil || !bytes.Equal(have, r.file.want); wrote {
		if err := state.WriteFile(path, r.file.want, 0o644); err != nil {
			return have, false, err
		}
	}
	if r.file.found, err = os.Lstat(path); err != nil {
		r.file.found = nil // the file is gone again, and the next check notices that
	}
	return have, wrote, nil
}

// subnetFileWritten reports whether this runner has found the file correct or has written it.
func (r *runner) subnetFileWritten() bool {
	r.file.mu.Lock()
	defer r.file.mu.Unlock()
	return r.file.found != nil
}

// reportSubnetFile updates the check of the subnet file. Without the file no container can be started, so the network
// is not ready.
func (r *runner) reportSubnetFile(err error) {
	if err == nil {
		r.report.Mended(health.SubnetFile)
		r.report.Check(health.SubnetFile, api.Passing, r.local.SubnetFile+" is written")
		if r.file.unready.Swap(false) {
			r.report.SetReady(true)
		}
		return
	}
	r.report.Failing(health.SubnetFile, api.Critical, advice.SubnetFile, err)
	if info, err := os.Stat(r.local.SubnetFile); err != nil || !info.Mode().IsRegular() {
		if r.report.SetReady(false) {
			r.file.unready.Store(true)
		}
	}
}

// keepSubnetFile writes the subnet file again when it is removed or changed, until ctx ends.
func (r *runner) keepSubnetFile(ctx context.Context) error {
	tick := time.NewTicker(subnetFileEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if r.subnetFileStands() {
			continue
		}
		r.file.mu.Lock()
		_, wrote, err := r.putSubnetFile()
		say := wrote && time.Since(r.file.said) > time.Minute
		if say {
			r.file.said = time.Now()
		}
		r.file.mu.Unlock()
		if say {
			r.log.Warn("subnet file was removed or changed, written again", "path", r.local.SubnetFile)
		}
		r.reportSubnetFile(err)
	}
}

// subnetFileStands reports whether the file is unchanged since it was last found correct, or not wanted yet.
func (r *runner) subnetFileStands() bool {
	r.file.mu.Lock()
	defer r.file.mu.Unlock()
	if r.file.want == nil {
		return true
	}
	now, err := os.Lstat(r.local.SubnetFile)
	found := r.file.found
	return err == nil && found != nil && os.SameFile(now, found) && now.ModTime().Equal(found.ModTime()) && now.Size() == found.Size()
}

// copySubnetFile also writes the subnet file to another path, because the next runner writes none before the store has
// confirmed its lease, which can take as long as Consul is unreachable. It does nothing if there is no subnet file of
// this network.
func (r *runner) copySubnetFile(to string) error {
	from := r.local.SubnetFile
	if config.SamePath(from, to) {
		return nil
	}
	r.file.mu.Lock()
	data := r.file.want
	r.file.mu.Unlock()
	if data == nil { // this process has not written the file yet
		before, err := state.Load(r.config.DataDir, r.local.Name)
		if err != nil || len(before.Subnets) == 0 || state.SubnetInFile(from) != before.Subnets[0] {
			return nil
		}
		if data, err = state.ReadSubnetFile(from); err != nil || !state.IsSubnetFile(data) {
			return nil
		}
	}
	return state.WriteFile(to, data, 0o644)
}

// dropSubnetFile removes the subnet file that an earlier process wrote to another path. Programs that still read it
// would use outdated values.
func (r *runner) dropSubnetFile(path string) {
	if path == "" || config.SamePath(path, r.local.SubnetFile) || r.env.subnetFileOf(path, "") != "" {
		return
	}
	if data, err := state.ReadSubnetFile(path); err != nil || !state.IsSubnetFile(data) {
		return
	}
	if err := os.Remove(path); err != nil {
		r.log.Warn("old subnet file stays", "path", path, "error", err)
		return
	}
	r.log.Info("old subnet file removed", "path", path)
}
