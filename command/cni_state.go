package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/command/cni"
)

// cniRecords are the files of what is remembered of attachments. name is the
// configuration's, which ADD writes for.
type cniRecords struct{ dataDir, name string }

// Temporary files are written in an instant: what is older was left by a crash.
const (
	recordTemp    = ".new."
	recordTempAge = time.Minute
)

func (c cniRecords) path(name, file string) string {
	return filepath.Join(cni.AttachmentDir(c.dataDir, name), file)
}

// all is every record, of whichever configuration, those that cannot be read as well.
func (c cniRecords) all() ([]cni.Kept, error) {
	dirs, err := entries(cni.AttachmentDir(c.dataDir, ""))
	if err != nil {
		return nil, err
	}
	var out []cni.Kept
	for _, dir := range dirs {
		files, err := entries(c.path(dir.Name(), ""))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasPrefix(file.Name(), recordTemp) {
				continue
			}
			kept, err := c.read(dir.Name(), file.Name())
			if errors.Is(err, fs.ErrNotExist) { // a DEL meanwhile
				continue
			}
			if err != nil {
				return nil, err
			}
			out = append(out, kept)
		}
	}
	return out, nil
}

// find is what is remembered of an attachment. The runtime's key has the name of the
// configuration in it, but a file may be renamed while containers run: without a
// record of the name, those of others are its.
func (c cniRecords) find(a types.GCAttachment) ([]cni.Kept, error) {
	all, err := c.all()
	if err != nil {
		return nil, err
	}
	return cni.Find(all, c.name, a), nil
}

func (c cniRecords) read(name, file string) (cni.Kept, error) {
	f, err := os.OpenFile(c.path(name, file), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return cni.NewKept(name, file, nil), nil
	}
	if err != nil {
		return cni.Kept{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil && !errors.Is(err, unix.EISDIR) {
		return cni.Kept{}, err
	}
	return cni.NewKept(name, file, data), nil
}

// write replaces the record's file, and never follows a link that lies there.
func (c cniRecords) write(r cni.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := c.path(r.Name, r.File())
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), recordTemp+"*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(data, '\n'))
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(tmp.Name()))
	}
	return err
}

func (c cniRecords) remove(k cni.Kept) error {
	if err := os.Remove(c.path(k.Name, k.File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sweep removes the configuration's temporary files of calls that were killed.
func (c cniRecords) sweep() error {
	files, err := entries(c.path(c.name, ""))
	errs := []error{err}
	for _, file := range files {
		if info, err := file.Info(); err == nil && strings.HasPrefix(file.Name(), recordTemp) && time.Since(info.ModTime()) > recordTempAge {
			errs = append(errs, os.Remove(c.path(c.name, file.Name())))
		}
	}
	return errors.Join(errs...)
}

// entries are those of a directory, none of one that is not there.
func entries(dir string) ([]fs.DirEntry, error) {
	out, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, err
}

// choose says which addresses to release. It is called while the store is locked: what
// it reads of the records then is not older than the addresses.
type choose func() (func(cni.Reserved) bool, error)

// ownedBy chooses one attachment's addresses.
func ownedBy(a types.GCAttachment) choose {
	return func() (func(cni.Reserved) bool, error) {
		return func(s cni.Reserved) bool { return s.Owner == a }, nil
	}
}

// orphans chooses those that no record and none of the valid attachments account for.
func (c cniRecords) orphans(valid []types.GCAttachment) choose {
	return func() (func(cni.Reserved) bool, error) {
		all, err := c.all()
		return func(s cni.Reserved) bool { return len(cni.Orphans([]cni.Reserved{s}, all, valid)) > 0 }, err
	}
}

// releaseAddresses takes addresses out of host-local's stores.
func releaseAddresses(dataDir string, which choose) error {
	stores, err := entries(cni.AddressDir(dataDir))
	errs := []error{err}
	for _, store := range stores {
		_, err := releaseFrom(filepath.Join(cni.AddressDir(dataDir), store.Name()), which)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// releaseFrom takes addresses out of a store, which is kept from change meanwhile, by
// the lock that host-local takes as well. It says how many it took.
func releaseFrom(store string, which choose) (int, error) {
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
	there, err := reservedIn(store)
	if err != nil {
		return 0, err
	}
	var errs []error
	n := 0
	for path, s := range there {
		if chosen(s) {
			n++
			errs = append(errs, os.Remove(path))
		}
	}
	return n, errors.Join(errs...)
}

// reservedIn is what a store says of its addresses, by file; nothing of a store that
// is not there.
func reservedIn(store string) (map[string]cni.Reserved, error) {
	files, err := entries(store)
	if err != nil {
		return nil, err
	}
	out := map[string]cni.Reserved{}
	for _, file := range files {
		path := filepath.Join(store, file.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if s, ok := cni.ParseReserved(path, data); ok {
			out[path] = s
		}
	}
	return out, nil
}
