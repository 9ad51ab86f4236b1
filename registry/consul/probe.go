package consul

import (
	"context"
	"fmt"
)

// Probe implements registry.Prober with a consistent read of one small key, for which the token needs the right to read
// the networks. The read is consistent because a newly elected leader answers other reads before it has applied its
// log, with old records or none, so a returning host would not find its records and sessions. The read costs the leader
// one heartbeat to the other servers and no disk access, and changes no index.
func (c *Client) Probe(ctx context.Context) error {
	if _, _, err := c.kv.get(ctx, c.layout.networks()+markerName, read{consistent: true}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}
