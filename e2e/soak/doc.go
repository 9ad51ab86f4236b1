// Package soak runs many leno agents on three Consul servers under random faults
// and checks what leno promises. Run makes a history, by looking at agents, store
// and kernel from outside; Check is pure and names what in a history breaks a
// rule.
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
// # What else is looked at, when a node is calm
//
// Calm is a node without a silence, under a store without a fault, within the
// settling time before. Then its agent answers, its health is passing, it has
// renewed within the TTL, the store has the lease it relies on, and its view of
// all leases is the store's: it shows nothing that the store has not had within
// the settling time and lacks nothing that the store has had all that time.
// Agents keep what a store has lost for three times the TTL; that is allowed for the
// records of nodes that could not write them again. That a session ended is told
// to nobody: a node in the place of another, under its address, has a minute from
// then on.
//
// Nodes that carry packets have a route to every calm peer. No route may go,
// calm or not, while its peer is there: not because of a dead agent, of either
// side, a lost leader, or an emptied store. It may go once the peer was silent
// for hold, or was silent when the store lost its memory, or moved. The same
// goes for pings: one may be lost only to or from a host that is cut off, was
// given up, or has moved.
package soak
