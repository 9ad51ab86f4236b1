package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cni"
	"github.com/lenonet/leno/command/subnetfile"
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
		last := !time.Now().Before(deadline)
		f, err := p.look(ctx, c, last)
		if err == nil || last || !cni.IsNotReady(err) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return cni.Facts{}, ctx.Err()
		case <-time.After(factsPause):
		}
	}
}

// look asks once. The subnet file is what counts, for it is written when packets can
// pass; the agent says where it is, and whether it is about to be another one. last
// is the last time that it looks: then a file will do that the agent, which has only
// just started, does not know of yet.
func (p *cniPlugin) look(ctx context.Context, c cni.Conf, last bool) (cni.Facts, error) {
	if c.SubnetFile != "" {
		name := c.Network
		if name == "" {
			name = strings.TrimSuffix(filepath.Base(c.SubnetFile), ".env")
		}
		return readFacts(name, c.SubnetFile, "`leno agent` writes it when it has a subnet")
	}
	network, err := p.ask(ctx, c)
	var known *types.Error
	switch {
	case errors.As(err, &known):
		return cni.Facts{}, err
	case err != nil:
		return p.usual(c, err)
	}
	local := network.Local
	f, err := readFacts(network.Name, local.SubnetFile, "the agent writes it when it has a subnet, and says: "+local.State)
	switch {
	case err != nil:
		return cni.Facts{}, err
	case len(local.Subnets) == 0 && !last:
		return cni.Facts{}, cni.NotReady(fmt.Sprintf("network %s: the agent says: %s", network.Name, local.State))
	case len(local.Subnets) > 0 && !slices.Equal(f.Subnets(), local.Subnets):
		return cni.Facts{}, cni.NotReady(fmt.Sprintf("network %s: the agent has another subnet than its subnet file %s, and says: %s", network.Name, local.SubnetFile, local.State))
	}
	return f, nil
}

// usual is what lies where subnet files lie, when no agent answers.
func (p *cniPlugin) usual(c cni.Conf, noAgent error) (cni.Facts, error) {
	paths := []string{config.DefaultSubnetFile(c.Network)}
	if c.Network == "" {
		var err error
		if paths, err = filepath.Glob(config.DefaultSubnetFile("*")); err != nil {
			return cni.Facts{}, internal(err)
		}
	}
	switch len(paths) {
	case 0:
		return cni.Facts{}, cni.NotReady(fmt.Sprintf("%s, and there is no subnet file %s: start `leno agent`", noAgent, config.DefaultSubnetFile("*")))
	case 1:
		return readFacts(strings.TrimSuffix(filepath.Base(paths[0]), ".env"), paths[0], noAgent.Error())
	}
	return cni.Facts{}, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("there are several networks, name one as \"network\": the subnet files are %s", strings.Join(paths, ", ")), "")
}

// ask is the network as the agent has it, with its Local. An error that is none of
// CNI's means that no agent answers.
func (p *cniPlugin) ask(ctx context.Context, c cni.Conf) (n api.Network, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var list api.NetworkList
	err = p.agent(c).call(ctx, func(ctx context.Context, client *api.Client) (err error) {
		list, err = client.Networks(ctx)
		return err
	})
	var answer *api.Error
	if errors.As(err, &answer) && answer.Code == http.StatusServiceUnavailable {
		return n, cni.NotReady(fmt.Sprintf("the agent says: %s", answer))
	}
	if err != nil {
		return n, err
	}
	var here, all []string
	for _, candidate := range list.Networks {
		all = append(all, candidate.Name)
		if candidate.Local != nil && (c.Network == "" || c.Network == candidate.Name) {
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

// readFacts reads a subnet file; why says what is known of one that is missing.
func readFacts(network, path, why string) (cni.Facts, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return cni.Facts{}, cni.NotReady(fmt.Sprintf("network %s has no subnet file %s: %s", network, path, why))
	}
	if err != nil {
		return cni.Facts{}, internal(err)
	}
	f, err := subnetfile.Parse(string(text))
	if err != nil {
		return cni.Facts{}, internal(fmt.Errorf("subnet file %s: %w", path, err))
	}
	return cni.Facts{Network: network, File: f}, nil
}
