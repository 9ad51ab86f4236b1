// Package ui draws the agent's status page: plain values in, HTML out. It knows
// nothing of how the agent comes by what is shown, and nothing of it can be
// changed through the page.
//
// The page is whole without JavaScript. With it, the script asks for the page
// again when the API's blocking reads say that something is new, and puts the
// differences in place.
package ui

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/netip"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

//go:embed page.html
var source string

//go:embed assets
var assets embed.FS

// Page is what one page shows. Text of other hosts may stand anywhere in it.
type Page struct {
	Node, NodeID string // "" until known
	Version      string
	Registry     string
	Started      time.Time
	Now          time.Time // for dates alone: the page of a quiet agent does not change

	Health   api.Health
	Networks []Network   // in the overview all, else the one it is about
	Known    []string    // all networks of this host, for navigation
	Others   []Other     // that are in the store and this host takes no part in
	Events   []api.Event // newest first
	Only     string      // the network the page is about, "" for the overview

	Query string // hosts that have it in their names or addresses are shown
	From  int    // first row shown
}

// Network is one network as this host takes part in it.
type Network struct {
	Name    string
	Backend string
	Plan    registry.Plan // nil until known
	Local   api.Local
	Health  api.NetworkHealth
	Rows    []Row // the slots that are not free, in order
	Drops   map[string]uint64
	Skipped int    // records that could not be used
	Trouble string // why what is known of slots is old or missing, "" when it is not
}

// Other is a network this host takes no part in.
type Other struct {
	Name, Prefixes, Backend string
}

// State is how it stands with a slot.
type State int

// What a slot can be, in the order in which one covers another where the map
// shows several as one.
const (
	Free     State = iota
	Reserved       // kept for a host that has no lease on it
	Held
	Lapsed
	Own
	Contradictory // its record cannot be used, or contradicts another
)

var stateNames = [...]string{"free", "reserved", "held", "lapsed", "own", "contradictory"}

func (s State) String() string { return stateNames[s] }

// Row is a slot that is not free.
type Row struct {
	Slot      uint64
	Subnets   []netip.Prefix
	State     State
	Node      string
	PublicIPs []netip.Addr
	Backend   string
	MTU       int
	Lapsed    time.Duration // since this agent saw it lapse
	Note      string        // what is to be said about it
	Counters  *api.Counters // nil where the backend does not count each peer
}

// Renderer makes pages. It may be used concurrently.
type Renderer struct {
	page  *template.Template
	files map[string]asset
}

// New reads the template and the assets.
func New() (*Renderer, error) {
	r := &Renderer{files: map[string]asset{}}
	if err := r.load(); err != nil {
		return nil, err
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"asset": r.address, "bytes": bytesOf, "number": number, "clock": clock, "age": age, "drops": drops,
		"statusWord": statusWord, "word": State.String, "pair": func(v view, p part) pair { return pair{v, p} },
	}).Parse(source)
	if err != nil {
		return nil, fmt.Errorf("template of the page: %w", err)
	}
	r.page = t
	return r, nil
}

// Render is the page's HTML.
func (r *Renderer) Render(p Page) ([]byte, error) {
	var out bytes.Buffer
	if err := r.page.ExecuteTemplate(&out, "page", newView(p)); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Missing is a page that says what there is not; root is the way from it to where
// /ui is.
func (r *Renderer) Missing(root, what string) ([]byte, error) {
	var out bytes.Buffer
	err := r.page.ExecuteTemplate(&out, "missing", map[string]string{"Root": root, "What": what})
	return out.Bytes(), err
}
