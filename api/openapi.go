package api

import _ "embed" // the document is part of the program

// OpenAPI describes the agent's HTTP API in YAML, as OpenAPI 3.0
// (https://spec.openapis.org/oas/v3.0.3). The agent serves it at /v1/openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI string
