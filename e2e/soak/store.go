package soak

import (
	"context"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// A pair is one record of the store. Its key is the one that it has in Consul, whatever the store is:
// "leno/networks/NAME", "leno/leases/NAME/10.5.34.0-24" or "leno/reservations/NAME/10.5.34.0-24". In
// etcd, the last part of a lease's key may name a subnet of each family.
type pair struct {
	key     string
	value   []byte // as it is stored
	record  []byte // leno's own record: the value, or in etcd its member "leno"
	session string // "" if none holds it
	version uint64
}

// A store is the store of a run. The methods make one attempt. They read consistently and write through
// the leading server, except those with a server as parameter, which is an index.
type store interface {
	// setUp prepares the rights of a machine's agent.
	setUp(ctx context.Context, m *machine) error
	// config returns the block of a machine's configuration.
	config(m *machine) string
	// operator returns the flags with which an operator's commands may do everything.
	operator() []string

	leader(ctx context.Context) (int, error)
	// answers returns nil if the server answers a consistent read.
	answers(ctx context.Context, server int) error
	// answersOn returns nil if the store answers a consistent read where the machine's agent asks, with
	// the agent's rights.
	answersOn(ctx context.Context, m *machine) error
	// upToDate returns nil when every server knows what the store contained at the time of the call.
	upToDate(ctx context.Context) error
	// diagnose describes the state of a server.
	diagnose(ctx context.Context, server int) string

	list(ctx context.Context, server int) ([]pair, error)
	// read returns nil if there is no record.
	read(ctx context.Context, key string) (*pair, error)
	write(ctx context.Context, key string, value []byte) error
	// forge writes a record as someone who is no host, held by the session. "" is none, or in etcd a lease of the
	// writer's own.
	forge(ctx context.Context, key string, value []byte, session string) error
	// replace writes another value, or deletes the record if the value is nil, unless the record was
	// changed since it was read.
	replace(ctx context.Context, p pair, value []byte) (done bool, err error)
	delete(ctx context.Context, key string) error
	// deleteAll deletes everything that leno has written.
	deleteAll(ctx context.Context) error

	save(ctx context.Context) ([]byte, error)
	restore(ctx context.Context, snapshot []byte) error
	// compact discards the history of the records.
	compact(ctx context.Context) error
}

// onLeader calls do until it succeeds.
func (r *run) onLeader(ctx context.Context, what string, do func(context.Context) error) error {
	return await(ctx, patience, "the store to "+what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		return do(ctx)
	})
}

// newStore returns the store of the run's lab.
func (r *run) newStore() store {
	if r.Lab.Etcd != nil {
		return &etcdStore{r}
	}
	return &consulStore{r}
}

// hasConsul reports whether hosts run Consul client agents, with tokens.
func (o Options) hasConsul() bool { return o.Store != lab.StoreEtcd }

func networkKey(name string) string { return "leno/networks/" + name }
func leasesKey(name string) string  { return "leno/leases/" + name + "/" }

// leaseKeyOf returns the parts of the key of a lease.
func leaseKeyOf(key string) (network, subnets string, ok bool) {
	rest, ok := strings.CutPrefix(key, "leno/leases/")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}
