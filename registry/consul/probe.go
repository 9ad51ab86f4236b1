package consul

import (
	"context"
	"fmt"

	"github.com/lenonet/leno/registry"
)

var _ registry.Prober = (*Client)(nil)

// Probe implements registry.Prober: a consistent read of one small key under the
// token, which may read the networks. It is consistent because a leader that was
// just elected answers other reads before it has applied its log, with what is
// old or nothing at all: what returns then finds its records and sessions gone.
// It costs the leader a heartbeat to the others, no disk, and moves no index.
func (c *Client) Probe(ctx context.Context) error {
	if _, _, err := c.get(ctx, c.layout.networks()+markerName, read{consistent: true}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}
