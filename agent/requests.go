package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// renewNow renews the session of this host's lease before it is due, under the caller's token.
func (r *runner) renewNow(ctx context.Context, token string) (api.Renewal, error) {
	lease, held, _ := r.lease.Get()
	if !held {
		return api.Renewal{}, &api.Error{Code: http.StatusConflict, Message: fmt.Sprintf(
			"network %s: this host holds no lease to renew: %s", r.local.Name, r.shown().local.State)}
	}
	asked := time.Now() // the session lives for at least a TTL from now
	err := r.env.registry.As(token).Renew(ctx, lease)
	if errors.Is(err, registry.ErrLeaseLost) {
		r.ended.Set(lease.Session)
		return api.Renewal{}, &api.Error{Code: http.StatusConflict, Message: err.Error() + "; the agent takes the lease back"}
	}
	if err != nil {
		return api.Renewal{}, err
	}
	r.renewed(asked, nil)
	return api.Renewal{Subnet: lease.Subnet(), Renewed: asked.UTC(), SafeUntil: asked.Add(r.config.Lease.TTL).UTC()}, nil
}

// releaseWait is how long requestRelease waits for a runner that is between two rounds.
const releaseWait = 2 * time.Second

// requestRelease releases this host's lease under the caller's token and leaves the network. It blocks until the
// request is carried out or refused.
func (r *runner) requestRelease(ctx context.Context, token string) error {
	request := &releaseRequest{token: token, done: make(chan error, 1)}
	busy := func(why string) error {
		return &api.Error{Code: http.StatusServiceUnavailable, Message: fmt.Sprintf(
			"network %s: the lease cannot be released now: %s", r.local.Name, why)}
	}
	stopped := busy("this host's part in the network is being stopped")
	waiting := time.NewTimer(releaseWait)
	defer waiting.Stop()
	select {
	case r.releases <- request:
	case <-r.done:
		return stopped
	case <-waiting.C:
		return busy(r.shown().local.State)
	case <-ctx.Done():
		return ctx.Err()
	}
	defer r.fresh.invalidate() // the runner no longer watches the leases
	select {
	case err := <-request.done:
		return err
	case <-r.done:
		return stopped
	case <-ctx.Done():
		return ctx.Err()
	}
}
