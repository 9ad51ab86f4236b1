package restarts

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// Boot simulates a boot of the host. Its agent ends, everything that leno had in the kernel and in
// /run is gone, including firewall rules and sysctls, and a container runtime has already started
// its containers. If lost is true, the state directory is gone as well. Then Boot starts the agent
// and returns how long it took until a container on the other host had an answer in each family.
func (s *Site) Boot(ctx context.Context, lost bool) (took time.Duration, err error) {
	var echoes []*lab.Echoes
	defer func() {
		var g errgroup.Group
		for _, e := range echoes {
			g.Go(func() error {
				_, err := e.Stop()
				return err
			})
		}
		err = errors.Join(err, g.Wait())
	}()
	for _, addr := range s.To.Addrs {
		e, err := s.From.StartEchoes(ctx, addr, Every)
		if err != nil {
			return 0, err
		}
		echoes = append(echoes, e)
	}
	if err := errors.Join(s.Host.KillAgent(), s.wipe(ctx, lost)); err != nil {
		return 0, err
	}
	for _, e := range echoes {
		if err := silent(ctx, e); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	if err := s.Host.RestartAgent(); err != nil {
		return 0, err
	}
	for _, e := range echoes {
		at, err := e.Answered(ctx, began)
		if err != nil {
			return 0, err
		}
		took = max(took, at.Sub(began))
	}
	return took, errors.Join(s.Host.WaitReady(ctx), s.healthy(ctx))
}

// silent blocks until no more pings are answered.
func silent(ctx context.Context, e *lab.Echoes) error {
	return lab.WaitFor(ctx, "answers to end", func(ctx context.Context) error {
		now := time.Now()
		if err := lab.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		if _, ok := e.AnsweredSince(now); ok {
			return errors.New("there are some")
		}
		return nil
	})
}

func (s *Site) wipe(ctx context.Context, lost bool) error {
	if err := errors.Join(s.Host.Wipe(ctx), os.Remove(s.subnetFile())); err != nil || !lost {
		return err
	}
	return os.RemoveAll(s.Host.DataDir())
}
