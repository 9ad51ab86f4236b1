package agent

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/examine"
	"github.com/lenonet/leno/api"
)

func (a *Agent) doctorEndpoints() []endpoint {
	return []endpoint{
		{"PUT /v1/agent/doctor", a.wrap(a.putDoctor)},
	}
}

// putDoctor examines this host, once at a time. It changes nothing, and may send
// packets.
func (a *Agent) putDoctor(r *http.Request) (reply, error) {
	passive, err := flag(r, "passive")
	if err != nil {
		return reply{}, err
	}
	o := api.DoctorOptions{Network: r.URL.Query().Get("network"), Passive: passive}
	if known := a.self().Networks; o.Network != "" && !slices.Contains(known, o.Network) {
		list := "it takes part in none"
		if len(known) > 0 {
			list = "it takes part in " + strings.Join(known, ", ")
		}
		return reply{}, &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("this host takes no part in network %q: %s", o.Network, list)}
	}
	ctx, cancel := context.WithTimeout(r.Context(), examine.Timeout)
	defer cancel()
	out, err := a.examine(ctx, o)
	if err != nil {
		return reply{}, err
	}
	return reply{body: out}, nil
}
