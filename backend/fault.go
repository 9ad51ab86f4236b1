package backend

// Faults returns all possible values of Repair.Fault. They are used as a metric label, so the list
// is short and never contains text from another program.
func Faults() []string {
	out := []string{
		"device was deleted", "device was down", "device was renamed", "device was detached", "device was replaced",
		"device had another MTU", "device had another MAC address", "device had another alias", "device had a master",
		"device had another underlay", "device had another checksum offload",
		"device had another private key", "device had another listen port",
		"socket was closed", "forwarding was off",
	}
	for _, table := range []string{"addresses", "FDB entries", "neighbours", "peers", "routes", "rules"} {
		out = append(out, table+" were missing", table+" were changed", "foreign "+table+" were there")
	}
	return out
}
