package access

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// denied requests every change that the API makes in Consul from the agent of a, without a token
// and with one that may not write. Each response is a 403 with Consul's reason, and nothing is
// changed: the agent does not use its own token, which has the rights, for a client.
func (w *testWorld) denied(a, b *lab.Host) {
	w.T.Helper()
	powerless := w.newToken("powerless", `key_prefix "leno/" { policy = "read" }`)
	other := key(w.Subnet(b, "default").String())
	reservation := "/v1/network/default/reservation/" + key(w.Free("default").String())
	before := w.local(a)
	definition := `{"pools":[{"prefix":"10.7.0.0/16"}],"backend":{"type":"alloc"}}`
	for _, change := range []string{
		"PUT /v1/network/green " + definition,
		"DELETE /v1/network/default?force=true",
		"DELETE /v1/network/default/lease/" + other,
		"PUT /v1/network/default/renew",
		"PUT /v1/network/default/release",
		"PUT " + reservation + ` {"node":"host-z"}`,
		"DELETE " + reservation,
	} {
		for _, header := range []string{"", "X-Consul-Token: " + powerless, "Authorization: Bearer " + powerless} {
			status, body := w.change(a, change, header)
			var refused api.Error
			if err := json.Unmarshal([]byte(body), &refused); err != nil || status != http.StatusForbidden || refused.Code != status ||
				!strings.Contains(refused.Message, "ermission denied") || header != "" && !strings.Contains(refused.Message, "lacks permission") {
				w.T.Errorf("%s with %q: %d %s", change, header, status, body)
			}
		}
	}
	if now := w.local(a); fmt.Sprint(now.Subnets) != fmt.Sprint(before.Subnets) || now.State != before.State {
		w.T.Errorf("changed all the same: %+v, before %+v", now, before)
	}
	for _, method := range []string{"PUT", "DELETE"} {
		if status, body := w.change(a, method+" "+reservation+` {"node":"host-z"}`, "Authorization: Bearer "+world.OperatorToken); status != http.StatusOK {
			w.T.Errorf("%s with rights: %d %s", method, status, body)
		}
	}
}

// key returns a subnet as it appears in a path, "10.5.34.0-24".
func key(subnet string) string { return strings.ReplaceAll(subnet, "/", "-") }

// change sends a request, "METHOD path body", to the agent of a host.
func (w *testWorld) change(h *lab.Host, request, header string) (int, string) {
	w.T.Helper()
	part := append(strings.SplitN(request, " ", 3), "")
	r, err := http.NewRequestWithContext(w.Ctx, part[0], "http://"+api.DefaultAddress+part[1], strings.NewReader(part[2]))
	w.Must(err)
	if name, value, ok := strings.Cut(header, ": "); ok {
		r.Header.Set(name, value)
	}
	answer, err := h.HTTP().Do(r)
	w.Must(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	w.Must(err)
	return answer.StatusCode, string(body)
}
