package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/agent/state"
)

// records accesses the record files of attachments. name is the configuration for which ADD
// writes.
type records struct{ dataDir, name string }

// Names of temporary files begin with a dot, those of records do not. They are written in an
// instant: older ones were left by a crash.
const (
	tempPrefix = "."
	maxTempAge = time.Minute
)

func (s records) path(name, file string) string {
	return filepath.Join(attachmentDir(s.dataDir, name), file)
}

// all returns every record of every configuration, including unreadable ones.
func (s records) all() ([]recordFile, error) {
	dirs, err := entries(attachmentDir(s.dataDir, ""))
	if err != nil {
		return nil, err
	}
	var out []recordFile
	for _, dir := range dirs {
		files, err := entries(s.path(dir.Name(), ""))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasPrefix(file.Name(), tempPrefix) {
				continue
			}
			found, err := s.read(dir.Name(), file.Name())
			if errors.Is(err, fs.ErrNotExist) { // a DEL has removed it
				continue
			}
			if err != nil {
				return nil, err
			}
			out = append(out, found)
		}
	}
	return out, nil
}

// find returns the records of an attachment. The runtime's key includes the configuration's name,
// but a configuration may be renamed while containers run: without a record under the name, find
// returns those of other configurations.
func (s records) find(a types.GCAttachment) ([]recordFile, error) {
	all, err := s.findAll(a)
	return findRecords(all, s.name, a), err
}

// findAll returns the records of an attachment, of every configuration.
func (s records) findAll(a types.GCAttachment) ([]recordFile, error) {
	all, err := s.all()
	return slices.DeleteFunc(all, func(file recordFile) bool { return !file.belongsTo(a) }), err
}

func (s records) read(name, file string) (recordFile, error) {
	f, err := os.OpenFile(s.path(name, file), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return newRecordFile(name, file, nil), nil
	}
	if err != nil {
		return recordFile{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil && !errors.Is(err, unix.EISDIR) {
		return recordFile{}, err
	}
	return newRecordFile(name, file, data), nil
}

// write replaces the record's file, and never follows a symlink in its place.
func (s records) write(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return state.WriteFile(s.path(r.Name, r.fileName()), append(data, '\n'), 0o600)
}

func (s records) remove(file recordFile) error {
	if err := os.Remove(s.path(file.Name, file.File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeUnfinished removes the temporary files of an attachment left by killed calls. The container must be locked.
func (s records) removeUnfinished(a types.GCAttachment) error {
	return s.removeFiles(tempPrefix+recordFileName(a.ContainerID, a.IfName)+".", 0)
}

// removeTemporary removes the configuration's temporary files left by killed calls.
func (s records) removeTemporary() error { return s.removeFiles(tempPrefix, maxTempAge) }

// removeFiles removes the configuration's files whose names begin with prefix and that are older than age.
func (s records) removeFiles(prefix string, age time.Duration) error {
	files, err := entries(s.path(s.name, ""))
	errs := []error{err}
	for _, file := range files {
		if info, err := file.Info(); err == nil && strings.HasPrefix(file.Name(), prefix) &&
			(age == 0 || time.Since(info.ModTime()) > age) {
			errs = append(errs, os.Remove(s.path(s.name, file.Name())))
		}
	}
	return errors.Join(errs...)
}

// entries returns the entries of a directory, or none if it does not exist.
func entries(dir string) ([]fs.DirEntry, error) {
	out, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, err
}

// addressFilter returns a filter for the addresses to release. It is called while the store is locked, so
// the records that it reads are not older than the addresses.
type addressFilter func() (func(reservedAddress) bool, error)

// filterOwned selects one attachment's addresses.
func filterOwned(a types.GCAttachment) addressFilter {
	return func() (func(reservedAddress) bool, error) {
		return func(s reservedAddress) bool { return s.Owner == a }, nil
	}
}

// filterOrphans selects the addresses that belong to no record and to none of the valid attachments.
func (s records) filterOrphans(valid []types.GCAttachment) addressFilter {
	return func() (func(reservedAddress) bool, error) {
		all, err := s.all()
		return func(a reservedAddress) bool { return len(findOrphans([]reservedAddress{a}, all, valid)) > 0 }, err
	}
}

// releaseAddresses removes addresses from host-local's stores.
func releaseAddresses(dataDir string, which addressFilter) error {
	stores, err := entries(addressDir(dataDir))
	errs := []error{err}
	for _, store := range stores {
		_, err := releaseFrom(filepath.Join(addressDir(dataDir), store.Name()), which)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// releaseFrom removes addresses from a store, under the lock that host-local also takes. It
// returns how many it removed.
func releaseFrom(store string, which addressFilter) (int, error) {
	lock, err := os.OpenFile(filepath.Join(store, "lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if errors.Is(err, fs.ErrNotExist) { // no address was ever given
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return 0, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	chosen, err := which()
	if err != nil {
		return 0, err
	}
	reserved, err := readReserved(store)
	if err != nil {
		return 0, err
	}
	var errs []error
	n := 0
	for path, s := range reserved {
		if chosen(s) {
			n++
			errs = append(errs, os.Remove(path))
		}
	}
	return n, errors.Join(errs...)
}

// readReserved returns the reserved addresses of a store by file; none if the store does not exist.
func readReserved(store string) (map[string]reservedAddress, error) {
	files, err := entries(store)
	if err != nil {
		return nil, err
	}
	out := map[string]reservedAddress{}
	for _, file := range files {
		path := filepath.Join(store, file.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if s, ok := parseReserved(path, data); ok {
			out[path] = s
		}
	}
	return out, nil
}
