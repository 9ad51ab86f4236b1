package agent

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

// inTheWay stands in for a kernel without rules, unless a test sets reading.
func (h *host) inTheWay(ctx context.Context, crossings []foreign.OverlayPath, _ []foreign.UnderlayPath) ([]foreign.Obstacle, []foreign.Blockade, error) {
	h.mu.Lock()
	before := h.reading
	h.mu.Unlock()
	if before == nil {
		return nil, nil, nil
	}
	return before(ctx, crossings)
}

// TestExaminations: only one examination of a host runs at a time, however many clients ask. It reads the rules once
// for all networks, and ends when its client disconnects.
func TestExaminations(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.config.Networks = append(a.config.Networks, a.second())
		a.start().ready()
		running, ended := make(chan []foreign.OverlayPath, 2), make(chan error, 2)
		a.mu.Lock()
		a.reading = func(ctx context.Context, crossings []foreign.OverlayPath) ([]foreign.Obstacle, []foreign.Blockade, error) {
			running <- crossings
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, nil, ctx.Err()
		}
		a.mu.Unlock()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		gone := make(chan error, 1)
		go func() {
			_, err := a.client.Doctor(ctx, api.DoctorOptions{})
			gone <- err
		}()
		crossings := <-running
		var names []string
		for _, c := range crossings {
			names = append(names, c.Network.Name)
		}
		if slices.Sort(names); !slices.Equal(names, []string{"m", "n"}) {
			t.Errorf("rules were read for %q", names)
		}
		_, err := a.client.Doctor(t.Context(), api.DoctorOptions{Passive: true})
		agenttest.WantCode(t, "a second examination", err, http.StatusConflict, "running since", "try again")
		leave()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("the client got %v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the reading ended by %v", err)
		}
		obstacles := []foreign.Obstacle{obstacle("m", 1), obstacle("n", 2)}
		a.mu.Lock()
		a.reading = func(context.Context, []foreign.OverlayPath) ([]foreign.Obstacle, []foreign.Blockade, error) {
			return obstacles, nil, nil
		}
		a.mu.Unlock()
		eventually(t, func() error {
			out, err := a.client.Doctor(t.Context(), api.DoctorOptions{Passive: true})
			if err == nil {
				for _, f := range out.Findings {
					if f.Check == "rules" && f.Status == api.FindingFault {
						names = append(names, f.Network)
					}
				}
			}
			return err
		})
		if names = names[2:]; !slices.Equal(names, []string{"m", "n"}) && !slices.Equal(names, []string{"n", "m"}) {
			t.Errorf("findings about rules in the way name networks %q", names)
		}
		if len(running) > 0 {
			t.Errorf("the rules were read %d times more", len(running))
		}
	})
}
