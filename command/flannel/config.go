package flannel

import (
	"fmt"

	format "github.com/lenonet/leno/registry/flannel"
)

// parseConfig parses a network configuration. notes are about settings that are not carried over.
func parseConfig(text string) (c format.Config, notes []string, err error) {
	c, unknown, err := format.ParseConfig([]byte(text))
	if err != nil {
		return c, nil, err
	}
	for _, name := range unknown {
		notes = append(notes, fmt.Sprintf("%s is no setting of flannel's that leno knows, and is left out", name))
	}
	if c.EnableNFTables {
		notes = append(notes,
			"EnableNFTables is not carried over: each agent takes the kind of firewall its host has, see `leno status`")
	}
	return c, notes, nil
}
