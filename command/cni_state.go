package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/command/cni"
)

// cniRecords are the files of what is remembered of a configuration's attachments; of
// all configurations with name "".
type cniRecords struct{ dataDir, name string }

func (c cniRecords) path(file string) string {
	return filepath.Join(cni.AttachmentDir(c.dataDir, c.name), file)
}

func (c cniRecords) read(containerID, ifName string) (r cni.Record, found bool, err error) {
	data, err := os.ReadFile(c.path(cni.RecordFile(containerID, ifName)))
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, err
	}
	if r, err = cni.ParseRecord(data); err != nil { // nothing to be learned from it
		return r, false, nil
	}
	return r, true, nil
}

func (c cniRecords) write(r cni.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := c.path(r.File())
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// The directory may be below one that another user owns: a link is replaced, never
	// followed.
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new.*")
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

func (c cniRecords) remove(r cni.Record) error {
	if err := os.Remove(c.path(r.File())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// all reads every record. One that cannot be read is passed over.
func (c cniRecords) all() ([]cni.Record, error) {
	pattern := "*"
	if c.name == "" {
		pattern = "*/*"
	}
	paths, err := filepath.Glob(c.path(pattern))
	if err != nil {
		return nil, err
	}
	var out []cni.Record
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if r, err := cni.ParseRecord(data); err == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// releaseAddresses takes addresses out of host-local's stores, which are kept from
// change meanwhile, by the lock that host-local takes as well.
func releaseAddresses(dataDir string, which func(cni.Reserved) bool) error {
	stores, err := filepath.Glob(filepath.Join(cni.AddressDir(dataDir), "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, store := range stores {
		errs = append(errs, releaseFrom(store, which))
	}
	return errors.Join(errs...)
}

func releaseFrom(store string, which func(cni.Reserved) bool) (err error) {
	lock, err := os.OpenFile(filepath.Join(store, "lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	files, err := os.ReadDir(store)
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		path := filepath.Join(store, file.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if s, ok := cni.ParseReserved(path, data); ok && which(s) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}
