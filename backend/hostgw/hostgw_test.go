package hostgw

import (
	"testing"

	"github.com/lenonet/leno/backend/backendtest"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Suite{Type: Type()})
}
