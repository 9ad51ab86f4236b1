package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// ErrReleased means that the lease was released by request. No claim follows.
var ErrReleased = errors.New("the lease was released by request")

// ReleasedAdvice is the state of a network whose lease was released by request, with what to do about it.
const ReleasedAdvice = "released by request, restart or reload the agent to join again"

// releaseWait is how long Release waits for a caller of ServeReleases that is between two rounds.
const releaseWait = 2 * time.Second

// A releaseRequest asks for the release of the lease under a token.
type releaseRequest struct {
	token string
	done  chan error // buffered for one answer
}

// releases holds the requests for a release, and keeps claims and releases apart.
type releases struct {
	requests chan *releaseRequest
	closed   chan struct{} // when no request will be served any more
	close    func()        // closes it, also when called again

	mu      sync.Mutex      // held during every claim and during a release, after which no claim may follow
	granted *releaseRequest // nil while there is none
}

func newReleases() releases {
	closed := make(chan struct{})
	return releases{
		requests: make(chan *releaseRequest),
		closed:   closed,
		close:    sync.OnceFunc(func() { close(closed) }),
	}
}

// claim calls claim unless the lease was released. No release happens until claim has returned.
func (r *releases) claim(claim func() (registry.Lease, error)) (registry.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.granted != nil {
		return registry.Lease{}, ErrReleased
	}
	return claim()
}

// Release releases this host's lease under the caller's token. It blocks until the request is refused, or until
// ConfirmRelease says that the host has left the network.
func (k *Keeper) Release(ctx context.Context, token string) error {
	request := &releaseRequest{token: token, done: make(chan error, 1)}
	busy := func(why string) error {
		return &api.Error{
			Code:    http.StatusServiceUnavailable,
			Message: fmt.Sprintf("network %s: the lease cannot be released now: %s", k.o.Network, why),
		}
	}
	stopped := busy("this host's part in the network is being stopped")
	waiting := time.NewTimer(releaseWait)
	defer waiting.Stop()
	select {
	case k.releases.requests <- request:
	case <-k.releases.closed:
		return stopped
	case <-waiting.C:
		return busy(k.report.State())
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-request.done:
		return err
	case <-k.releases.closed:
		return stopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ServeReleases releases the lease when a request asks for it and its token has the right. A refused request changes
// nothing. ServeReleases returns ErrReleased after a granted one, and ctx's error otherwise.
func (k *Keeper) ServeReleases(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case request := <-k.releases.requests:
			if err := k.release(ctx, request); err != nil {
				request.done <- err
				continue
			}
			return ErrReleased
		}
	}
}

func (k *Keeper) release(ctx context.Context, request *releaseRequest) error {
	k.releases.mu.Lock()
	defer k.releases.mu.Unlock()
	lease, held, _ := k.lease.Get()
	if !held {
		return noLease(k.o.Network, "release", k.report.State())
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := k.o.Registry.As(request.token).Release(ctx, lease); err != nil {
		return err
	}
	k.releases.granted = request
	return nil
}

// IsReleased reports whether the lease was released by request. While a claim is being made it blocks until the claim
// has ended.
func (k *Keeper) IsReleased() bool {
	k.releases.mu.Lock()
	defer k.releases.mu.Unlock()
	return k.releases.granted != nil
}

// ConfirmRelease answers the request that was granted: the host has left the network. It must be called once, after
// IsReleased.
func (k *Keeper) ConfirmRelease() {
	k.releases.mu.Lock()
	defer k.releases.mu.Unlock()
	k.releases.granted.done <- nil
}

// RefuseReleases refuses requests for a release until ctx ends, because the lease was released already.
func (k *Keeper) RefuseReleases(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case request := <-k.releases.requests:
			request.done <- noLease(k.o.Network, "release", k.report.State())
		}
	}
}

// Close makes Release return at once, because no request will be served any more. Calling it again does nothing.
func (k *Keeper) Close() { k.releases.close() }

// Retire gives up a lease whose subnets are not a slot of n's plan, because it belongs to another definition. Such a
// lease would block other leases forever. before is what an earlier process held, which counts if this one holds no
// lease.
func (k *Keeper) Retire(ctx context.Context, n registry.Network, before state.Network) error {
	lease := k.heldOrBefore(before)
	if lease.Session == "" || isSlotOf(n.Plan, lease) {
		return nil
	}
	k.report.Log().Warn("subnet is no longer part of the network, giving it up", "subnet", lease.Subnet())
	if err := k.GiveUp(ctx, before); err != nil {
		return fmt.Errorf("give up %s: %w", lease.Subnet(), err)
	}
	k.lease.Clear()
	k.report.Changed()
	return nil
}

// GiveUp releases the lease that this host holds, or else the one that an earlier process held before. It does nothing
// if there is none. The value of Lease stays until Reset.
func (k *Keeper) GiveUp(ctx context.Context, before state.Network) error {
	lease := k.heldOrBefore(before)
	if lease.Session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.o.Registry.Release(ctx, lease)
}

// heldOrBefore returns the lease that this host holds, or else the one of an earlier process, which this one has not
// taken over. The latter may be empty.
func (k *Keeper) heldOrBefore(before state.Network) registry.Lease {
	if lease, held, _ := k.lease.Get(); held {
		return lease
	}
	return before.LeaseOf(k.o.Identity())
}
