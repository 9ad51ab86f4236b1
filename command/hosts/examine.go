package hosts

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/fleet"
	"github.com/lenonet/leno/api"
)

const (
	// asking is how many agents are asked at once, and perHost the time that each has. Longest bounds the examination.
	asking  = 16
	perHost = 20 * time.Second
	// Longest bounds the examination. Hosts that were not asked by then are judged by what they tell the others.
	Longest = 2 * time.Minute

	// What an agent on another host may answer: so much, and for each host of the network. A host takes about 600 bytes
	// and 4 objects.
	answerBytes, bytesPerHost     = 1 << 20, 2 << 10
	answerObjects, objectsPerHost = 1000, 16
)

// Placeholders of a peer address.
const (
	ipPlaceholder   = "{ip}"
	nodePlaceholder = "{node}"
)

// Diagnosis is what `leno doctor -all` found.
type Diagnosis struct {
	Hosts    int             `json:"hosts"`     // with a lease, in all networks that were examined
	Asked    int             `json:"asked"`     // whose agents answered, this one included
	NotAsked []NotAsked      `json:"not_asked"` // whose agents did not; empty if the addresses of the agents are not known
	Took     time.Duration   `json:"took_ns"`
	Findings []fleet.Finding `json:"findings"` // one for each cause, worst first
}

// NotAsked is a host that is judged by what it tells the others.
type NotAsked struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// Options are what an examination needs.
type Options struct {
	Network string // only this one; "" for all of this host
	Passive bool   // send no packets, not even from this host

	// Address is that of the agents on other hosts, such as "http://{ip}:5366"; "" for none unless this host's agent is
	// like it.
	Address string

	Now func() time.Time

	// Open returns a client of the agent on another host. It must not have a token, because that host says which address
	// it has.
	Open func(address string, maxBody int64, maxObjects int) (*api.Client, error)
}

// CheckAddress returns an error if an address of the agents on other hosts does not depend on the host.
func CheckAddress(address string) error {
	if address != "" && !strings.Contains(address, ipPlaceholder) && !strings.Contains(address, nodePlaceholder) {
		return errors.New("contains neither {ip} nor {node}, for example {ip}:5366")
	}
	return nil
}

// Examine examines all hosts: this one through c, the others through their agents as far as these answer.
func Examine(ctx context.Context, c *api.Client, o Options) (Diagnosis, error) {
	began := o.Now()
	ctx, cancel := context.WithTimeout(ctx, Longest)
	defer cancel()
	networks := []string{o.Network}
	if o.Network == "" {
		self, err := c.Self(ctx)
		if err != nil {
			return Diagnosis{}, err
		}
		networks = self.Networks
	}
	if o.Address == "" {
		address, err := addressLike(ctx, c)
		if err != nil {
			return Diagnosis{}, err
		}
		o.Address = address
	}
	e := &examination{Options: o, known: map[string]bool{}, asked: map[string]bool{}, reasons: map[string]string{}}
	out := Diagnosis{NotAsked: []NotAsked{}, Findings: []fleet.Finding{}}
	for _, network := range networks {
		list, err := c.Hosts(ctx, network)
		if err != nil {
			return Diagnosis{}, err
		}
		hosts, err := e.ask(ctx, c, network, list.Hosts)
		if err != nil {
			return Diagnosis{}, err
		}
		out.Findings = append(out.Findings, fleet.Merge(network, hosts)...)
	}
	out.Hosts, out.Asked, out.Took = len(e.known), len(e.asked), o.Now().Sub(began)
	for node, reason := range e.reasons {
		if !e.asked[node] {
			out.NotAsked = append(out.NotAsked, NotAsked{node, reason})
		}
	}
	slices.SortFunc(out.NotAsked, func(a, b NotAsked) int { return strings.Compare(a.Node, b.Node) })
	return out, nil
}

// examination asks agents.
type examination struct {
	Options

	mu      sync.Mutex
	known   map[string]bool   // by name
	asked   map[string]bool   // those that answered
	reasons map[string]string // of those that did not
}

