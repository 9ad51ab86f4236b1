package command

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/plural"
)

// switchFlags are the flags of `leno network switch`, each with the action that it stands for.
var switchFlags = []struct{ flag, action, usage string }{
	{"stop", api.StopSwitch, "stop the switch: hosts keep both backends, and peers stay with the one that they have"},
	{"continue", api.ContinueSwitch, "continue a switch that was stopped or reversed"},
	{"reverse", api.ReverseSwitch, "go back to the backend that the network had before"},
	{"end", api.EndSwitch, "end the switch at once; hosts that have not moved are cut off until they follow"},
	{"rotate-keys", api.RotateKeys, "begin to switch the network to new keys"},
}

func networkSwitchSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	given := map[string]*bool{}
	var wait cli.WaitFlag
	return cli.Spec{
		Name: "network switch", Args: "[NETWORK]", Max: 1,
		Synopsis: "Show, stop or reverse the switch to another backend",
		Help: `
Shows how far the hosts have switched a network to another backend, and what
the others are waiting for. A switch begins when you apply a definition with
another backend or port, and loses no packets.

-stop, -continue, -reverse and -end change the switch. -rotate-keys begins to
switch a network with the backend wireguard to new keys. With -wait, the
command prints the progress, except with -format=json, returns when the switch
has ended, and exits 1 if that takes longer.

  $ leno network switch
  $ leno network switch blue -reverse -wait=5m
  $ leno network switch -rotate-keys`,
		Flags: func(fs *flag.FlagSet) {
			s.Register(fs)
			for _, f := range switchFlags {
				given[f.action] = fs.Bool(f.flag, false, f.usage)
			}
			wait.Register(fs, "the switch has ended")
		},
		Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			var actions []string
			for _, f := range switchFlags {
				if *given[f.action] {
					actions = append(actions, f.action)
				}
			}
			if len(actions) > 1 {
				return cli.UsageErrorf("-stop, -continue, -reverse, -end and -rotate-keys cannot be used together")
			}
			var network string
			var now api.NetworkSwitch
			err := s.Call(ctx, cli.OnNetwork(cli.FirstArg(args), func(ctx context.Context, c *api.Client,
				name string) (err error) {
				network = name
				if len(actions) > 0 {
					now, err = c.ChangeSwitch(ctx, name, actions[0])
				} else {
					now, err = c.NetworkSwitch(ctx, name)
				}
				if err != nil {
					return err
				}
				return s.Print(now, func(w io.Writer) { writeSwitch(w, name, now) })
			}))
			if err != nil || wait.Limit == 0 {
				return err
			}
			const until = "until the switch has ended"
			return s.Agent.CallWithin(ctx, wait.Limit+cli.CallTimeout, until, func(ctx context.Context, c *api.Client) error {
				return awaitSwitch(ctx, s, c, network, now, wait.Limit)
			})
		},
	}
}

// awaitSwitch blocks until a switch has ended, and prints each change of the state that was shown last.
func awaitSwitch(ctx context.Context, s *cli.Session, c *api.Client, network string, shown api.NetworkSwitch,
	limit time.Duration) error {
	changed := shown.ModifyIndex
	return cli.Await(ctx, limit, func(ctx context.Context) error {
		now, err := c.NetworkSwitch(ctx, network)
		switch {
		case err != nil:
			return err
		case now.ModifyIndex < changed:
			return fmt.Errorf("network %s: the agent has not seen the change yet", network)
		}
		if asJSON, _ := s.Format.JSON(); !asJSON && describeSwitch(network, now) != describeSwitch(network, shown) {
			cli.Printf(s.Meta.Stdout, "%s", describeSwitch(network, now))
		}
		if shown = now; now.To != "" {
			return fmt.Errorf("network %s: %s", network, describeMoved(now))
		}
		return nil
	})
}

// writeSwitch prints how far a network has been switched.
func writeSwitch(w io.Writer, network string, s api.NetworkSwitch) {
	cli.Printf(w, "%s", describeSwitch(network, s))
	if s.To != "" {
		writeHosts(w, s.Hosts)
	}
}

// describeMoved says how many hosts have been switched, without a full stop.
func describeMoved(s api.NetworkSwitch) string {
	n := len(s.Hosts)
	return fmt.Sprintf("%d of %s %s to all others over %s", s.Moved, plural.Count(n, "host"),
		plural.Form(n, "sends", "send"), s.To)
}

// describeSwitch returns a sentence about how far a network has been switched.
func describeSwitch(network string, s api.NetworkSwitch) string {
	if s.To == "" {
		return fmt.Sprintf("Network %s has the backend %s, and is not being switched to another.", network, s.From)
	}
	verb := map[string]string{
		api.SwitchForward: "is being switched",
		api.SwitchStopped: "stopped on the way",
		api.SwitchBack:    "is being switched back",
	}[s.Direction]
	return fmt.Sprintf("Network %s %s from %s to %s: %s.", network, verb, s.From, s.To, describeMoved(s))
}
