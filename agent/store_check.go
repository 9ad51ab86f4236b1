package agent

import "github.com/lenonet/leno/agent/config"

// inMemory is the name of the store that -dev uses.
const inMemory = config.StoreMemory

// answers returns the reason of the store's check while the store answers.
func answers(name string) string {
	if name == inMemory {
		return "not needed: leases are kept in this process (-dev)"
	}
	return name + " answers"
}
