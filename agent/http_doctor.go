package agent

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

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
	if since, ok := a.exams.begin(); !ok {
		return reply{}, &api.Error{Code: http.StatusConflict,
			Message: fmt.Sprintf("an examination is running since %s: try again when it is done", time.Since(since).Round(time.Second))}
	}
	defer a.exams.end()
	ctx, cancel := context.WithTimeout(r.Context(), examine.Timeout)
	defer cancel()
	return reply{body: a.diagnose(ctx, o)}, nil
}
