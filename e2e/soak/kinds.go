package soak

import (
	"slices"

	"github.com/lenonet/leno/e2e/lab"
)

// A Kind is a kind of fault.
type Kind string

// Faults on one host.
const (
	KillAgent     Kind = "kill-agent"    // kill -9, restarted seconds later
	RestartAgent  Kind = "restart-agent" // SIGTERM, restarted seconds later
	StopShort     Kind = "stop-agent"    // SIGSTOP, continued before its session ends
	StopPastTTL   Kind = "stop-past-ttl"
	StopPastHold  Kind = "stop-past-hold"
	CutHost       Kind = "cut-host"       // no packet gets in or out
	LeaveClient   Kind = "leave-client"   // its Consul client agent leaves gracefully and comes back
	RevokeToken   Kind = "revoke-token"   // its ACL token is deleted and restored
	ReplaceHost   Kind = "replace-host"   // its agent dies for good, and a machine with another name takes its place
	ChangeOptions Kind = "change-options" // subnet_file or another option, and a reload
	SetClock      Kind = "set-clock"      // its agent is killed, and its clock is set by hours before it is restarted
	LeaveNetwork  Kind = "leave-network"  // it releases a lease, and joins the network again with a reload
)

// Faults on one host that carries packets. Except for ChangeAddress, its agent and the store are not disturbed.
const (
	ForeignRules Kind = "foreign-rules" // another program adds a set and a verdict map to iptables' tables
	RoutingRule  Kind = "routing-rule"  // a VPN adds a routing rule and a table that take packets to peers
	DisableIPv6  Kind = "disable-ipv6"  // for all devices or for one of leno's
	ChangeMTU    Kind = "change-mtu"    // of the underlay's device
	AttackPeers  Kind = "attack-peers"  // containers send forged packets to the tunnels of other hosts

	ChangeAddress Kind = "change-address" // the host gets other addresses, and later its own again
)

// Faults on the store.
const (
	KillLeader      Kind = "kill-leader"
	LoseQuorum      Kind = "lose-quorum"      // two of three servers are killed
	KillServers     Kind = "kill-all-servers" // with etcd only
	CutServer       Kind = "cut-server"
	Compact         Kind = "compact" // etcd's history is discarded while hosts are cut off
	RevokeTokens    Kind = "revoke-all-tokens"
	EmptyStore      Kind = "empty-store"       // everything below leno/ is deleted
	EmptyAndDefine  Kind = "empty-and-define"  // the same, and another network is defined immediately
	EmptyAndDelete  Kind = "empty-and-delete"  // the same, and another network is deleted immediately
	EmptyAndRestart Kind = "empty-and-restart" // the same, and some agents are restarted immediately
	StartInLoss     Kind = "start-in-loss"     // the records are lost, and a host that has never run starts soon after
	RestartAll      Kind = "restart-all"       // all agents are killed, and started together
	SaveStore       Kind = "save-snapshot"     // not a fault: the snapshot for RestoreStore
	RestoreStore    Kind = "restore-snapshot"
	RestoreBad      Kind = "restore-bad-records" // the snapshot contains invalid records
	RestoreOldest   Kind = "restore-oldest"      // the snapshot is from before any network existed
)

// Faults on one network.
const (
	ForgeRecords    Kind = "forge-records"     // a stranger writes records about running hosts
	LoseNetwork     Kind = "lose-network"      // the key of its definition is deleted
	DefineNetwork   Kind = "define-network"    // with network apply
	DeleteNetwork   Kind = "delete-network"    // with network delete
	DeleteWhileAway Kind = "delete-while-away" // the same, while the agents of some of its hosts are down
	ChangeNetwork   Kind = "change-network"    // another definition that hosts can apply live
	RewriteNetwork  Kind = "rewrite-network"   // the same definition, spelled differently or with wrong times
	RevokeLease     Kind = "revoke-lease"      // of one host, with lease revoke
	SwitchBackend   Kind = "switch-backend"    // the network is switched to another backend
	StopSwitch      Kind = "stop-switch"       // the same, and the switch is stopped for some seconds
	ReverseSwitch   Kind = "reverse-switch"    // the same, and the switch is reversed halfway
	RotateKeys      Kind = "rotate-keys"       // a network with the backend wireguard is switched to new keys
	StartInSwitch   Kind = "start-in-switch"   // a host boots during a switch, which may be stopped
)

// Kinds returns the kinds of faults with a store, StoreConsul or StoreEtcd of package lab: those on
// hosts, those on the whole store, and those on one network.
func Kinds(kind string) (hosts, store, network []Kind) {
	hosts, store, network = consulKinds()
	if kind != lab.StoreEtcd {
		return hosts, store, network
	}
	onlyConsul := func(k Kind) bool { return k == LeaveClient || k == RevokeToken || k == RevokeTokens }
	return slices.DeleteFunc(hosts, onlyConsul),
		append(slices.DeleteFunc(store, onlyConsul), KillServers, Compact),
		network
}

// redefines reports whether a fault gives a network that is defined another definition, while it stays defined.
func redefines(k Kind) bool {
	return k == ChangeNetwork || switches(k)
}

// switches reports whether a fault is on the backend of a network.
func switches(k Kind) bool {
	return k == SwitchBackend || k == StopSwitch || k == ReverseSwitch || k == RotateKeys || k == StartInSwitch
}

// onCarrier reports whether a fault is on a host that carries packets.
func onCarrier(k Kind) bool {
	return k == ForeignRules || k == RoutingRule || k == DisableIPv6 || k == ChangeMTU || k == AttackPeers || k == ChangeAddress
}

// offCarrier reports whether a fault is on a host that does not carry packets.
func offCarrier(k Kind) bool { return k == ReplaceHost || k == LeaveNetwork }

func consulKinds() (hosts, store, network []Kind) {
	return []Kind{
			KillAgent, StopPastHold, CutHost, LeaveClient, RestartAgent, StopPastTTL, RevokeToken, ReplaceHost, StopShort,
			ChangeOptions, ForeignRules, RoutingRule, DisableIPv6, ChangeMTU, AttackPeers, SetClock, LeaveNetwork, ChangeAddress,
		}, []Kind{
			KillLeader, EmptyStore, LoseQuorum, RestoreStore, CutServer, RevokeTokens, EmptyAndDefine, EmptyAndDelete,
			EmptyAndRestart, RestoreBad, RestoreOldest, StartInLoss, RestartAll,
		}, []Kind{
			LoseNetwork, DefineNetwork, DeleteNetwork, DeleteWhileAway, ChangeNetwork, RewriteNetwork,
			SwitchBackend, StopSwitch, ReverseSwitch, RotateKeys, StartInSwitch, ForgeRecords, RevokeLease,
		}
}
