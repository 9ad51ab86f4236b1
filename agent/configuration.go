package agent

import (
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// configuration is what GET /v1/agent/config answers.
func (a *Agent) configuration() api.Configuration {
	c := resolved(a.current())
	if c.NodeName == "" {
		a.mu.Lock()
		c.NodeName = a.env.id.Node
		a.mu.Unlock()
	}
	out := api.Configuration{Files: append([]string{}, c.Files...), Dev: c.Dev, Settings: []api.Setting{}}
	for _, v := range config.Values(c) {
		out.Settings = append(out.Settings, api.Setting(v))
	}
	return out
}

// resolved is c with those defaults in it that only show where a setting is used. The
// configuration itself stays as it is written, which is what a reload compares.
func resolved(c config.Config) config.Config {
	if c.Log.RotateBytes == 0 {
		c.Log.RotateBytes = config.DefaultRotateBytes
	}
	c.Networks = slices.Clone(c.Networks)
	for i, n := range c.Networks {
		pools := slices.Clone(n.Pools)
		for k, p := range pools {
			if whole, err := registry.Pool(p).Normalize(); err == nil { // else as it stands there
				pools[k] = config.Pool(whole)
			}
		}
		c.Networks[i].Pools = pools
	}
	return c
}
