package state

import (
	"context"
	"fmt"
	"os"

	"github.com/lenonet/leno/registry"
)

// An Identity is who this host is to all others. It does not change while the agent runs.
type Identity struct {
	Node   string // node name, for example "host-a"
	NodeID string // UUID from the state directory
}

// NodeName returns the configured name, or else the name that the store has for this host, or else the host name. store
// may implement registry.NodeNamer. In an outage it may fail. NodeName returns the error then, because another name
// would change the host's identity.
func NodeName(ctx context.Context, configured string, store any) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if namer, ok := store.(registry.NodeNamer); ok {
		name, err := namer.NodeName(ctx)
		if err != nil {
			return "", fmt.Errorf("node name: %w", err)
		}
		if name != "" {
			return name, nil
		}
	}
	return os.Hostname()
}
