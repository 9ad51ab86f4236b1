package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Statuses of a finding, worst first.
const (
	FindingFault   = "fault"   // something is wrong, and Do has the fix
	FindingWarning = "warning" // worth knowing: a host that is down, a store that is away while packets flow
	FindingUnknown = "unknown" // could not be examined, and Saw has the reason
	FindingOK      = "ok"
)

// Finding is the result of examining one part of the host.
type Finding struct {
	Check   string `json:"check"`             // consul, acl, port, path_mtu, …
	Status  string `json:"status"`            //
	Network string `json:"network,omitempty"` // "" for the whole host
	Peer    string `json:"peer,omitempty"`    // node name of the other host it is about
	Tried   string `json:"tried"`             // what was done to find out
	Saw     string `json:"saw"`               // what was found
	Do      string `json:"do,omitempty"`      // how to fix it, "" when there is nothing to do
	Docs    string `json:"docs,omitempty"`    // the section of the documentation about the check: PAGE#ANCHOR; "" if ok
}

// Diagnosis is the response of PUT /v1/agent/doctor.
type Diagnosis struct {
	Node     string        `json:"node"`
	Agent    bool          `json:"agent"`  // an agent examined itself; false if the examination ran without an agent
	Active   bool          `json:"active"` // packets were sent
	Took     time.Duration `json:"took_ns"`
	Findings []Finding     `json:"findings"` // causes before their consequences, worst first
}

// DoctorOptions limit the examination; the zero value examines everything.
type DoctorOptions struct {
	Network string // only this one
	Passive bool   // send no packets to other hosts
}

// Doctor makes the agent examine its host, its records in the store and the paths to the other
// hosts (PUT /v1/agent/doctor). It takes seconds and changes nothing. Code 404 means that the
// agent takes no part in the network, 409 that an examination is already running.
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
