package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// readKeys reads the private key, which it creates in the state directory if there is none, and the preshared key. After an
// error the keys are as before. A key elsewhere must exist: otherwise, a definition could make hosts
// create files anywhere.
func (b *Backend) readKeys() error {
	path, created := b.keyPath(), false
	var key wgtypes.Key
	var err error
	if filepath.IsAbs(b.options.KeyFile) {
		if key, err = readKey(path); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: create it with `wg genkey`, as root and with mode 0600, or leave key_file out", err)
		}
		key = clamped(key)
	} else {
		key, created, err = ensureKey(path, b.key)
	}
	if err != nil {
		return fmt.Errorf("key_file: %w", err)
	}
	psk := wgtypes.Key{}
	if b.options.PSKFile != "" {
		if psk, err = readKey(b.options.PSKFile); err != nil {
			return fmt.Errorf("psk_file: %w", err)
		}
	}
	if created {
		b.config.Logger.Info("private key created", "file", path, "public_key", key.PublicKey())
	}
	b.key, b.psk = key, psk
	return nil
}

// keyPath returns the path of the file with this host's private key.
func (b *Backend) keyPath() string {
	if filepath.IsAbs(b.options.KeyFile) {
		return b.options.KeyFile
	}
	return filepath.Join(b.config.DataDir, b.options.KeyFile)
}

// usePath returns the path of the file that says which key this host has used.
func (b *Backend) usePath() string { return filepath.Join(b.config.DataDir, useFile) }

// isInUse reports whether this host used its key before another host published it: the device has the key, or had it when
// this host had the same lease.
func (b *Backend) isInUse(own use) bool {
	if b.used == b.key || own.lease != 0 && readUse(b.usePath()) == own {
		return true
	}
	link, err := b.handle.Link(b.config.Link)
	if err != nil || link == nil || !isKernel(link) {
		return false
	}
	state, err := kernelState(b.config.Link)
	return err == nil && state.PrivateKey == b.key
}

// noteUse records that this host uses its key. It only logs a failure, because the file matters only if another host
// has the same key.
func (b *Backend) noteUse(own use) {
	if b.used != b.key || own.lease == 0 || own == b.noted {
		return
	}
	if err := writeUse(b.usePath(), own); err != nil {
		b.config.Logger.Debug("the use of the key could not be written down", "error", err)
		return
	}
	b.noted = own
}

// renounce gives up a key that another host published before this host used it, for example because one host was copied
// from the other. With the same key, either host would receive the other's packets. The agent publishes the new key
// after the next Advertise. The operator's file stays as it is.
func (b *Backend) renounce(twin string) error {
	if filepath.IsAbs(b.options.KeyFile) {
		return fmt.Errorf("the key in %s is that of node %s too: one of the hosts needs another key", b.options.KeyFile, twin)
	}
	if err := b.deleteKey(); err != nil {
		return fmt.Errorf("the key in %s is that of node %s too: %w", b.keyPath(), twin, err)
	}
	b.key = wgtypes.Key{}
	if err := b.readKeys(); err != nil {
		return err
	}
	b.config.Logger.Warn("private key was that of another host, created another one", "peer", twin)
	return fmt.Errorf("the key in %s was that of node %s too: it was replaced, and the lease follows", b.keyPath(), twin)
}

// Rekey implements backend.Rekeyer.
func (b *Backend) Rekey() error {
	if filepath.IsAbs(b.options.KeyFile) {
		return nil
	}
	if err := b.deleteKey(); err != nil {
		return fmt.Errorf("key_file: %w", err)
	}
	b.config.Logger.Info("this host has missed a key rotation, replacing its key")
	b.key = wgtypes.Key{}
	return nil
}

// removeKey removes the private key that is below the network's state directory, and the directory if it is empty then.
func (b *Backend) removeKey() error {
	_ = os.Remove(b.usePath())
	if !filepath.IsAbs(b.options.KeyFile) {
		if err := b.deleteKey(); err != nil {
			return fmt.Errorf("key_file: %w", err)
		}
	}
	_ = os.Remove(b.config.DataDir) // if there is nothing else in it
	return nil
}

// deleteKey deletes the file with the private key, if there is one.
func (b *Backend) deleteKey() error {
	if err := os.Remove(b.keyPath()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
