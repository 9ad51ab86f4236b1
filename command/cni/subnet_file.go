package cni

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
)

// maxSubnetFile is many times the size of a subnet file.
const maxSubnetFile = 1 << 16

// readFacts reads a subnet file; why explains a missing one.
func (p *plugin) readFacts(network, path, why string) (facts, error) {
	if !isName(network) {
		return facts{}, internal(fmt.Errorf("subnet file %s: %q is not the name of a network", path, network))
	}
	text, err := p.readTrusted(path)
	if errors.Is(err, fs.ErrNotExist) {
		return facts{}, notReady(fmt.Sprintf("network %s has no subnet file %s: %s", network, path, why))
	}
	if err != nil {
		return facts{}, internal(fmt.Errorf("subnet file: %w", err))
	}
	f := facts{Network: network, Path: path}
	if f.SubnetFile, err = state.ParseSubnetFile(text); err == nil {
		err = f.checkRanges()
	}
	if err != nil {
		return facts{}, internal(fmt.Errorf("subnet file %s: %w", path, err))
	}
	return f, nil
}

// readTrusted reads a file that only trusted users can have written or replaced. root acts on its
// content, and while no agent runs, its path may come from any program that listens at the agent's
// address.
func (p *plugin) readTrusted(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is not an absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	trusted := p.trusted()
	for dir := "/"; ; {
		info, err := os.Lstat(dir)
		if err == nil {
			err = checkOwner(dir, ownerOf(info), trusted)
		}
		if err != nil {
			return "", err
		}
		rest, inside := strings.CutPrefix(real, strings.TrimSuffix(dir, "/")+"/")
		name, _, deeper := strings.Cut(rest, "/")
		if !inside || !deeper {
			break
		}
		dir = filepath.Join(dir, name)
	}
	// O_NONBLOCK: opening a pipe without a writer would block forever.
	file, err := os.OpenFile(real, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	if err == nil {
		err = checkOwner(path, ownerOf(info), trusted)
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSubnetFile))
	return string(text), err
}

// trusted returns the users whose subnet files are accepted: root, the caller's user, and the
// agent's user, who owns the directory of subnet files.
func (p *plugin) trusted() []int {
	out := []int{0, os.Geteuid()}
	if info, err := os.Stat(filepath.Dir(p.defaultSubnetFile("x"))); err == nil {
		out = append(out, ownerOf(info).UID)
	}
	return out
}

// defaultSubnetFile returns the default path of a network's subnet file.
func (p *plugin) defaultSubnetFile(network string) string {
	if p.runDir != "" { // set by a test
		return filepath.Join(p.runDir, filepath.Base(config.DefaultSubnetFile(network)))
	}
	return config.DefaultSubnetFile(network)
}

func ownerOf(info fs.FileInfo) fileOwner {
	o := fileOwner{UID: -1, Mode: info.Mode()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		o.UID = int(st.Uid)
	}
	return o
}
