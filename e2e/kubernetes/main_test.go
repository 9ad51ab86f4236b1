// Package kubernetes tests hosts that are nodes of a real API server, with its faults under traffic.
package kubernetes

import (
	"os"
	"testing"

	"github.com/lenonet/leno/e2e/world"
)

func TestMain(m *testing.M) {
	os.Exit(world.Main(m))
}
