package wireguard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// longestKeyFile is the maximum number of bytes read from a key file. A key has 44 characters and a newline.
const longestKeyFile = 256

// readKey reads a key from a file that only its owner may read. The error names the file and wraps fs.ErrNotExist if
// there is none.
func readKey(path string) (wgtypes.Key, error) {
	// Without O_NONBLOCK, opening a named pipe would block.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return wgtypes.Key{}, err // names the file
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return wgtypes.Key{}, err
	case !info.Mode().IsRegular():
		return wgtypes.Key{}, fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return wgtypes.Key{},
			fmt.Errorf("%s can be read or written by others (mode %04o): run chmod 600 %s, and replace the key if they may "+
				"have read it",
				path, info.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(file, longestKeyFile))
	if err != nil {
		return wgtypes.Key{}, err
	}
	key, err := parseKey(string(text))
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("the key in %s %w", path, err)
	}
	return key, nil
}

// checkFiles returns an error for each option with an absolute path of a file that has no usable key. The file of a
// relative path is leno's.
func checkFiles(raw json.RawMessage) map[string]error {
	wrong := map[string]error{}
	o, err := decode(raw)
	if err != nil {
		return wrong
	}
	for option, path := range map[string]string{"key_file": o.KeyFile, "psk_file": o.PSKFile} {
		if !filepath.IsAbs(path) {
			continue
		}
		if _, err := readKey(path); err != nil {
			wrong[option] = err
		}
	}
	return wrong
}

// ensureKey returns the private key in a file. If there is no file, it writes known, or a new key if known is zero.
func ensureKey(path string, known wgtypes.Key) (key wgtypes.Key, created bool, err error) {
	key, err = readKey(path)
	if err == nil {
		return clamped(key), false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	if key = known; key == (wgtypes.Key{}) {
		if key, err = wgtypes.GeneratePrivateKey(); err != nil {
			return key, false, err
		}
	}
	return key, true, writeKey(path, key)
}

// clamped returns a private key as WireGuard uses and shows it (RFC 7748, 5). Files may have it in another form.
func clamped(key wgtypes.Key) wgtypes.Key {
	key[0] &= 248
	key[31] = key[31]&127 | 64
	return key
}

// writeKey writes a key to a file that does not exist. After a crash the file has the whole key, or does not exist.
func writeKey(path string, key wgtypes.Key) error { return writeFile(path, key.String()+"\n") }

// useFile is the name of the file that says which key a host has used.
const useFile = "wireguard.used"

// A use is a key that this host has used.
type use struct {
	public wgtypes.Key
	lease  uint64 // the precedence of its lease at that time
}

// text is what the file says.
func (u use) text() string { return fmt.Sprintf("%s %d\n", u.public, u.lease) }

// writeFile writes a file that only its owner can read. After a crash, the file is complete or unchanged.
func writeFile(path, text string) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name()) // the error says more
		}
	}()
	_, err = file.WriteString(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
