package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// keyring owns this host's private key, the network's preshared key, and the record that this host has used its key. It
// reads and writes their files, and knows no device.
type keyring struct {
	dir              string // the network's state directory
	keyFile, pskFile string // as the options of these names
	log              hclog.Logger

	private, psk wgtypes.Key // zero before they are read; psk also without one
	used         wgtypes.Key // that the device has
	noted        use         // what note has written
}

// change takes other options. Files are read at the next read.
func (k *keyring) change(o options) {
	if o.KeyFile != k.keyFile {
		k.private = wgtypes.Key{}
	}
	k.keyFile, k.pskFile = o.KeyFile, o.PSKFile
}

// isOperators reports whether the private key is the operator's, which leno neither creates nor replaces.
func (k *keyring) isOperators() bool { return filepath.IsAbs(k.keyFile) }

// path returns the path of the file with this host's private key.
func (k *keyring) path() string {
	if k.isOperators() {
		return k.keyFile
	}
	return filepath.Join(k.dir, k.keyFile)
}

// usePath returns the path of the file that says which key this host has used.
func (k *keyring) usePath() string { return filepath.Join(k.dir, useFile) }

// read reads the private key, which it creates in the state directory if there is none, and the preshared key. After an
// error the keys are as before. A key elsewhere must exist: otherwise, a definition could make hosts
// create files anywhere.
func (k *keyring) read() error {
	path, created := k.path(), false
	var key wgtypes.Key
	var err error
	if k.isOperators() {
		if key, err = readKey(path); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: create it with `wg genkey`, as root and with mode 0600, or leave key_file out", err)
		}
		key = clamped(key)
	} else {
		key, created, err = ensureKey(path, k.private)
	}
	if err != nil {
		return fmt.Errorf("key_file: %w", err)
	}
	psk := wgtypes.Key{}
	if k.pskFile != "" {
		if psk, err = readKey(k.pskFile); err != nil {
			return fmt.Errorf("psk_file: %w", err)
		}
	}
	if created {
		k.log.Info("private key created", "file", path, "public_key", key.PublicKey())
	}
	k.private, k.psk = key, psk
	return nil
}

// need reads the keys unless they are known.
func (k *keyring) need() error {
	if k.private != (wgtypes.Key{}) {
		return nil
	}
	return k.read()
}

// forgetUse forgets that the device has the key, because there is no device.
func (k *keyring) forgetUse() { k.used, k.noted = wgtypes.Key{}, use{} }

// isInUse reports whether this host used its key before another host published it: the device got it from this process,
// or had it when this host had the same lease.
func (k *keyring) isInUse(own use) bool {
	if k.used == k.private {
		return true
	}
	text, err := os.ReadFile(k.usePath())
	return own.lease != 0 && err == nil && string(text) == own.text()
}

// note records that this host uses its key, if the device has it, now or since before. It only logs a failure, because
// the file matters only if another host has the same key.
func (k *keyring) note(own use, now bool) {
	if now {
		k.used = k.private
	}
	if k.used != k.private || own.lease == 0 || own == k.noted {
		return
	}
	if err := writeFile(k.usePath(), own.text()); err != nil {
		k.log.Debug("the use of the key could not be written down", "error", err)
		return
	}
	k.noted = own
}

// renounce gives up a key that another host published before this host used it, for example because one host was copied
// from the other. With the same key, either host would receive the other's packets. The agent publishes the new key
// after the next Advertise. The operator's file stays as it is.
func (k *keyring) renounce(twin string) error {
	if k.isOperators() {
		return fmt.Errorf("the key in %s is that of node %s too: one of the hosts needs another key", k.keyFile, twin)
	}
	if err := k.delete(); err != nil {
		return fmt.Errorf("the key in %s is that of node %s too: %w", k.path(), twin, err)
	}
	k.private = wgtypes.Key{}
	if err := k.read(); err != nil {
		return err
	}
	k.log.Warn("private key was that of another host, created another one", "peer", twin)
	return fmt.Errorf("the key in %s was that of node %s too: it was replaced, and the lease follows", k.path(), twin)
}

// replace gives up the key, unless it is the operator's. The next read creates another one.
func (k *keyring) replace() error {
	if k.isOperators() {
		return nil
	}
	if err := k.delete(); err != nil {
		return fmt.Errorf("key_file: %w", err)
	}
	k.log.Info("this host has missed a key rotation, replacing its key")
	k.private = wgtypes.Key{}
	return nil
}

// remove deletes all files but the operator's, and the state directory if it is empty then.
func (k *keyring) remove() error {
	_ = os.Remove(k.usePath())
	if !k.isOperators() {
		if err := k.delete(); err != nil {
			return fmt.Errorf("key_file: %w", err)
		}
	}
	_ = os.Remove(k.dir) // if there is nothing else in it
	return nil
}

// delete deletes the file with the private key, if there is one.
func (k *keyring) delete() error {
	if err := os.Remove(k.path()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
