package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// What a finding can say, worst first.
const (
	FindingFault   = "fault"   // something is wrong, and Do says what to do
	FindingWarning = "warning" // worth knowing: a host that is down, a store that is away while packets flow
	FindingUnknown = "unknown" // could not be looked at, and Saw says why
	FindingOK      = "ok"
)

// Finding is what one examination of a part of the host came to.
type Finding struct {
	Check   string `json:"check"`             // consul, acl, port, path_mtu, …
	Status  string `json:"status"`            //
	Network string `json:"network,omitempty"` // "" for the whole host
	Peer    string `json:"peer,omitempty"`    // node name of the other host it is about
	Tried   string `json:"tried"`             // what was done to find out
	Saw     string `json:"saw"`               // what came of it
	Do      string `json:"do,omitempty"`      // what to do about it, "" when nothing
}

// Diagnosis is the answer of PUT /v1/agent/doctor.
type Diagnosis struct {
	Node     string        `json:"node"`
	Agent    bool          `json:"agent"`  // an agent examined itself; false for what can be seen without one
	Active   bool          `json:"active"` // packets were sent
	Took     time.Duration `json:"took_ns"`
	Findings []Finding     `json:"findings"` // causes before what follows from them, worst first
}

// DoctorOptions say what is examined; the zero value is everything.
type DoctorOptions struct {
	Network string // this one alone
	Passive bool   // send no packets to other hosts
}

// Doctor has the agent examine its host, what it has in the store and the ways to
// the other hosts (PUT /v1/agent/doctor). It takes seconds. Nothing is changed.
// Code 404 when the agent takes no part in the network; 409 says that it is examining
// itself already.
func (c *Client) Doctor(ctx context.Context, o DoctorOptions) (Diagnosis, error) {
	values := url.Values{}
	if o.Network != "" {
		values.Set("network", o.Network)
	}
	if o.Passive {
		values.Set("passive", "true")
	}
	p := "/v1/agent/doctor"
	if len(values) > 0 {
		p += "?" + values.Encode()
	}
	var out Diagnosis
	_, err := c.do(ctx, http.MethodPut, p, nil, &out)
	return out, err
}
