package soak

// Kind is a kind of fault.
type Kind string

// The faults on one host.
const (
	KillAgent     Kind = "kill-agent"    // kill -9, started again seconds later
	RestartAgent  Kind = "restart-agent" // SIGTERM, started again seconds later
	StopShort     Kind = "stop-agent"    // SIGSTOP, continued before its session ends
	StopPastTTL   Kind = "stop-past-ttl"
	StopPastHold  Kind = "stop-past-hold"
	CutHost       Kind = "cut-host"       // its wire loses everything
	LeaveClient   Kind = "leave-client"   // its Consul client agent leaves gracefully and comes back
	RevokeToken   Kind = "revoke-token"   // its ACL token is deleted, and given back
	ReplaceHost   Kind = "replace-host"   // its agent dies for good, a machine of another name comes
	ChangeOptions Kind = "change-options" // subnet_file or another option, and a reload
)

// The faults on the store.
const (
	KillLeader      Kind = "kill-leader"
	LoseQuorum      Kind = "lose-quorum" // two servers of three are killed
	CutServer       Kind = "cut-server"
	RevokeTokens    Kind = "revoke-all-tokens"
	EmptyStore      Kind = "empty-store"       // everything below leno/ is deleted
	EmptyAndDefine  Kind = "empty-and-define"  // the same, and another network is defined at once
	EmptyAndDelete  Kind = "empty-and-delete"  // the same, and another network is deleted at once
	EmptyAndRestart Kind = "empty-and-restart" // the same, and some agents are restarted at once
	SaveStore       Kind = "save-snapshot"     // no fault: what RestoreStore goes back to
	RestoreStore    Kind = "restore-snapshot"
	RestoreBad      Kind = "restore-bad-records" // the snapshot has records that cannot be used
	RestoreOldest   Kind = "restore-oldest"      // the snapshot is from before any network existed
)

// The faults on one network.
const (
	LoseNetwork     Kind = "lose-network"      // the key of its definition is deleted
	DefineNetwork   Kind = "define-network"    // with network apply or network import
	DeleteNetwork   Kind = "delete-network"    // with network delete
	DeleteWhileAway Kind = "delete-while-away" // the same, while the agents of some of its hosts are down
	ChangeNetwork   Kind = "change-network"    // another definition that hosts take over live
	RewriteNetwork  Kind = "rewrite-network"   // the same definition in other words
)

// Kinds are all faults: those on hosts, those on the whole store, and those on one
// network.
func Kinds() (hosts, store, network []Kind) {
	return []Kind{
			KillAgent, StopPastHold, CutHost, LeaveClient, RestartAgent, StopPastTTL, RevokeToken, ReplaceHost, StopShort,
			ChangeOptions,
		}, []Kind{
			KillLeader, EmptyStore, LoseQuorum, RestoreStore, CutServer, RevokeTokens, EmptyAndDefine, EmptyAndDelete,
			EmptyAndRestart,
			RestoreBad, RestoreOldest,
		}, []Kind{
			LoseNetwork, DefineNetwork, DeleteNetwork, DeleteWhileAway, ChangeNetwork, RewriteNetwork,
		}
}
