package state

import (
	"context"
	"fmt"
	"os"
)

// An Identity is who this host is to all others. It does not change while the agent runs.
type Identity struct {
	Node   string // node name, for example "host-a"
	NodeID string // UUID from the state directory
}

// NodeName returns the configured name, or else the name that the store has for this host, or else the host name.
// inStore is registry.Abilities.NodeName. In an outage it may fail. NodeName returns the error then, because another
// name would change the host's identity.
func NodeName(ctx context.Context, configured string, inStore func(context.Context) (string, error)) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if inStore != nil {
		name, err := inStore(ctx)
		if err != nil {
			return "", fmt.Errorf("node name: %w", err)
		}
		if name != "" {
			return name, nil
		}
	}
	return os.Hostname()
}
