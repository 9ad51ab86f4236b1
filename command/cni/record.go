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

// What is remembered lies below the data directory:
//
//	addresses/NETWORK/10.5.34.2            host-local's store, one file an address
//	attachments/NAME/CONTAINER:INTERFACE   a Record, for each attachment by the configuration NAME
//	bridges/NETWORK/DEVICE                 Given, for each device that has gateways
//
// It is below /run by default: after a start of the host there are no containers, and
// what would remember them is gone as well.

// AddressDir is what host-local has as its dataDir.
func AddressDir(dataDir string) string { return filepath.Join(dataDir, "addresses") }

// AttachmentDir is where the records of a configuration lie; of all with the name "".
func AttachmentDir(dataDir, name string) string { return filepath.Join(dataDir, "attachments", name) }

const recordVersion = 1

// Record is what was given to another plugin for one attachment. It is written before
// the plugin runs, so that DEL can undo what a crash left, and says everything that
// DEL needs: the agent may be gone by then, and the subnet another one.
type Record struct {
	Version     int             `json:"version"`
	Name        string          `json:"name"` // of the configuration
	ContainerID string          `json:"container_id"`
	IfName      string          `json:"ifname"`
	Netns       string          `json:"netns"` // path of the container's namespace
	Network     string          `json:"network"`
	Plugin      string          `json:"plugin"`
	Config      json.RawMessage `json:"config"`

	// Of an ADD that succeeded.
	Done bool   `json:"done"`
	Link string `json:"link,omitempty"` // the host's end of the container's interface
	MAC  string `json:"mac,omitempty"`  // of that

	// Refused is an ADD that found the interface given by another configuration. There
	// is nothing to undo, and the DEL that follows must not take the other's.
	Refused bool `json:"refused,omitempty"`
}

// Kept is the record in its file.
func (r Record) Kept() Kept {
	return Kept{Name: r.Name, File: r.File(), Readable: true, Record: r}
}

// NewRecord remembers a delegation for a container and its namespace.
func NewRecord(name string, a types.GCAttachment, netns string, d Delegation) Record {
	return Record{Version: recordVersion, Name: name, ContainerID: a.ContainerID, IfName: a.IfName, Netns: netns, Network: d.Network, Plugin: d.Plugin, Config: d.Config}
}

// Delegation is what was remembered.
func (r Record) Delegation() Delegation {
	return Delegation{Plugin: r.Plugin, Network: r.Network, Config: r.Config}
}

// File is the name of the record's file.
func (r Record) File() string { return RecordFile(r.ContainerID, r.IfName) }

// maxFile leaves room below NAME_MAX for the name of a temporary file.
const maxFile = 200

// RecordFile is the name of an attachment's file. Neither word can have a colon. A
// container's name may be longer than a file's.
func RecordFile(containerID, ifName string) string {
	name := containerID + ":" + ifName
	if len(name) > maxFile {
		sum := sha256.Sum256([]byte(name))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return name
}

// ParseRecord reads one.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	err := json.Unmarshal(data, &r)
	switch {
	case err != nil:
	case r.Version != recordVersion:
		err = fmt.Errorf("version %d is not known", r.Version)
	case r.Name == "" || r.ContainerID == "" || r.IfName == "" || r.Plugin == "" || strings.ContainsAny(r.Plugin, "/\x00") || len(r.Config) == 0:
		err = fmt.Errorf("not everything is there")
	}
	if err != nil {
		return Record{}, fmt.Errorf("not a record of an attachment: %w", err)
	}
	return r, nil
}

// Attachment is the record's key.
func (r Record) Attachment() types.GCAttachment {
	return types.GCAttachment{ContainerID: r.ContainerID, IfName: r.IfName}
}

// Kept is a record's file. Its name says whose it is also where a crash or a newer
// leno left something in it that cannot be read.
type Kept struct {
	Name, File string // of the configuration, and of the file
	Readable   bool
	Record     Record
}

// NewKept is what stands in a file.
func NewKept(name, file string, data []byte) Kept {
	r, err := ParseRecord(data)
	if err != nil || r.Name != name || r.File() != file {
		return Kept{Name: name, File: file}
	}
	return Kept{Name: name, File: file, Readable: true, Record: r}
}

// Of says whether it is an attachment's.
func (k Kept) Of(a types.GCAttachment) bool { return k.File == RecordFile(a.ContainerID, a.IfName) }

// Attachment is whose it is; false when a hash is all that is known of it.
func (k Kept) Attachment() (types.GCAttachment, bool) {
	if k.Readable {
		return k.Record.Attachment(), true
	}
	id, ifName, found := strings.Cut(k.File, ":")
	const longest = 15 // a device's name; a hash is longer
	return types.GCAttachment{ContainerID: id, IfName: ifName}, found && len(ifName) <= longest
}

// Gave says whether there is something to undo.
func (k Kept) Gave() bool { return !k.Readable || !k.Record.Refused }

// Find is what is kept of an attachment: of the configuration, else of others that
// gave it something.
func Find(all []Kept, name string, a types.GCAttachment) []Kept {
	var own, others []Kept
	for _, k := range all {
		switch {
		case !k.Of(a):
		case k.Name == name:
			own = append(own, k)
		case k.Gave():
			others = append(others, k)
		}
	}
	if len(own) > 0 {
		return own
	}
	return others
}

// Garbage is what is kept of a configuration's attachments that are not valid.
func Garbage(all []Kept, name string, valid []types.GCAttachment) []Kept {
	return slices.DeleteFunc(slices.Clone(all), func(k Kept) bool {
		return k.Name != name || slices.ContainsFunc(valid, k.Of)
	})
}

// Reserved is one file of host-local's store: an address in its name, and in it
//
//	CONTAINER "\r\n" INTERFACE
//
// (github.com/containernetworking/plugins, plugins/ipam/host-local/README.md and
// backend/disk).
type Reserved struct {
	Path  string
	Owner types.GCAttachment
}

// ParseReserved reads one; false for the store's other files.
func ParseReserved(path string, data []byte) (Reserved, bool) {
	if _, err := netip.ParseAddr(filepath.Base(path)); err != nil {
		return Reserved{}, false
	}
	id, ifName, found := strings.Cut(strings.TrimSpace(string(data)), "\r\n")
	if !found || id == "" {
		return Reserved{}, false
	}
	return Reserved{Path: path, Owner: types.GCAttachment{ContainerID: id, IfName: ifName}}, true
}

// Orphans are the addresses whose owner nobody knows: no record says that it was
// attached, and it is not valid. A record is older than its address.
func Orphans(store []Reserved, all []Kept, valid []types.GCAttachment) []Reserved {
	return slices.DeleteFunc(slices.Clone(store), func(s Reserved) bool {
		return slices.Contains(valid, s.Owner) || slices.ContainsFunc(all, func(k Kept) bool { return k.Gave() && k.Of(s.Owner) })
	})
}

// Full says whether one of the subnets has no address left for a container.
func Full(f Facts, store []Reserved) bool {
	return slices.ContainsFunc(f.Gateways, func(g netip.Prefix) bool {
		const countable = 16 // bits; of more no host uses up the addresses
		bits := g.Addr().BitLen() - g.Bits()
		if bits > countable {
			return false
		}
		left := 1<<bits - 2 // the subnet's own, and the gateway
		if g.Addr().Is4() { // which has a broadcast address
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
