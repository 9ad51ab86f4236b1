package registry

import (
	"context"
	"net/netip"
	"time"
)

// Abilities are what only some stores can do. Those that a store lacks are nil.
type Abilities struct {
	// Probe makes one small request that needs the whole store: one read by the leader, under the client's token.
	// Errors: ErrUnavailable, ErrDenied, ErrUncertain.
	Probe func(ctx context.Context) error

	// Followed returns the time when the store last said with certainty which leases a network has, or that nothing has
	// changed; zero for never. A store with Followed remembers the answers of WatchLeases, and has Forget, too.
	Followed func(network string) time.Time

	// Forget drops what the client remembers of the leases of a network that was deleted, or that this host has left.
	// If the network is defined again, or the host returns, its earlier leases are not mistaken for leases that the
	// store has lost.
	Forget func(network string)

	// NodeName returns the store's name of this host, or "" when the store's own agent is not on this host and so cannot
	// name it.
	NodeName func(ctx context.Context) (string, error)

	// Members returns which hosts the failure detection of the store's own agents finds alive: what the agent on this host
	// knows, without asking a server, and none if there is no such agent or the token may not see them. It does not block.
	// The result is a hint that this host has not verified.
	Members func(ctx context.Context) ([]Member, error)

	// SetSettle sets how long records that are missing now are kept, if they may have been lost.
	SetSettle func(d time.Duration)

	// SetUser makes later requests use a user and a password. "" as the name means no authentication.
	SetUser func(name, password string)

	// PrepareToken reads a token file or logs in, if the credentials say so. take makes all later requests of the client
	// use them; drop forgets them.
	PrepareToken func(ctx context.Context, to Credentials) (take, drop func(), err error)

	// Close ends the use of the store: nothing is called after it. Calls in progress fail, or end with their contexts.
	Close func() error

	// IsCertified says that the store knows this client by a certificate. As does not lend it: every other caller must
	// have credentials that the store checks.
	IsCertified bool

	Logins  Logins      // of a store that can get its token by logging in
	Records HostFinder  // nil: the records end with the process
	Rights  RightsCheck // of a store that has rights
	Catalog Catalog     // of services
}

// Logins keep the token that a store got by logging in.
type Logins interface {
	// RenewLogin logs in if that is due. It returns when it has to be called again, which is the zero time for never.
	RenewLogin(ctx context.Context) (next time.Time, err error)
	// AuthMethod returns the auth method in use, "" for a store that does not log in.
	AuthMethod() string
	// LoginChanged returns a channel that is closed when RenewLogin has to be called earlier than it said.
	LoginChanged() <-chan struct{}
	// Logout deletes the tokens and ends the use of the store. It returns when ctx ends at the latest.
	Logout(ctx context.Context) error
}

// HostFinder finds the records of one host in the store, whatever the host remembers of them.
type HostFinder interface {
	// HostRecords returns the records that name the host in one network, or in all networks if network is "", including
	// networks that no longer exist. The error is ErrUncertain if the answer may be incomplete.
	HostRecords(ctx context.Context, network string, h Host) (HostRecords, error)
	// EndSession ends a session that holds no lease. If it has already ended, that is no error.
	EndSession(ctx context.Context, id string) error
}

// RightsCheck tells which rights a client has.
type RightsCheck interface {
	// Rights returns each rule that an agent needs and whether the client's token grants it, without using the right.
	// It returns none if the store has no rights. The error is ErrDenied if the store does not know the token.
	Rights(ctx context.Context, w RequiredRights) ([]Right, error)
	// HasToken reports whether the client has a token or a way to get one.
	HasToken() bool
}

// Catalog shows services.
type Catalog interface {
	// Announce makes the catalogue show s with the verdict v. It reads first, and writes only if something differs, so
	// it can be repeated often. Catalogues forget. The error is ErrNotPolled if it shows s, but its last poll of
	// s.HealthURL got no answer.
	Announce(ctx context.Context, s Service, v Verdict) error
	// Withdraw removes a service. If there is none, that is no error.
	Withdraw(ctx context.Context, s Service) error
	// Duplicates returns the services that have the same value of one meta entry as s and another ID: those of the same
	// agent from when it had another name.
	Duplicates(ctx context.Context, s Service, meta string) ([]Service, error)
	// RegisteredService returns the service with an ID as the catalogue has it, and false if there is none.
	RegisteredService(ctx context.Context, id string) (Service, bool, error)
}

// Service is one agent in the catalogue.
type Service struct {
	Name      string     // "leno"
	ID        string     // unique on the node
	Address   netip.Addr // where others reach the agent's host; invalid for the node's own address
	Port      int        // of the agent's HTTP API, 0 for none
	HealthURL string     // URL that the catalogue polls; "" for a TTL check fed by Announce
	Tags      []string
	Meta      map[string]string
	// Epoch is the time when the store was last seen to be set back, for example "2026-01-02T03:04:05Z". The catalogue
	// may have been set back with it, although everything looks right, so a new value registers the service again. It is
	// "" while that has not happened.
	Epoch string
}

// Verdict is the agent's health as shown in catalogues.
type Verdict struct {
	Status string // "passing", "warning" or "critical"
	Output string // reasons, a few lines
}

// RequiredRights describes what an agent does in a store, from which the rights follow that it needs.
type RequiredRights struct {
	Node     string   // the agent's name
	Named    bool     // the store need not tell the name
	Networks []string // networks that the agent takes part in
	Defines  []string // those of them that the agent defines itself where they are missing
	Service  string   // the agent's name in the catalogue, "" for none
}

// Right is one rule of a policy.
type Right struct {
	Rule    string // as the store writes it: `key_prefix "leno/leases/" { policy = "write" }`
	For     string // what it is needed for: "to write this host's lease"
	Granted bool
}

// Host identifies one host in a store.
type Host struct {
	Node     string   // name, "" when it is not known
	NodeID   string   // "" when it is not known
	Sessions []string // sessions that the host remembers
}

// HostRecords are the records that a host has in a store.
type HostRecords struct {
	// Leases name the node or the node id, or are locked by one of the sessions. The records may be unusable: only
	// network, the first subnet and the session are certain, other fields are filled in as far as they can be read.
	Leases []Lease
	// Sessions hold no lease, and carry the host's name or are among those that it remembers.
	Sessions []string
}

// Values of Member.Status.
const (
	MemberAlive  = "alive"
	MemberFailed = "failed" // it stopped answering the others
	MemberLeft   = "left"   // it said that it stops
)

// Member is a host as the agents of a store know it from each other.
type Member struct {
	Node   string // its name in the store, which may differ from leno's
	Addr   netip.Addr
	Status string
}
