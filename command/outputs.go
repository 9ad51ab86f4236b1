package command

import (
	"github.com/lenonet/leno/agent/cleanup"
	"github.com/lenonet/leno/agent/handover"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/hosts"
	"github.com/lenonet/leno/command/status"
)

// Output is what a command prints with -format=json.
type Output struct {
	Command string // "peers -probe" for a flag that changes the output
	Value   any    // of the type that is printed
}

// Outputs returns the JSON output of every command that has one, for the reference. That of docker-opts is missing,
// because its format is Docker's.
func Outputs() []Output {
	return []Output{
		{"status", status.Output{}},
		{"network list", api.NetworkList{}},
		{"network show", api.Network{}},
		{"network plan", planOutput{}},
		{"network apply", planOutput{}},
		{"network switch", api.NetworkSwitch{}},
		{"lease list", api.LeaseList{}},
		{"lease show", api.Lease{}},
		{"lease renew", api.Renewal{}},
		{"reservation list", api.ReservationList{}},
		{"peers", api.PeerList{}},
		{"peers -probe", api.Probe{}},
		{"hosts", api.HostList{}},
		{"doctor", api.Diagnosis{}},
		{"doctor -all", hosts.Diagnosis{}},
		{"events", api.EventList{}},
		{"cleanup", cleanup.Report{}},
		{"flannel adopt", handover.Report{}},
		{"flannel return", handover.Report{}},
		{"store copy", storeCopyOutput{}},
		{"trace", api.Trace{}},
		{"version", versionOutput{}},
	}
}
