package agent

import (
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
)

// settings holds the configuration in force. It is safe for concurrent use.
type settings struct {
	watchedNetwork func(name string) config.Network // returns this host's part in a network without a block
	confirmed      atomic.Bool                      // an operator has confirmed that this configuration leaves networks

	mu  sync.Mutex
	now config.Config // replaced by a reload
}

// get returns the configuration in force.
func (s *settings) get() config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// wanted returns this host's part in a network: its block, or the defaults for a network that watch_networks joins
// without one. ok is false if this host takes no part.
func (s *settings) wanted(name string) (local config.Network, ok bool) {
	return s.wantedBy(s.get(), name)
}

// wantedBy is like wanted for any configuration.
func (s *settings) wantedBy(c config.Config, name string) (local config.Network, ok bool) {
	for _, n := range c.Networks {
		if n.Name == name {
			return n, true
		}
	}
	return s.watchedNetwork(name), watches(c, name)
}

// watched reports whether the agent joins a network that has no block.
func (s *settings) watched(name string) bool { return watches(s.get(), name) }

// configured reports whether the network has a block.
func (s *settings) configured(name string) bool {
	return slices.ContainsFunc(s.get().Networks, func(n config.Network) bool { return n.Name == name })
}

// unmanaged returns the networks that an earlier process took part in and that a configuration that looks cut off does
// not name: it takes part in no network, or one of its files is empty and had options before. The agent leaves these
// networks as they are unless an operator has confirmed it. With -dev there are none: another agent may have left them.
func (s *settings) unmanaged(c config.Config) (names []string) {
	if c.Dev || s.confirmed.Load() {
		return nil
	}
	known := state.Networks(c.DataDir)
	if takesPart(c, known) && len(emptied(c)) == 0 {
		return nil
	}
	for _, name := range known {
		if _, wanted := s.wantedBy(c, name); !wanted {
			names = append(names, name)
		}
	}
	return names
}

// stands returns this host's part in a network if the agent keeps the datapath that an earlier process left, because
// the configuration wants the network or the agent leaves it as it is.
func (s *settings) stands(name string) (local config.Network, ok bool) {
	c := s.get()
	if local, ok = s.wantedBy(c, name); ok || !slices.Contains(s.unmanaged(c), name) {
		return local, ok
	}
	return s.watchedNetwork(name), true
}

// set replaces the configuration in force. confirmed is whether an operator has confirmed it; if it is the same one as
// before, an earlier confirmation stays valid.
func (s *settings) set(c config.Config, confirmed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed.Store(confirmed || s.confirmed.Load() && len(config.Compare(s.now, c)) == 0)
	s.now = c
}

func watches(c config.Config, name string) bool {
	if !c.WatchNetworks {
		return false
	}
	for _, pattern := range c.AllowedNetworks {
		if ok, err := path.Match(pattern, name); err == nil && ok {
			return true
		}
	}
	return false
}
