package cni

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

const recordVersion = 1

// record is what another plugin was given for one attachment. It is written before the plugin
// runs, so that DEL can undo what a crash left. It contains everything that DEL needs, because by
// then the agent may be gone and the subnet changed.
type record struct {
	Version     int             `json:"version"`
	Name        string          `json:"name"` // of the configuration
	ContainerID string          `json:"container_id"`
	IfName      string          `json:"ifname"`
	Netns       string          `json:"netns"`              // path of the container's namespace
	NetnsID     string          `json:"netns_id,omitempty"` // of namespaceID; an earlier leno wrote none
	Network     string          `json:"network"`
	Plugin      string          `json:"plugin"`
	Config      json.RawMessage `json:"config"`

	// Set after a successful ADD.
	Done bool   `json:"done"`
	Link string `json:"link,omitempty"` // the host's end of the container's interface
	MAC  string `json:"mac,omitempty"`  // of that

	// Refused marks an ADD that was rejected because another configuration had given the
	// interface. There is nothing to undo, and the DEL that follows must not remove the other's
	// interface.
	Refused bool `json:"refused,omitempty"`
}

// inFile returns the record in its file.
func (r record) inFile() recordFile {
	return recordFile{Name: r.Name, File: r.fileName(), phase: r.phase(), Record: r}
}

// newRecord returns the record of a delegation for a container and its namespace.
func newRecord(name string, a types.GCAttachment, netns string, d delegation) record {
	return record{Version: recordVersion, Name: name, ContainerID: a.ContainerID, IfName: a.IfName, Netns: netns,
		NetnsID: namespaceID(netns), Network: d.Network, Plugin: d.Plugin, Config: d.Config}
}

// delegation returns the recorded delegation.
func (r record) delegation() delegation {
	return delegation{Plugin: r.Plugin, Network: r.Network, Config: r.Config}
}

// fileName returns the name of the record's file.
func (r record) fileName() string { return recordFileName(r.ContainerID, r.IfName) }

// maxFile leaves room below NAME_MAX for the name of a temporary file.
const maxFile = 200

// recordFileName returns the name of an attachment's file. Neither word can contain a colon.
func recordFileName(containerID, ifName string) string { return shortName(containerID + ":" + ifName) }

