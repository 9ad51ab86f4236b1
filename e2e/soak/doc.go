// Package soak runs many leno agents on three Consul servers under random faults
// and checks what leno promises. Run makes a history, by looking at agents, store
// and kernel from outside; Check is pure and names what in a history breaks a
// rule.
//
// # Networks
//
// Every host takes part in several of six networks: three that carry packets over
// VXLAN, and three that only lease. One of each kind is defined by the blocks of
// agents' configurations. One exists only in Consul, and hosts join it through
// watch_networks or a block without pools. One is deleted and defined again and again.
// A seventh network, without any host, is defined in a store that has just lost
// everything, so that its records are the first there.
//
// An operator's change makes a network defined or deleted from the moment its record
// was read back. A loss of the store can undo that: a snapshot from before the change
// brings the earlier state back, and a host that had not heard of the change, for
// example because it was stopped, puts back what it knows. Then the network may be
// either until the operator's next change. Nothing else may undo a change.
//
// # Who holds a subnet
//
// The store lets one session lock a record, so two holders of one key are out of
// the question there. What counts is what hosts act on. A node is on a subnet
// from when its agent's API first says so until the API says otherwise: a tenure.
// A tenure is only what was certainly so: from the answer to the first look that
// shows it to the question of the last.
//
// A silence is a time in which the suite keeps a node's agent from knowing: dead,
// stopped, cut off, without its Consul agent or its token. It ends when the fault
// is undone and the store answers a consistent read, asked from that host under
// the agent's own token. A stopped host that was given up for longer than hold
// cannot know that its subnet is somebody else's now, and its containers go on
// sending; no system with leases can prevent that. So tenures end where a silence
// begins, and a new one begins with the first answer after it.
//
// Two live holders of one slot are two overlapping tenures with overlapping
// subnets. There are two excuses, and both end with the settling time. One node
// came back from a silence in which the other came to the subnet. Or the store
// was set back to an older state, in which both had a claim. Nothing excuses two
// holders after the store was emptied, by a dead leader, or under load.
//
// # What may be taken
//
// From the first read that shows a record lapsed, or gone, or another's, no more
// than hold may be missing to the last read that showed it held. That holds for
// nodes that are dead or stopped too. Excused is what a node gave up by its own
// word; a store set back says what it said then; and a node that was silent when
// the store was emptied, or before it could write again, has been forgotten.
// Every node that was there must have its own slot back: a node moves only when
// it was given up, or when a store that was set back has somebody else on its
// slot. A running agent that moves says so in its log, as an error.
//
// # What stays of a network, and what goes
//
// While a network is defined, no device of it goes, no subnet file goes, and no running
// agent stops showing its subnet, whatever happens to the store, the host or the agent.
// An agent that takes over other options takes the network up again, and may show
// nothing of it meanwhile.
// After a deletion every calm node gives up its lease and removes its subnet file,
// device and routes. A node that was away does so once it is back. The store keeps the
// record of the deletion, and the network does not come back.
//
// # What else is looked at, when a node is calm
//
// Calm is a node without a silence, under a store without a fault, within the
// settling time before. A change of the network or of the node's options in it counts
// as a fault. Then the node's agent answers, its health is passing, it has
// renewed within the TTL, the store has the lease it relies on, and its view of
// all leases is the store's: it shows nothing that the store has not had within
// the settling time and lacks nothing that the store has had all that time. Its subnet
// file says what it holds, is where the options have it, and is not at the path before.
// Agents keep what a store has lost for three times the TTL; that is allowed for the
// records of nodes that could not write them again. That a session ended is told
// to nobody: a node in the place of another, under its address, has a minute from
// then on.
//
// The settling time is for a machine that gives every program a processor when it wants
// one. The suite measures for how long the node's agent and its Consul agent waited for
// a processor and how long the store took for its answers, and adds both, up to two
// minutes in all. Servers that are busy now and then take each other for dead, without a
// fault: a warning that Consul did not answer is allowed for a single look.
//
// Nodes that carry packets have a route to every calm peer. No route may go,
// calm or not, while its peer is there: not because of a dead agent, of either
// side, a lost leader, or an emptied store. It may go once the peer was silent
// for hold, or was silent when the store lost its memory, or moved. The same
// goes for pings: one may be lost only to or from a host that is cut off, was
// given up, or has moved.
//
// # What is not about leno
//
// A fault that cannot be made or undone is an incident: the suite repairs the host or
// Consul's servers by force and goes on. A host that cannot be repaired is out of the
// run: its silence never ends. When Consul cannot be repaired, on SIGINT and SIGTERM,
// and after a mistake in the suite, the run ends early, and there is a report of what
// was seen until then.
package soak
