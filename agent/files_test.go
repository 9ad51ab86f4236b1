package agent

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/lenonet/leno/registry/memory"
)

// TestSubnetFileElsewhere: an agent that starts with another subnet_file removes the former file, if that is a subnet
// file and belongs to no other network now.
func TestSubnetFileElsewhere(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		old := a.config.Networks[0].SubnetFile
		for _, tt := range []struct {
			name  string
			text  string // replaces what the agent wrote
			stays bool
		}{
			{name: "ours"},
			{name: "another program's", text: "PATH=/bin\n", stays: true},
		} {
			a.config.Networks[0].SubnetFile = old
			process := a.start()
			a.ready()
			must(t, process.stop())
			if tt.text != "" {
				must(t, os.WriteFile(old, []byte(tt.text), 0o644))
			}
			a.config.Networks[0].SubnetFile = old + ".new"
			process = a.start()
			a.ready()
			eventually(t, func() error {
				if !exists(old + ".new") {
					return errors.New("no new one")
				}
				if exists(old) != tt.stays {
					return fmt.Errorf("%s: the old one is there: %t", tt.name, exists(old))
				}
				return nil
			})
			must(t, process.stop())
		}
	})
}
