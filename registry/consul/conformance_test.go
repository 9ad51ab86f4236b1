package consul

import (
	"testing"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/registrytest"
)

type suiteStore struct{ *store }

func (s suiteStore) Open(tb testing.TB) registry.Registry { return s.open(tb) }

func TestConformance(t *testing.T) {
	registrytest.Run(t, func(t *testing.T) registrytest.Store { return suiteStore{newStore(t)} })
}
