package network

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Differing returns a sentence which says that a network's block has no effect where it differs from n, the definition
// in the store, and which command makes it take effect. It names no command that would end required encryption.
func Differing(c config.Config, block config.Network, n registry.Network, differs []string) string {
	remedy := "to change the network on all hosts, run: leno network apply"
	if definition.DropsEncryption(n, registry.Network{Encryption: block.Encryption}) {
		remedy = "the network requires encryption and the block does not: correct the block in"
	}
	return fmt.Sprintf("the definition in %s stays in force, and the block differs from it: %s; %s %s",
		c.StoreName(), strings.Join(differs, "; "), remedy, blockFile(c, block.Name))
}

// blockFile returns the path of the file with a network's block, quoted for a shell if necessary, or "FILE" if the path
// is not known.
func blockFile(c config.Config, network string) string {
	file := c.NetworkFiles[network]
	if file == "" {
		return "FILE"
	}
	if whole, err := filepath.Abs(file); err == nil {
		file = whole
	}
	if strings.ContainsAny(file, " \t'\"\\$`*?[]{}()<>|&;#~!") {
		return "'" + strings.ReplaceAll(file, "'", `'\''`) + "'"
	}
	return file
}

// unusable says that the definition in the store has no effect because of err.
func unusable(network string, err error) string {
	return "the definition in the store cannot be used, the one before stays in force: " +
		registry.Shorten(strings.TrimPrefix(err.Error(), "network "+network+": "), registry.MaxShownReason)
}

// declined says how the definition in the store differs from the one in force, and why it has no effect: flannel's
// operator changed the network. flanneld reads its configuration only when it starts, so hosts that follow at once part
// from those that run flannel.
func declined(store string, inForce, stored registry.Network, kinds map[string]backend.Type) string {
	changes := strings.Join(definition.DescribeChanges(inForce, stored, kinds), "; ")
	return fmt.Sprintf("flannel's configuration in %s was changed (%s): the definition before stays in force, since "+
		"flanneld reads its configuration only when it starts; write the old one back, or preview the change with `leno "+
		"network plan FILE`, make it with `leno network apply FILE`, and restart flanneld on each host that runs it",
		store, changes)
}