// shortName returns a name, or its hash: a container's name may be longer than a file name can be.
func shortName(name string) string {
	if len(name) > maxFile {
		sum := sha256.Sum256([]byte(name))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return name
}

// parseRecord parses a record.
func parseRecord(data []byte) (record, error) {
	var r record
	err := json.Unmarshal(data, &r)
	switch {
	case err != nil:
	case r.Version != recordVersion:
		err = fmt.Errorf("version %d is not known", r.Version)
	case r.Name == "" || r.ContainerID == "" || r.IfName == "" || r.Plugin == "" || strings.ContainsAny(r.Plugin,
		"/\x00") || len(r.Config) == 0:
		err = fmt.Errorf("a member is missing")
	}
	if err != nil {
		return record{}, fmt.Errorf("not a record of an attachment: %w", err)
	}
	return r, nil
}

// key identifies the record's attachment.
func (r record) key() types.GCAttachment {
	return types.GCAttachment{ContainerID: r.ContainerID, IfName: r.IfName}
}

// A phase is the state of an attachment, as its record tells it.
type phase int

const (
	// phaseUnreadable is that of a record that a crash or a newer leno left in a form that cannot be
	// read. What was given is unknown.
	phaseUnreadable phase = iota
	// phaseBegun: the other plugin was asked for the interface, and may have given it.
	phaseBegun
	// phaseAttached: the container has the interface.
	phaseAttached
	// phaseRefused: another configuration had given the interface. There is nothing to undo.
	phaseRefused
)

func (r record) phase() phase {
	switch {
	case r.Refused:
		return phaseRefused
	case r.Done:
		return phaseAttached
	}
	return phaseBegun
}

// recordFile is a record's file. Its name identifies the attachment even if a crash or a newer leno left
// unreadable content in it.
type recordFile struct {
	Name, File string // of the configuration, and of the file
	phase      phase
	Record     record
}

// newRecordFile returns the recordFile of a file's content.
func newRecordFile(name, file string, data []byte) recordFile {
	r, err := parseRecord(data)
	if err != nil || r.Name != name || r.fileName() != file {
		return recordFile{Name: name, File: file}
	}
	return r.inFile()
}

// belongsTo reports whether the file belongs to the attachment.
func (f recordFile) belongsTo(a types.GCAttachment) bool {
	return f.File == recordFileName(a.ContainerID, a.IfName)
}

// key identifies the attachment; false if only its hash is known.
func (f recordFile) key() (types.GCAttachment, bool) {
	if f.phase != phaseUnreadable {
		return f.Record.key(), true
	}
	id, ifName, found := strings.Cut(f.File, ":")
	const longest = 15 // the longest device name; a hash is longer
	return types.GCAttachment{ContainerID: id, IfName: ifName}, found && len(ifName) <= longest
}

// findRecords returns the records of an attachment that the named configuration answers for: its own, or else those of
// others that gave it something.
func findRecords(all []recordFile, name string, a types.GCAttachment) []recordFile {
	var own, others []recordFile
	for _, file := range all {
		switch {
		case !file.belongsTo(a):
		case file.Name == name:
			own = append(own, file)
		case file.phase != phaseRefused:
			others = append(others, file)
		}
	}
	if len(own) > 0 {
		return own
	}
	return others
}

// findGarbage returns the records of a configuration's attachments that are not valid.
func findGarbage(all []recordFile, name string, valid []types.GCAttachment) []recordFile {
	return slices.DeleteFunc(slices.Clone(all), func(file recordFile) bool {
		return file.Name != name || slices.ContainsFunc(valid, file.belongsTo)
	})
}

// reservedAddress is one file of host-local's store. Its name is an address, and its content is
//
//	CONTAINER "\r\n" INTERFACE
//
// (github.com/containernetworking/plugins, plugins/ipam/host-local/README.md and
// backend/disk).
type reservedAddress struct {
	Path  string
	Owner types.GCAttachment
}

// parseReserved parses a file of the store; false for files that are not addresses.
func parseReserved(path string, data []byte) (reservedAddress, bool) {
	if _, err := netip.ParseAddr(filepath.Base(path)); err != nil {
		return reservedAddress{}, false
	}
	id, ifName, found := strings.Cut(strings.TrimSpace(string(data)), "\r\n")
	if !found || id == "" {
		return reservedAddress{}, false
	}
	return reservedAddress{Path: path, Owner: types.GCAttachment{ContainerID: id, IfName: ifName}}, true
}

// findOrphans returns the addresses without a known owner: no record gave them to an attachment, and
// their attachment is not valid. A record is always older than its address.
func findOrphans(store []reservedAddress, all []recordFile, valid []types.GCAttachment) []reservedAddress {
	return slices.DeleteFunc(slices.Clone(store), func(s reservedAddress) bool {
		return slices.Contains(valid, s.Owner) || slices.ContainsFunc(all,
			func(file recordFile) bool { return file.phase != phaseRefused && file.belongsTo(s.Owner) })
	})
}

// isFull reports whether one of the subnets has no address left for a container.
func isFull(f facts, store []reservedAddress) bool {
	return slices.ContainsFunc(f.Gateways, func(g netip.Prefix) bool {
		const countable = 16 // bits; a host never uses up the addresses of a larger subnet
		bits := g.Addr().BitLen() - g.Bits()
		if bits > countable {
			return false
		}
		left := 1<<bits - 2 // without the subnet's own address and the gateway
		if g.Addr().Is4() { // IPv4 has a broadcast address
			left--
		}
		for _, s := range store {
			if a, err := netip.ParseAddr(filepath.Base(s.Path)); err == nil && g.Contains(a) {
				left--
			}
		}
		return left <= 0
	})
}
