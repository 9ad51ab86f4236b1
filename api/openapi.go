package api

import _ "embed" // the document is part of the program

// OpenAPI is the description of the agent's HTTP API, in YAML, as OpenAPI 3.0 has
// it (https://spec.openapis.org/oas/v3.0.3). The agent serves it under
// /v1/openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI string
