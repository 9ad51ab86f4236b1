package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// getSwitch returns how far a network has been switched to another backend.
func (h networkHandlers) getSwitch(r *http.Request) (out api.NetworkSwitch, err error) {
	n, err := h.requestedNetwork(r)
	if err != nil {
		return out, err
	}
	return h.progress(r.Context(), n)
}

// progress returns how far the hosts have followed the switch of a network.
func (h networkHandlers) progress(ctx context.Context, n registry.Network) (api.NetworkSwitch, error) {
	set, err := h.recentLeases(ctx, n)
	return definition.Progress(n, set.Leases, h.backends), err
}

// changeSwitch changes where a switch is going, or begins one to new keys.
func (h networkHandlers) changeSwitch(r *http.Request) (out api.NetworkSwitch, err error) {
	var body struct {
		Action string `json:"action"`
	}
	if err := readBody(r, &body); err != nil {
		return out, err
	}
	n, err := h.requestedNetwork(r)
	if err != nil {
		return out, err
	}
	name, store := n.Name, h.storeFor(r)
	from, err := h.readBase(r.Context(), store, name)
	if err != nil {
		return out, err
	}
	known, _ := h.agent.Networks()
	changed, err := definition.ChangeSwitch(from.Network, body.Action, time.Now(), known.Networks, h.backends)
	if err == nil && (body.Action == api.EndSwitch || body.Action == api.RotateKeys) {
		err = h.checkFollowers(r.Context(), from.Network, changed)
	}
	if errors.Is(err, definition.ErrSwitch) {
		err = api.Errorf(http.StatusConflict, "%v", err)
	}
	if err != nil {
		return out, err
	}
	if err := store.PutNetwork(r.Context(), from.replacement(changed)); err != nil {
		return out, err
	}
	if n, err = h.readWritten(r.Context(), store, name); err != nil {
		return out, err
	}
	return h.progress(r.Context(), n)
}

// checkFollowers returns an error if hosts cannot follow a changed switch.
func (h networkHandlers) checkFollowers(ctx context.Context, from, changed registry.Network) error {
	set, err := h.readLeases(ctx, from)
	if err != nil {
		return err
	}
	return definition.CheckFollowers(from, changed, set.Leases, h.backends)
}
