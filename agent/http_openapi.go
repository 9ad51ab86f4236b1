package agent

import (
	"net/http"

	"github.com/lenonet/leno/api"
)

func (a *Agent) openAPIEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/openapi.yaml", a.openAPI},
	}
}

// openAPI answers the description of the API. The media type is RFC 9512's.
func (a *Agent) openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	if _, err := w.Write([]byte(api.OpenAPI)); err != nil {
		a.log.Debug("http answer was cut off", "error", err)
	}
}
