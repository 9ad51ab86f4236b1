// Package ui renders the agent's status page: plain values in, HTML out. It does not know where the values come from,
// and the page cannot change anything.
//
// The page works without JavaScript. With it, the script requests the page again when the API's blocking reads report
// a change, and applies the differences in place.
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

// Page holds the content of one page. Any text may come from other hosts.
type Page struct {
	Node, NodeID string // "" until known
	Version      string
	Registry     string
	Started      time.Time
	Now          time.Time // only for dates: the page of a quiet agent does not change

	Health   api.Health
	Networks []Network   // all in the overview, else the page's network
	Known    []string    // all networks of this host, for navigation
	Others   []Other     // networks in the store that this host does not take part in
	Events   []api.Event // newest first
	Only     string      // the network the page is about, "" for the overview

	Query string // only hosts with this text in their names or addresses are shown
	From  int    // first row shown
	Path  string // the path, or the host, that is explained below the table of paths
}

// Network describes one network that this host takes part in.
type Network struct {
	Name    string
	Backend string
	Plan    registry.Plan // nil until known
	Local   api.Local
	Health  api.NetworkHealth
	Rows    []Row      // the slots that are not free, in order
	Hosts   []api.Host // those with a problem first; nil if they are not known
	Drops   map[string]uint64
	Skipped int    // records that could not be used
	Trouble string // why the data about slots is old or missing, "" when it is not
}

// Other is a network that this host does not take part in.
type Other struct {
	Name, Prefixes, Backend string
}

// State is the state of a slot.
type State int

// The states of a slot. Where the map shows several slots as one, a later state covers an earlier one.
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
	Note      string        // a remark for the reader
	Counters  *api.Counters // nil where the backend does not count each peer
	Path      *api.PeerPath // nil where the path is not tested
}

// Renderer renders pages. It is safe for concurrent use.
type Renderer struct {
	page  *template.Template
	files map[string]asset
}

// New parses the template and loads the assets.
func New() (*Renderer, error) {
	r := &Renderer{files: map[string]asset{}}
	if err := r.load(); err != nil {
		return nil, err
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"asset": r.address, "bytes": bytesOf, "number": number, "clock": clock, "age": age, "drops": drops,
		"statusWord": statusWord, "hostIcon": hostIcon, "hostWord": hostWord, "word": State.String, "otherPaths": otherPaths,
		"spark": newSpark, "pair": func(v view, p part) pair { return pair{v, p} },
	}).Parse(source)
	if err != nil {
		return nil, fmt.Errorf("template of the page: %w", err)
	}
	r.page = t
	return r, nil
}

// Render returns the page's HTML.
func (r *Renderer) Render(p Page) ([]byte, error) {
	var out bytes.Buffer
	if err := r.page.ExecuteTemplate(&out, "page", newView(p)); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Missing returns a page that says what was not found; root is the relative path to the parent of /ui.
func (r *Renderer) Missing(root, what string) ([]byte, error) {
	var out bytes.Buffer
	err := r.page.ExecuteTemplate(&out, "missing", map[string]string{"Root": root, "What": what})
	return out.Bytes(), err
}
