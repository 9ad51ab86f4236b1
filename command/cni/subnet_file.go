package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/command/trusted"
)

// readFacts reads a subnet file; why explains a missing one.
func (p *plugin) readFacts(network, path, why string) (facts, error) {
	if !isName(network) {
		return facts{}, internalError(fmt.Errorf("subnet file %s: %q is not the name of a network", path, network))
	}
	text, err := trusted.ReadFile(path, p.trustedUsers()...)
	if errors.Is(err, fs.ErrNotExist) {
		return facts{}, notReadyError(fmt.Sprintf("network %s has no subnet file %s: %s", network, path, why))
	}
	if err != nil {
		return facts{}, internalError(fmt.Errorf("subnet file: %w", err))
	}
	f := facts{Network: network, Path: path}
	if f.SubnetFile, err = state.ParseSubnetFile(text); err == nil {
		err = f.checkRanges()
	}
	if err != nil {
		return facts{}, internalError(fmt.Errorf("subnet file %s: %w", path, err))
	}
	return f, nil
}

// trustedUsers returns the users whose subnet files are accepted: root, the caller's user, and the
// agent's user, who owns the directory of subnet files.
func (p *plugin) trustedUsers() []int { return trusted.Users(filepath.Dir(p.defaultSubnetFile("x"))) }

// defaultSubnetFile returns the default path of a network's subnet file.
func (p *plugin) defaultSubnetFile(network string) string {
	if p.runDir != "" { // set by a test
		return filepath.Join(p.runDir, filepath.Base(config.DefaultSubnetFile(network)))
	}
	return config.DefaultSubnetFile(network)
}
