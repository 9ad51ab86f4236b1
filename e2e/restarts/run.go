package restarts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// Every is the interval between two pings of a family: 1,000 per second.
const Every = time.Millisecond

// between is the minimum number of answered pings of each family between two rounds.
const between = 200

// A Report holds the effects of a number of rounds on the traffic.
type Report struct {
	Rounds []Round
	Took   time.Duration
	Pings  []lab.EchoResult // one per family
	// Pause is the longest time without data on the TCP connection, which has some every 20 ms.
	// Resent is the number of its retransmitted segments.
	Pause  time.Duration
	Resent int
}

// A Round is one restart.
type Round struct {
	Way, Kind string

	Took time.Duration // from the end of the old process until the new one is ready
	Lost int
}

// Sum returns the pings of all families together: the counts added up, the largest gap and pause,
// the lowest rate. It is zero without pings.
func (r Report) Sum() (sum lab.EchoResult) {
	if len(r.Pings) == 0 {
		return sum
	}
	sum = r.Pings[0]
	for _, p := range r.Pings[1:] {
		sum.Sent += p.Sent
		sum.Answered += p.Answered
		sum.Duplicates += p.Duplicates
		sum.Reordered += p.Reordered
		sum.Gap, sum.Pause, sum.Rate = max(sum.Gap, p.Gap), max(sum.Pause, p.Pause), min(sum.Rate, p.Rate)
	}
	sum.Missing = nil // numbers are per family
	return sum
}

// Losses names the rounds in which pings were lost, with the count.
func (r Report) Losses() (out []string) {
	for i, round := range r.Rounds {
		if round.Lost > 0 {
			out = append(out, fmt.Sprintf("%d in round %d (%s)", round.Lost, i+1, strings.TrimSuffix(round.Way+", "+round.Kind, ", ")))
		}
	}
	return out
}

// A Step is a number of rounds of one way.
type Step struct {
	Way
	Rounds int
}

// Run restarts the agent repeatedly, each time once enough packets have crossed after the previous
// restart. It also returns an error if the host's subnet or device changed, if the TCP connection
// ended, or if a host does not become healthy after the last restart.
func (s *Site) Run(ctx context.Context, steps ...Step) (Report, error) {
	return s.under(ctx, func(t *traffic) error {
		before, err := s.stands(ctx)
		if err != nil {
			return err
		}
		for _, step := range steps {
			for i := range step.Rounds {
				kind := step.Kinds[i%len(step.Kinds)]
				err := s.round(ctx, t, step.Way, i, kind)
				var now string
				if err == nil {
					now, err = s.stands(ctx)
				}
				if err == nil && now != before {
					err = fmt.Errorf("there is %s, and was %s", now, before)
				}
				if err != nil {
					return fmt.Errorf("%s, round %d (%s): %w", step.Name, i+1, kind, err)
				}
			}
		}
		return nil
	})
}

// Undisturbed lets packets cross for the given time and restarts nothing.
func (s *Site) Undisturbed(ctx context.Context, d time.Duration) (Report, error) {
	return s.under(ctx, func(*traffic) error { return lab.Sleep(ctx, d) })
}

// traffic is the traffic during the rounds.
type traffic struct {
	echoes []*lab.Echoes
	talk   *lab.Talk
	rounds []Round
	marks  [][]int // of the echoes, at the end of each round
}

// under runs do under traffic and reports the effects.
func (s *Site) under(ctx context.Context, do func(*traffic) error) (out Report, err error) {
	t := &traffic{}
	if t.talk, err = s.From.StartTalk(ctx, s.To.Namespace, s.To.Addrs[0]); err != nil {
		return out, err
	}
	for _, addr := range s.To.Addrs {
		e, startErr := s.From.StartEchoes(ctx, addr, Every)
		if startErr != nil {
			err = startErr
			break
		}
		t.echoes = append(t.echoes, e)
	}
	began := time.Now()
	if err == nil {
		err = t.flows(ctx)
	}
	if err == nil {
		t.talk.Pause()
		err = errors.Join(do(t), t.flows(ctx), s.healthy(ctx))
	}
	out.Took, out.Rounds, out.Pause = time.Since(began), t.rounds, t.talk.Pause()
	var resentErr error
	out.Resent, resentErr = t.talk.Resent()
	_, talkErr := t.talk.Stop()
	err = errors.Join(err, resentErr, talkErr)
	for i, e := range t.echoes {
		r, stopErr := e.Stop()
		err = errors.Join(err, stopErr)
		out.Pings = append(out.Pings, r)
		for _, number := range r.Missing {
			round, _ := slices.BinarySearchFunc(t.marks, number, func(marks []int, number int) int {
				if marks[i] <= number {
					return -1
				}
				return 1
			})
			if round < len(out.Rounds) {
				out.Rounds[round].Lost++
			}
		}
	}
	return out, err
}

func (t *traffic) flows(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, e := range t.echoes {
		g.Go(func() error { return e.WaitAnswers(ctx, between) })
	}
	g.Go(func() error { return t.talk.WaitEchoes(ctx, between/10) })
	return g.Wait()
}

func (s *Site) round(ctx context.Context, t *traffic, w Way, i int, kind string) error {
	if err := w.end(ctx, s, i, kind); err != nil {
		return err
	}
	began := time.Now()
	if err := w.start(ctx, s, kind); err != nil {
		return err
	}
	t.rounds = append(t.rounds, Round{Way: w.Name, Kind: kind, Took: time.Since(began)})
	// The effects of a start belong to its round.
	err := errors.Join(lab.Sleep(ctx, s.Rest), t.flows(ctx))
	var marks []int
	for _, e := range t.echoes {
		marks = append(marks, e.Mark())
	}
	t.marks = append(t.marks, marks)
	return err
}

// healthy blocks until both hosts report that they are healthy.
func (s *Site) healthy(ctx context.Context) error {
	for _, h := range []*lab.Host{s.Host, s.Peer} {
		err := lab.WaitFor(ctx, h.Name+" to be healthy", func(ctx context.Context) error {
			status, body, err := h.Get(ctx, "/healthz")
			if err == nil && status != 200 {
				err = fmt.Errorf("%d: %s", status, body)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stands returns what a restart must not change: the subnets, and index and address of the device
// if the backend has one.
func (s *Site) stands(ctx context.Context) (string, error) {
	subnets, err := s.Subnets()
	if err != nil {
		return "", err
	}
	if s.Backend != "vxlan" {
		return fmt.Sprint(subnets), nil
	}
	link, err := s.Host.Exec(ctx, "ip", "-o", "link", "show", "dev", "leno-"+network)
	return fmt.Sprintf("%v, %s", subnets, link), err
}
