package command

import (
	"github.com/hashicorp/cli"
)

// Commands returns every command by name. Each factory's command is used once.
func Commands(m Meta) map[string]cli.CommandFactory {
	commands := map[string]cli.CommandFactory{}
	for _, constructor := range []func(Meta) spec{
		agentSpec,
		cniSpec,
		dockerOptsSpec,
		doctorSpec,
		cleanupSpec,
		debugSpec,
		eventsSpec,
		fmtSpec,
		leaseListSpec,
		leaseReleaseSpec,
		leaseRenewSpec,
		leaseRevokeSpec,
		leaseShowSpec,
		monitorSpec,
		networkApplySpec,
		networkDeleteSpec,
		networkImportSpec,
		networkListSpec,
		networkPlanSpec,
		networkShowSpec,
		peersSpec,
		reloadSpec,
		reservationAddSpec,
		reservationListSpec,
		reservationRemoveSpec,
		statusSpec,
		validateSpec,
		versionSpec,
	} {
		commands[constructor(m).name] = func() (cli.Command, error) {
			return newCommand(m, constructor(m)), nil
		}
	}
	for name, synopsis := range map[string]string{
		"lease":       "List, show, renew, revoke and release leases",
		"network":     "List, show, plan, apply, import and delete networks",
		"reservation": "Keep subnets for hosts",
	} {
		commands[name] = func() (cli.Command, error) {
			return &group{meta: m, name: name, synopsis: synopsis, commands: func() map[string]cli.CommandFactory { return commands }}, nil
		}
	}
	return commands
}
