package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/hostnames"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/ui"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Options are what a Server needs. Agent, Registry, Health, Telemetry and NewLoop are required.
type Options struct {
	Agent     Agent
	Socket    string // path of a socket where the API is served besides its address, "" for none
	Logs      *logging.Log
	Registry  registry.Registry // under the agent's own token
	Store     string            // the kind of the store, such as config.StoreEtcd; "" for Consul
	Backends  map[string]backend.Type
	Health    *health.Board
	Telemetry *telemetry.Telemetry
	NewLoop   func() *retry.Loop // paces reads of the store that fail
	Limits    Limits             // zero for DefaultLimits

	// Named is closed once the node name is known.
	Named <-chan struct{}

	// LookupName is for tests: hostnames.Options.LookUp.
	LookupName func(ctx context.Context, name string) (full string, addrs []netip.Addr, err error)
}

// Limits are what clients may ask of the server. A request beyond them is refused with a reason where a reason can be
// sent. /healthz and /readyz always answer.
type Limits struct {
	Body        int64         // bytes of a request's body
	Header      int           // bytes of a request's line and header
	HeaderTime  time.Duration // for a request's header, and for TLS
	RequestTime time.Duration // for a request, and as long again for its answer; not for reads that wait
	BodyDrain   time.Duration // for the rest of a request that was answered before it was read
	Idle        time.Duration // that a connection stays open without a request
	Connections int           // at once, of each listener; others wait until one is closed
	Requests    int           // being answered at once; fewer than Connections
	Readers     int           // waiting at once; they count as requests, too

	StoreRequests int           // reading or writing the store at once, far fewer than its connections for this host
	StoreWait     time.Duration // of others until they may
}

// DefaultLimits returns the limits of an agent.
func DefaultLimits() Limits {
	return Limits{
		Body:        1 << 20,
		Header:      64 << 10,
		HeaderTime:  10 * time.Second,
		RequestTime: 30 * time.Second,
		BodyDrain:   time.Second,
		Idle:        30 * time.Second,
		Connections: 2000,
		Requests:    1500,
		Readers:     1000,

		StoreRequests: 32,
		StoreWait:     5 * time.Second,
	}
}

// endpoint is one entry of the API.
type endpoint struct {
	pattern string // of http.ServeMux, such as "GET /v1/networks"
	handler http.HandlerFunc
}

// A Server serves the API.
type Server struct {
	o            Options
	log          hclog.Logger
	respond      responder
	cache        *query.Cache
	endpoints    []endpoint
	page         *statusPage
	certificates certificates
	names        *hostnames.Names
	waiting      atomic.Int64 // requests that wait for a change
}

// New returns a Server. It touches nothing outside the process.
func New(o Options) (*Server, error) {
	renderer, err := ui.New()
	if err != nil {
		return nil, fmt.Errorf("status page: %w", err)
	}
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	log := o.Logs.Logger()
	s := &Server{
		o:       o,
		log:     log,
		respond: responder{log},
		cache:   query.New(o.NewLoop, o.Limits.Readers),
		names: hostnames.New(hostnames.Options{
			Config:   o.Agent.Config,
			NodeName: func() string { return o.Agent.Self().NodeName },
			Named:    o.Named,
			LookUp:   o.LookupName,
		}),
	}
	s.endpoints = s.newEndpoints()
	s.page = &statusPage{s, renderer}
	return s, nil
}

// HostNames returns the names of this host.
func (s *Server) HostNames() *hostnames.Names { return s.names }

// Waiting returns how many requests wait for a change.
func (s *Server) Waiting() int { return int(s.waiting.Load()) }
