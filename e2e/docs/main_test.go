// Package docs tests the documentation: it compares its tables with the code, loads its
// configurations and runs its commands.
package docs

import (
	"os"
	"testing"

	"github.com/lenonet/leno/e2e/world"
)

func TestMain(m *testing.M) {
	os.Exit(world.Main(m))
}
