package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

// factsPause is the time between two attempts while waiting for the agent.
const factsPause = 100 * time.Millisecond

// waitForFacts returns what is known about the configuration's network. If wait is set, it waits for a
// starting agent as long as the configuration allows.
func (p *plugin) waitForFacts(ctx context.Context, c networkConf, wait bool) (facts, error) {
	var limit time.Duration
	if wait {
		limit = c.Wait
	}
	for deadline := time.Now().Add(limit); ; {
		left := time.Until(deadline)
		f, err := p.findFacts(ctx, c, left)
		if err == nil || left <= 0 || !isNotReady(err) {
			return f, err
		}
		if p.agentError != nil && time.Until(deadline) <= 0 { // a hanging agent has used up its time
			return f, err
		}
		select {
		case <-ctx.Done():
			return facts{}, ctx.Err()
		case <-time.After(factsPause):
		}
	}
}

// findFacts makes one attempt. The subnet file decides, because it is written when packets can pass. If
// the configuration names the network and its file is in the default place, look does not ask the
// agent. Otherwise the agent says where the file is. Its response is believed only as far as the
// file is trusted, because any program may listen at its address while the agent is away. With no
// time left this is the last attempt: it then accepts a file that a newly started agent does not
// know yet.
func (p *plugin) findFacts(ctx context.Context, c networkConf, left time.Duration) (facts, error) {
	if c.SubnetFile != "" {
		return p.readFacts(c.networkOfFile(), c.SubnetFile, "`leno agent` writes it when it has a subnet")
	}
	if c.Network != "" {
		if f, err := p.readFacts(c.Network, p.defaultSubnetFile(c.Network), ""); !isNotReady(err) {
			return f, err
		}
	}
	network, err := p.askAgent(ctx, c, left)
	var known *types.Error
	switch {
	case errors.As(err, &known):
		return facts{}, err
	case err != nil:
		return p.factsWithoutAgent(c, err)
	}
	local := network.Local
	why := "the agent writes it when it has a subnet, and reports: " + local.State
	f, err := p.readFacts(network.Name, p.defaultSubnetFile(network.Name), why)
	if isNotReady(err) {
		f, err = p.readFacts(network.Name, local.SubnetFile, why)
	}
	switch {
	case err != nil:
		return facts{}, err
	case len(local.Subnets) == 0 && left > 0:
		return facts{}, notReadyError(fmt.Sprintf("network %s: the agent reports: %s", network.Name, local.State))
	case len(local.Subnets) > 0 && !slices.Equal(f.Subnets(), local.Subnets):
		return facts{}, notReadyError(fmt.Sprintf("network %s: the agent's subnet is not in its subnet file %s: %s",
			network.Name, local.SubnetFile, local.State))
	}
	return f, nil
}

// factsWithoutAgent reads the subnet file in the default directory when no agent responds.
func (p *plugin) factsWithoutAgent(c networkConf, noAgent error) (facts, error) {
	paths := []string{p.defaultSubnetFile(c.Network)}
	if c.Network == "" {
		var err error
		if paths, err = filepath.Glob(p.defaultSubnetFile("*")); err != nil {
			return facts{}, internalError(err)
		}
	}
	switch len(paths) {
	case 0:
		return facts{}, notReadyError(fmt.Sprintf("%s, and there is no subnet file %s: start `leno agent`", noAgent,
			p.defaultSubnetFile("*")))
	case 1:
		return p.readFacts(strings.TrimSuffix(filepath.Base(paths[0]), ".env"), paths[0], noAgent.Error())
	}
	return facts{}, types.NewError(types.ErrInvalidNetworkConfig,
		fmt.Sprintf("there are several networks, name one as \"network\": the subnet files are %s",
			strings.Join(paths, ", ")), "")
}

// askTimeout bounds a request to an agent that may be absent.
const askTimeout = 3 * time.Second

// minAskTimeout is the least time that an agent gets for its response: under load it takes a while.
const minAskTimeout = time.Second

// askAgent returns the agent's view of the network, with its Local, within the time left. An error that
// is not a CNI error means that no agent responds.
func (p *plugin) askAgent(ctx context.Context, c networkConf, left time.Duration) (n api.Network, err error) {
	limit := min(askTimeout, max(minAskTimeout, left.Round(time.Second/10)))
	var list api.NetworkList
	err = p.agent(c).CallWithin(ctx, limit, "", func(ctx context.Context, client *api.Client) (err error) {
		list, err = client.Networks(ctx)
		return err
	})
	if answer, ok := errors.AsType[*api.Error](err); ok && answer.Code == http.StatusServiceUnavailable {
		return n, notReadyError(fmt.Sprintf("the agent reports: %s", answer))
	}
	if p.agentError = err; err != nil {
		return n, err
	}
	var here, all []string
	for _, candidate := range list.Networks {
		all = append(all, candidate.Name)
		if candidate.Local != nil && isName(candidate.Name) && (c.Network == "" || c.Network == candidate.Name) {
			here, n = append(here, candidate.Name), candidate
		}
	}
	known := cmp.Or(strings.Join(all, ", "), "none")
	switch {
	case len(here) == 1:
		return n, nil
	case len(here) > 1:
		return n, types.NewError(types.ErrInvalidNetworkConfig,
			"there are several networks, name one as \"network\": "+strings.Join(here, ", "), "")
	case c.Network != "":
		return n, notReadyError(fmt.Sprintf("this host is not in network %q; the agent knows %s", c.Network, known))
	}
	return n, notReadyError("this host is in no network; the agent knows " + known)
}

// agent returns the flags to reach the agent: the configuration takes precedence over the
// environment.
func (p *plugin) agent(c networkConf) *cli.AgentFlags {
	m := p.meta
	m.Getenv = func(name string) string {
		if name == "LENO_ADDRESS" && c.Address != "" {
			return c.Address
		}
		return p.meta.Getenv(name)
	}
	return cli.NewAgentFlags(m)
}
