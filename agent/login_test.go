package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// loggingIn is a store that logs in.
type loggingIn struct {
	registry.Registry

	mu       sync.Mutex
	method   string
	err      error
	logins   int
	changed  chan struct{}
	loggedIn bool
}

func (s *loggingIn) set(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.method, s.err = method, err
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *loggingIn) Abilities() registry.Abilities {
	can := s.Registry.Abilities()
	can.Logins = s
	return can
}

func (s *loggingIn) RenewLogin(context.Context) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logins++
	s.loggedIn = s.loggedIn || s.err == nil
	return time.Now().Add(100 * time.Millisecond), s.err
}

func (s *loggingIn) AuthMethod() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.method
}

func (s *loggingIn) LoginChanged() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *loggingIn) Logout(ctx context.Context) error {
	s.mu.Lock()
	s.loggedIn = false
	s.mu.Unlock()
	<-ctx.Done() // it hangs
	return ctx.Err()
}

// TestLogin: the agent renews its login again and again, its check tells whether that works and exists only with a
// login, and a store that hangs at the logout does not keep the agent from ending.
func TestLogin(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		store := &loggingIn{Registry: a.registry, method: "nomad", changed: make(chan struct{})}
		a.catalog = store
		a.start()
		check := func(what string, ok func(c api.Check) bool) {
			t.Helper()
			eventually(t, func() error {
				report, _ := a.agent.env.Reports.Health.Report()
				var login api.Check
				for _, c := range report.Checks {
					if c.Name == health.Login {
						login = c
					}
				}
				return expect(ok(login), "no %s: %+v", what, login)
			})
		}
		check("the login", func(c api.Check) bool { return c.Status == api.Passing && strings.Contains(c.Reason, "nomad") })
		a.more("logins", 5, func() int {
			store.mu.Lock()
			defer store.mu.Unlock()
			return store.logins
		})
		refused := &registry.LoginError{Err: errors.New("consul says no"), Remedy: "create it"}
		store.set("nomad", refused)
		check("a refusal", func(c api.Check) bool {
			return c.Status == api.Warning && c.Reason == "consul says no; create it"
		})
		store.set("nomad", nil)
		check("another login", func(c api.Check) bool { return c.Status == api.Passing })
		store.set("", nil)
		check("end of the check", func(c api.Check) bool { return c.Name == "" })
		began := time.Now()
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < logoutTimeout || took > logoutTimeout+10*time.Second || store.loggedIn {
			t.Errorf("stopped after %s, logged in %t", took, store.loggedIn)
		}
	})
}
