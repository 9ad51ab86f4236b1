package agent

import (
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// configuration returns the answer to GET /v1/agent/config.
func (a *Agent) configuration() api.Configuration {
	c := resolved(a.settings.get())
	if c.NodeName == "" {
		c.NodeName = a.env.Identity.Get().Node
	}
	out := api.Configuration{Files: append([]string{}, c.Files...), Dev: c.Dev, Settings: []api.Setting{}}
	for _, v := range config.Values(c) {
		out.Settings = append(out.Settings, api.Setting(v))
	}
	return out
}

// resolved returns c with the defaults that otherwise only show where a setting is used. The configuration in force
// itself stays as it was written, because a reload compares it.
func resolved(c config.Config) config.Config {
	if c.Log.RotateBytes == 0 {
		c.Log.RotateBytes = config.DefaultRotateBytes
	}
	c.Networks = slices.Clone(c.Networks)
	for i, n := range c.Networks {
		pools := slices.Clone(n.Pools)
		for k, p := range pools {
			if whole, err := registry.Pool(p).Normalize(); err == nil { // otherwise it stays as it was written
				pools[k] = config.Pool(whole)
			}
		}
		c.Networks[i].Pools = pools
	}
	return c
}
