// Package docs holds the tests of the documentation: its tables are compared with the
// code, its configurations are loaded, and its commands are run.
package docs

import (
	"os"
	"testing"

	"github.com/lenonet/leno/e2e/world"
)

func TestMain(m *testing.M) {
	os.Exit(world.Main(m))
}
