package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/registry"
)

// writeFileAtomic replaces path with data so that a reader, a crash or a full
// disk sees either the old file or the new one, whole.
func writeFileAtomic(path string, data []byte, mode os.FileMode) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	if _, err := tmp.Write(data); err != nil {
		return err
	}
	if err := tmp.Chmod(mode); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("%s was replaced: %w", path, err)
	}
	return nil
}

// begunFiles are what writeFileAtomic had begun beside path and not renamed when
// its process was killed.
func begunFiles(path string) (out []string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil // nothing was begun where nothing can be
	}
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "."+filepath.Base(path)+".")
		if _, err := strconv.ParseUint(number, 10, 64); ok && err == nil {
			out = append(out, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return out
}

// badSuffix ends the names of files that could not be read and were put aside.
const badSuffix = ".bad"

// saved is what a network's runner remembers between processes, in
// <data_dir>/<network>.json.
type saved struct {
	Version int            `json:"version"`
	Network string         `json:"network"`
	NodeID  string         `json:"node_id,omitzero"` // of this host, should its own file be lost
	Subnets []netip.Prefix `json:"subnets"`
	Session string         `json:"session"`
	// Lease is the version of the lease's record, and Definition the index at
	// which the network's was created: how a store that was set back, or made
	// anew, is known.
	Lease      uint64 `json:"lease_index,omitzero"`
	Definition uint64 `json:"network_index,omitzero"`
	// Record is the network's definition as it was in force last, and RecordIndex
	// its version: a host that remembers a network puts it back into a store that
	// lost it.
	Record      json.RawMessage `json:"definition,omitempty"`
	RecordIndex uint64          `json:"definition_index,omitzero"`
	// Earlier are the versions that were in force before, oldest first: the last
	// maxEarlier that have lower indexes.
	Earlier []uint64 `json:"earlier_definition_indexes,omitempty"`
	// Renewed is when the lease was renewed last, to a tenth of lease.hold: after
	// that time nobody is bound to keep the subnet for this host.
	Renewed time.Time `json:"renewed,omitzero"`
	// Revoked is the subnet that was revoked from this host, until it has
	// another: not to be asked for again.
	Revoked netip.Prefix `json:"revoked,omitzero"`
	// SubnetFile is where the subnet file was written, to remove it when the
	// network's block is gone.
	SubnetFile string           `json:"subnet_file"`
	Pools      []netip.Prefix   `json:"pools"`   // what the datapath was built for,
	Backend    registry.Backend `json:"backend"` // to take it away when that changed
}

// maxEarlier bounds the versions of a definition that are remembered.
const maxEarlier = 32

// earlier returns the versions that were in force before the one with the given
// indexes, when s is what was written down before it.
func (s saved) earlier(created, version uint64) []uint64 {
	if s.Definition != created {
		return nil
	}
	var out []uint64
	for _, v := range append(slices.Clone(s.Earlier), s.RecordIndex) {
		if v != 0 && v < version {
			out = append(out, v)
		}
	}
	return out[max(0, len(out)-maxEarlier):]
}

// lease is the lease the file tells of, as far as giving it up needs to know.
func (s saved) lease(id identity) registry.Lease {
	return registry.Lease{Network: s.Network, Subnets: s.Subnets, Session: s.Session, Node: id.node, NodeID: id.nodeID}
}

// savedNetworks is the networks that have a state file. What else is among the
// files, or is broken, is not one's.
func savedNetworks(dataDir string) (names []string) {
	files, err := filepath.Glob(savedPath(dataDir, "*"))
	if err != nil {
		return nil // only of a pattern that is wrong
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if s, err := loadSaved(dataDir, name); err == nil && s.Network != "" {
			names = append(names, name)
		}
	}
	return names
}

func savedPath(dataDir, network string) string { return filepath.Join(dataDir, network+".json") }

// loadSaved reads the state file. A missing one is the zero value; a broken one
// is an error and the zero value.
func loadSaved(dataDir, network string) (saved, error) {
	path := savedPath(dataDir, network)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return saved{}, nil
	}
	if err != nil {
		return saved{}, err
	}
	var s saved
	if err := json.Unmarshal(data, &s); err != nil {
		return saved{}, fmt.Errorf("state file %s is broken: %w", path, err)
	}
	if s.Version != registry.Version || s.Network != network {
		return saved{}, fmt.Errorf("state file %s is of version %d and network %q", path, s.Version, s.Network)
	}
	var record bytes.Buffer // which the file has indented
	if len(s.Record) > 0 && json.Compact(&record, s.Record) == nil {
		s.Record = record.Bytes()
	}
	return s, nil
}

func storeSaved(dataDir string, s saved) error {
	s.Version = registry.Version
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFileAtomic(savedPath(dataDir, s.Network), append(data, '\n'), 0o600)
}

// subnetFile is what container runtimes read: the LENO_ lines and the same
// with FLANNEL_, for readers made for flannel.
func subnetFile(plan registry.Plan, subnets []netip.Prefix, mtu int, masq bool) []byte {
	var lines []string
	for i, s := range subnets {
		family := ""
		if s.Addr().Is6() {
			family = "IPV6_"
		}
		lines = append(lines,
			fmt.Sprintf("%sNETWORK=%s", family, plan[i].Prefix),
			fmt.Sprintf("%sSUBNET=%s", family, gateway(s)))
	}
	lines = append(lines, fmt.Sprintf("MTU=%d", mtu), fmt.Sprintf("IPMASQ=%t", masq))
	var out bytes.Buffer
	for _, prefix := range []string{"LENO_", "FLANNEL_"} {
		for _, line := range lines {
			out.WriteString(prefix + line + "\n")
		}
	}
	return out.Bytes()
}

// withoutMTU is a subnet file without its lines about the MTU.
func withoutMTU(file []byte) []byte {
	return bytes.Join(slices.DeleteFunc(bytes.Split(file, []byte("\n")), func(line []byte) bool { return bytes.Contains(line, []byte("_MTU=")) }), []byte("\n"))
}

// gateway is the subnet in the form its bridge has it: the first host address
// with the subnet's length.
func gateway(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
}

// readSubnetFile reads a file in the place of a subnet file. Of a FIFO, which anybody may
// put there, it is an error; reading one would wait for another process.
func readSubnetFile(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), config.ReadTimeout)
	defer cancel()
	return config.ReadFile(ctx, path)
}

// subnetInFile is the first subnet a subnet file names, the zero value when it
// names none.
func subnetInFile(path string) netip.Prefix {
	data, err := readSubnetFile(path)
	if err != nil {
		return netip.Prefix{}
	}
	found := map[string]netip.Prefix{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), "=")
		if p, err := netip.ParsePrefix(strings.TrimSpace(value)); err == nil {
			found[key] = p.Masked()
		}
	}
	for _, key := range []string{"LENO_SUBNET", "LENO_IPV6_SUBNET", "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"} {
		if p, ok := found[key]; ok {
			return p
		}
	}
	return netip.Prefix{}
}
