package agent

import (
	"context"
	"fmt"
	"os"

	"github.com/lenonet/leno/registry"
)

// nodeName returns the configured name, or else the store's name of this host, or else the host name. Asking the store
// may fail in an outage. The error is returned then, because another name would change the host's identity.
func nodeName(ctx context.Context, configured string, reg registry.Registry) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if namer, ok := reg.(registry.NodeNamer); ok {
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