// ask asks the hosts of a network. The error is that of this host's agent.
func (e *examination) ask(ctx context.Context, c *api.Client, network string, list []api.Host) ([]fleet.Host, error) {
	out := make([]fleet.Host, len(list))
	isTested := slices.ContainsFunc(list, func(h api.Host) bool { return h.Path != nil })
	others := make(chan *fleet.Host)
	var wg sync.WaitGroup
	for range asking {
		wg.Go(func() {
			for h := range others {
				e.askHost(ctx, network, len(list), h)
			}
		})
	}
	var err error          // of this host's agent
	var lost []*fleet.Host // asked last, because those that are down let everyone wait
	for i, h := range list {
		out[i].Host = h
		e.known[h.Node] = true
		switch {
		case !h.Own && h.Path != nil && h.Path.State == api.PathLost:
			lost = append(lost, &out[i])
			continue
		case !h.Own:
			others <- &out[i]
			continue
		}
		wg.Go(func() {
			var found api.Diagnosis
			found, err = c.Doctor(ctx, api.DoctorOptions{Network: network, Passive: e.Passive || isTested})
			out[i].Findings = append([]api.Finding{}, found.Findings...)
			e.note(h.Node, err)
		})
	}
	for _, h := range lost {
		others <- h
	}
	close(others)
	wg.Wait()
	return out, err
}

// askHost asks the agent of another host, in a network of so many, for its paths, and makes it examine its host without
// sending packets: it tests its paths all the time.
func (e *examination) askHost(ctx context.Context, network string, hosts int, h *fleet.Host) {
	if e.Address == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, perHost)
	defer cancel()
	switch {
	case !h.Held:
		e.note(h.Node, errors.New("its lease is not held"))
		return
	case len(h.PublicIPs) == 0 && strings.Contains(e.Address, ipPlaceholder):
		e.note(h.Node, errors.New("it has no public address"))
		return
	}
	address := strings.ReplaceAll(e.Address, nodePlaceholder, h.Node)
	if len(h.PublicIPs) > 0 {
		ip := h.PublicIPs[0].String()
		if h.PublicIPs[0].Is6() {
			ip = "[" + ip + "]"
		}
		address = strings.ReplaceAll(address, ipPlaceholder, ip)
	}
	maxBody, maxObjects := answerBytes+bytesPerHost*int64(hosts), answerObjects+objectsPerHost*hosts
	c, err := e.Open(address, maxBody, maxObjects)
	if err != nil {
		e.note(h.Node, err)
		return
	}
	defer c.Close()
	list, err := c.Hosts(ctx, network)
	if err != nil {
		e.note(h.Node, err)
		return
	}
	h.Paths = map[netip.Prefix]api.PeerPath{}
	for _, other := range list.Hosts {
		if other.Path != nil && len(other.Subnets) > 0 {
			h.Paths[other.Subnets[0]] = *other.Path
		}
	}
	found, err := c.Doctor(ctx, api.DoctorOptions{Network: network, Passive: true})
	if err == nil {
		h.Findings = append([]api.Finding{}, found.Findings...)
	}
	e.note(h.Node, err)
}

// note counts a host that was asked, and keeps why one was not.
func (e *examination) note(node string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.asked[node] = true
		return
	}
	e.reasons[node] = err.Error()
}

// addressLike returns the address of the agents on other hosts if they are configured like this host's, whose API other
// hosts reach; "" if they do not.
func addressLike(ctx context.Context, c *api.Client) (string, error) {
	conf, err := c.Configuration(ctx)
	if err != nil {
		return "", err
	}
	scheme, address := "http://", ""
	for _, s := range conf.Settings {
		value := strings.Trim(s.Value, `"`)
		switch {
		case s.Name == "http.address":
			address = value
		case s.Name == "http.tls.cert_file" && value != "":
			scheme = "https://"
		}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "localhost" {
		return "", nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return "", nil
	}
	return scheme + ipPlaceholder + ":" + port, nil
}
