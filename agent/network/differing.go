package network

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lenonet/leno/agent/config"
)

// Differing returns a sentence which says that a network's block has no effect where it differs from the definition in
// the store, and which command makes it take effect.
func Differing(c config.Config, network string, differs []string) string {
	return fmt.Sprintf("the definition in %s stays in force, and the block differs from it: %s; "+
		"to change the network on all hosts, run: leno network apply %s",
		c.StoreName(), strings.Join(differs, "; "), blockFile(c, network))
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
