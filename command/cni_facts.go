package command

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cni"
)

// factsPause is how long a wait for the agent sleeps between looks.
const factsPause = 100 * time.Millisecond

// facts is what is known of the configuration's network. It waits as long as the
// configuration says for an agent that starts, when wait is set.
func (p *cniPlugin) facts(ctx context.Context, c cni.Conf, wait bool) (cni.Facts, error) {
	var limit time.Duration
	if wait {
		limit = c.Wait
	}
	for deadline := time.Now().Add(limit); ; {
		left := time.Until(deadline)
		f, err := p.look(ctx, c, left)
		if err == nil || left <= 0 || !cni.IsNotReady(err) {
			return f, err
		}
		if p.silent != nil && time.Until(deadline) <= 0 { // one that hangs has had its time
			return f, err
		}
		select {
		case <-ctx.Done():
			return cni.Facts{}, ctx.Err()
		case <-time.After(factsPause):
		}
	}
}

// look looks once. What counts is the subnet file, which is written when packets can
// pass; where it lies as usual nobody is asked. Else the agent says where it is: it is
// believed as far as the file that it names is trusted, for anybody may listen at its
// address while it is away. With no time left it is the last look: then a file will do
// that an agent, which has only just started, does not know of yet.
func (p *cniPlugin) look(ctx context.Context, c cni.Conf, left time.Duration) (cni.Facts, error) {
	if c.SubnetFile != "" {
		return p.readFacts(c.NetworkOfFile(), c.SubnetFile, "`leno agent` writes it when it has a subnet")
	}
	if c.Network != "" {
		if f, err := p.readFacts(c.Network, p.usualFile(c.Network), ""); !cni.IsNotReady(err) {
			return f, err
		}
	}
	network, err := p.ask(ctx, c, left)
	var known *types.Error
	switch {
	case errors.As(err, &known):
		return cni.Facts{}, err
	case err != nil:
		return p.usual(c, err)
	}
	local := network.Local
	why := "the agent writes it when it has a subnet, and says: " + local.State
	f, err := p.readFacts(network.Name, p.usualFile(network.Name), why)
	if cni.IsNotReady(err) {
		f, err = p.readFacts(network.Name, local.SubnetFile, why)
	}
	switch {
	case err != nil:
		return cni.Facts{}, err
	case len(local.Subnets) == 0 && left > 0:
		return cni.Facts{}, cni.NotReady(fmt.Sprintf("network %s: the agent says: %s", network.Name, local.State))
	case len(local.Subnets) > 0 && !slices.Equal(f.Subnets(), local.Subnets):
		return cni.Facts{}, cni.NotReady(fmt.Sprintf("network %s: the agent has another subnet than its subnet file %s, and says: %s", network.Name, local.SubnetFile, local.State))
	}
	return f, nil
}

// usual is what lies where subnet files lie, when no agent answers.
func (p *cniPlugin) usual(c cni.Conf, noAgent error) (cni.Facts, error) {
	paths := []string{p.usualFile(c.Network)}
	if c.Network == "" {
		var err error
		if paths, err = filepath.Glob(p.usualFile("*")); err != nil {
			return cni.Facts{}, internal(err)
		}
	}
	switch len(paths) {
	case 0:
		return cni.Facts{}, cni.NotReady(fmt.Sprintf("%s, and there is no subnet file %s: start `leno agent`", noAgent, p.usualFile("*")))
	case 1:
		return p.readFacts(strings.TrimSuffix(filepath.Base(paths[0]), ".env"), paths[0], noAgent.Error())
	}
	return cni.Facts{}, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("there are several networks, name one as \"network\": the subnet files are %s", strings.Join(paths, ", ")), "")
}

// usualFile is where a network's subnet file lies unless the agent's configuration
// says otherwise.
func (p *cniPlugin) usualFile(network string) string {
	if p.runDir != "" { // of a test
		return filepath.Join(p.runDir, filepath.Base(config.DefaultSubnetFile(network)))
	}
	return config.DefaultSubnetFile(network)
}

// leastAsk is what an agent has at least to answer in: under load it takes a while.
const leastAsk = time.Second

// ask is the network as the agent has it, with its Local, within the time that is
// left. An error that is none of CNI's means that no agent answers.
func (p *cniPlugin) ask(ctx context.Context, c cni.Conf, left time.Duration) (n api.Network, err error) {
	limit := min(askTimeout, max(leastAsk, left.Round(time.Second/10)))
	var list api.NetworkList
	err = p.agent(c).callWithin(ctx, limit, func(ctx context.Context, client *api.Client) (err error) {
		list, err = client.Networks(ctx)
		return err
	})
	var answer *api.Error
	if errors.As(err, &answer) && answer.Code == http.StatusServiceUnavailable {
		return n, cni.NotReady(fmt.Sprintf("the agent says: %s", answer))
	}
	if p.silent = err; err != nil {
		return n, err
	}
	var here, all []string
	for _, candidate := range list.Networks {
		all = append(all, candidate.Name)
		if candidate.Local != nil && cni.IsName(candidate.Name) && (c.Network == "" || c.Network == candidate.Name) {
			here, n = append(here, candidate.Name), candidate
		}
	}
	switch {
	case len(here) == 1:
		return n, nil
	case len(here) > 1:
		return n, types.NewError(types.ErrInvalidNetworkConfig, "there are several networks, name one as \"network\": "+strings.Join(here, ", "), "")
	case c.Network != "":
		return n, cni.NotReady(fmt.Sprintf("this host takes no part in network %q: the agent knows %s", c.Network, orNone(all)))
	}
	return n, cni.NotReady("this host takes no part in any network: the agent knows " + orNone(all))
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// agent is how to reach it: what the configuration says wins over the environment.
func (p *cniPlugin) agent(c cni.Conf) *agentFlags {
	m := p.meta
	m.Getenv = func(name string) string {
		if name == "LENO_ADDRESS" && c.Address != "" {
			return c.Address
		}
		return p.meta.Getenv(name)
	}
	return &agentFlags{meta: m}
}
