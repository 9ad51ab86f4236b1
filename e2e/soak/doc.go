// Package soak runs many leno agents on three servers of Consul or etcd under random faults and checks
// what leno promises. Run makes a history by looking at agents, store and kernel from outside. Check is
// a pure function that names everything in a history that breaks a rule.
//
// # Networks
//
// Every host takes part in several of seven networks: three that carry packets, at first over VXLAN, and four
// that only lease. One of each kind is defined by the blocks of agents' configurations. One exists
// only in Consul, and hosts join it through watch_networks or a block without pools. One is deleted
// and defined again and again. The seventh network has as many subnets as hosts, or one fewer. An
// eighth one, without any host, is defined in a store that has just lost everything, so that its
// records are the first there.
//
// An operator's change makes a network defined or deleted from the moment its record was read back.
// A loss of the store can undo that: a snapshot from before the change restores the earlier state,
// and a host that had not learnt of the change, for example because it was stopped, restores what
// it knows. Then the network may be either until the operator's next change. Nothing else may undo
// a change.
//
// A network with packets is switched between backends, and to new keys. Its definition then names both
// backends, until a host ends the switch. An operator's change determines only the backend to which
// the network goes.
//
// # Who holds a subnet
//
// The store lets only one session lock a record, so one key cannot have two holders there. What
// counts is what hosts act on. A node is on a subnet from the moment its agent's API first says so
// until the API says otherwise. This time is called a tenure. A tenure includes only what is
// certain: it lasts from the response to the first look that shows it to the request of the last.
//
// A silence is a time in which the suite keeps a node's agent from knowing of others: dead,
// stopped, cut off, without its Consul agent or without its token. It ends when the fault is undone
// and the store answers a consistent read from that host with the agent's own token. A stopped host
// that was given up for longer than hold cannot know that its subnet belongs to another host now,
// and its containers keep sending; no system with leases can prevent that. So a tenure ends where a
// silence begins, and a new one begins with the first response after it.
//
// Two live holders of one slot are two overlapping tenures with overlapping subnets. There are two
// excuses, and both end with the settling time. Either one node came back from a silence in which
// the other got the subnet, or the store was set back to an older state in which both had a claim.
// An emptied store, a dead leader or high load excuses nothing.
//
// # What may be taken
//
// Between the last read that showed a record held and the first read that shows it gone or with
// another node, at least the hold time must pass. That applies to nodes that are dead or stopped,
// too. There are four excuses. A node released its subnet, as its own agent says; a store was set
// back, and has its old content again; or a node was silent when the store was emptied, or before
// it could write its record again, and so has been forgotten; or such a node comes back just when
// the store loses everything again, and the one that has got its subnet is not the first to write.
// Every other node must get its own slot back: a node moves only if it was given up, or if a store
// that was set back has another node on its slot. A running agent that moves logs that as an error.
//
// A host that leaves a network releases its subnet, and an operator may revoke a lease: then others may
// have the subnet at once. A node may be without a subnet only while none is free: each was held at some
// time since a lapsed lease, or one that the store has lost, may have been kept for its host.
//
// # What stays of a network, and what is removed
//
// While a network is defined, none of its devices and subnet files disappears, and no running agent
// stops reporting its subnet, whatever happens to the store, the host or the agent. There is one
// exception: an agent whose subnet another live node holds withdraws it, with device and routes,
// until it has a subnet again. An agent that loads other options restarts the network, and need not
// report it until it is done. After a deletion, every calm node releases its lease and removes its
// subnet file, device and routes. A node that was away does so once it is back. The store keeps the
// record of the deletion, and the network does not come back.
//
// # What else must be true of a calm node
//
// A node is calm if it is not silent, the store has no fault, and neither was the case within the
// settling time before. A change of the network, or of the node's options in it, counts as a fault.
// The agent of a calm node responds, its health is passing, it has renewed its lease within the
// TTL, the store has the lease on which it relies, and its view of all leases is that of the store:
// it shows nothing that the store has not had within the settling time, and lacks nothing that the
// store has had all that time. Its subnet file contains the subnets it holds, is at the path in its
// options, and is no longer at the previous path. Agents keep what a store has lost for three times
// the TTL; that is allowed for the records of nodes that could not write them again. There is no
// notification of the end of a session, so a node that replaces another, with its address, has a
// minute from then on.
//
// The settling time is for a machine on which every program gets a CPU when it needs one. The suite
// measures how long the node's agent and its Consul agent waited for a CPU and how long the store
// took to respond, and adds both, up to two minutes in all. Busy servers sometimes consider each
// other dead without a fault: a warning that Consul did not respond is allowed for a single look. A
// warning that there is no handshake with a peer is allowed while that peer is disturbed, and one about
// records that were removed by hand for as long as the documentation says.
//
// Nodes that carry packets have a route to every calm peer. No route may disappear, whether the
// node is calm or not, while its peer is there: not because of a dead agent on either side, a lost
// leader, or an emptied store. It may disappear once the peer was silent for the hold time, was
// silent when the store lost its records, or has moved. The same applies to pings: one may be lost
// only to or from a host that is cut off, was given up, or has moved. All of that includes a network that
// is being switched to another backend, whatever happens at the same time. There is one more excuse for
// a ping: where the agent itself forwards packets (udp, and wireguard without the kernel's), it is lost
// while the agent is dead or stopped, or if it was under way when that began. With wireguard, if the agent
// of a peer was replaced while an agent was stopped, packets between the two flow when the peer repeats its
// handshake, which takes up to 5.3 s.
//
// # Switches to another backend
//
// Hosts follow each change of the backends from what they have, except a host that was given up and comes
// back to peers that were switched without it.
//
// A switch ends once all hosts of the network have been calm for a minute in all. Then a calm host has
// no device, key and route of the former backend, and has the device of the new one. A device may
// disappear only if the definition has named other backends since the host could last follow it. If the
// store lost its records just before, the definition may name them later, until the hosts have settled: a
// host may have read what the suite had no time to read.
//
// A host may boot during a switch: its agent ends, and its devices and routes are gone. Packets to and from it are lost until
// its agent says that the network is ready, and a few seconds more, until its peers have found it. An agent that says so has
// a route to every peer that was there all the time, in a stopped switch as well.
//
// # Faults of a host's own network
//
// Other programs and operators disturb the network of a host that carries packets, while its agent goes on. Such a
// disturbance is no silence, and excuses only what it causes by itself. Rules of another program that iptables cannot show
// excuse nothing: each jump to a chain of leno's is there once, and the other program's rules stay. A routing rule before
// main takes packets of one network, or those to the address of one host. They may be lost, and from the settling time on,
// the check of the routes names the rule in each network whose packets it takes. While IPv6 is switched off on a host, IPv6
// to and from it may be lost, and its agent shows and writes no IPv6 subnet; its slot and its IPv4 stay. A changed MTU
// of the underlay excuses no loss of the small packets that are pinged; the devices and the routes of peers follow within the
// settling time. Where packets flow with a handshake, they flow a few seconds after the end of a disturbance.
//
// A host that changes its addresses is silent until the store answers it again. Packets to and from it may be lost until the
// settling time has passed, and its own kernel may remove its routes. Its slot and the routes of its peers stay.
//
// # Clocks
//
// The suite cannot change the clock of a single host. It moves the times that an agent saved, so that its clock seems to be
// hours ahead or behind when it restarts, and those in records of networks and of their deletion, as if a host with such a
// clock had written them. That excuses nothing.
//
// # A stranger's records
//
// Someone who may write to the store, and is no host, writes records about running hosts and removes them again. No host is
// excused by that: agents may only warn of the records, and of those that were removed for as long as the documentation
// says. A view shows such a record within the settling time, and may show one that was removed for as long. Some are held: by
// a session of the stranger's own, or by that of the host that they name. They give that host nothing, so the rules about
// holders do not count them.
//
// # Attackers
//
// An attacker is a container that sends to the tunnels of other hosts: from the port of the tunnel, so that answers would come
// to it, and packets that claim to be another container's, over IPv4 and IPv6. Nothing of that may arrive, and nothing else may be lost, even
// while networks are switched, agents are dead and the host forgets its connections.
//
// # Etcd
//
// With etcd, the suite has no tokens and no Consul agents on hosts. A session is a pair of etcd leases:
// it ends when a host has been silent for the TTL, and etcd itself removes the record when the hold
// time has passed as well. Restoring a snapshot takes all servers down, so it counts as an outage, too.
// One of the networks is in flannel's own keys.
//
// # What does not concern leno
//
// A fault that cannot be made or undone is an incident: the suite repairs the host or the store's
// servers by force and continues. A host that cannot be repaired leaves the run: its silence never
// ends. If the store cannot be repaired, on SIGINT and SIGTERM, and after a panic in the suite, the
// run ends early, with a report of what was seen until then.
package soak
