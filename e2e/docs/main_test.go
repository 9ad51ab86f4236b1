// Package docs runs the commands of the documentation on hosts. Tests that only read the pages are in e2e/docpages, and
// those of generated tables in e2e/cmd/reference.
package docs

import (
	"os"
	"testing"

	"github.com/lenonet/leno/e2e/world"
)

func TestMain(m *testing.M) {
	os.Exit(world.Main(m))
}
