package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/lenonet/leno/api"
)

// apiMethods is the order of the methods of one path.
var apiMethods = []string{"GET", "PUT", "POST", "DELETE"}

// apiExamples has the path and the body of each operation's example. The answers are in testdata/api.
var apiExamples = map[string]struct{ path, body string }{
	"health": {"/healthz?network=default", ""}, "ready": {"/readyz", ""},
	"self": {"/v1/agent/self", ""}, "configuration": {"/v1/agent/config", ""}, "reload": {"/v1/agent/reload", ""},
	"monitor": {"/v1/agent/monitor?log_level=trace", ""}, "doctor": {"/v1/agent/doctor?passive=true", ""},
	"trace":  {"/v1/agent/trace", `{"source":"10.5.34.2","destination":"10.5.35.2"}`},
	"events": {"/v1/agent/events?network=default", ""}, "metrics": {"/v1/agent/metrics", ""}, "openapi": {"/v1/openapi.yaml", ""},
	"networks": {"/v1/networks", ""}, "network": {"/v1/network/default", ""},
	"putNetwork":    {"/v1/network/green", `{"pools":[{"prefix":"10.9.0.0/20"}],"backend":{"type":"host-gw"}}`},
	"planNetwork":   {"/v1/network/green/plan", `{"pools":[{"prefix":"10.9.0.0/20"}],"backend":{"type":"host-gw"}}`},
	"deleteNetwork": {"/v1/network/green", ""}, "releaseLease": {"/v1/network/default/release", ""},
	"networkSwitch": {"/v1/network/default/switch", ""}, "changeSwitch": {"/v1/network/default/switch", `{"action":"stop"}`},
	"renewLease": {"/v1/network/default/renew", ""}, "leases": {"/v1/network/default/leases", ""},
	"lease": {"/v1/network/default/lease/10.5.34.0-24", ""}, "revokeLease": {"/v1/network/default/lease/10.5.77.0-24", ""},
	"reservations": {"/v1/network/default/reservations", ""}, "addReservation": {"/v1/network/default/reservation/10.5.40.0-24", `{"node":"host-d"}`},
	"removeReservation": {"/v1/network/default/reservation/10.5.40.0-24", ""}, "peers": {"/v1/network/default/peers", ""},
	"hosts":      {"/v1/network/default/hosts", ""},
	"probePeers": {"/v1/network/default/probe", `{"count":3}`},
}

// readAPI returns the API's document.
func readAPI() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData([]byte(api.OpenAPI))
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(context.Background())
}

// apiPages returns a page for each tag of the API's document, and one of all types, by path below the folder of the API.
func (s *source) apiPages() (map[string]string, error) {
	types, err := typesPage(s.api)
	if err != nil {
		return nil, err
	}
	out := map[string]string{"types.mdx": types}
	for i, tag := range s.api.Tags {
		if out[tag.Name+".mdx"], err = s.tagPage(tag, i+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *source) tagPage(tag *openapi3.Tag, order int) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "---\ntitle: \"API: %[4]s\"\ndescription: %[2]s.\nsidebar: { order: %[3]d, label: %[1]s }\n---\n\nSee also the [overview](index.mdx) and the [errors](index.mdx#errors).\n",
		strings.ToUpper(tag.Name[:1])+tag.Name[1:], tag.Description, order, tag.Name)
	paths := s.api.Paths.Map()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		for _, method := range apiMethods {
			operation := paths[path].GetOperation(method)
			if operation == nil || !slices.Contains(operation.Tags, tag.Name) {
				continue
			}
			if err := s.operationSection(&b, method, path, paths[path], operation); err != nil {
				return "", fmt.Errorf("example of %s: %w", operation.OperationID, err)
			}
		}
	}
	return b.String(), nil
}

// pathParameter matches a parameter, which pages show as ":network".
var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

func (s *source) operationSection(b *strings.Builder, method, path string, item *openapi3.PathItem, o *openapi3.Operation) error {
	fmt.Fprintf(b, "\n## %s %s\n\n%s.\n", method, pathParameter.ReplaceAllString(path, ":$1"), o.Summary)
	if o.Responses.Value("403") != nil {
		b.WriteString("\nUses the [token of the request](index.mdx#rights).\n")
	}
	if o.Parameters.GetByInAndName("query", "index") != nil {
		b.WriteString("\nSupports [blocking queries](index.mdx#blocking-queries).\n")
	}
	writeParameters(b, slices.Concat(item.Parameters, o.Parameters))
	var body *openapi3.SchemaRef
	if o.RequestBody != nil {
		body = o.RequestBody.Value.Content.Get("application/json").Schema
		fmt.Fprintf(b, "\nBody: %s.\n", schemaKind(body))
	}
	writeResponses(b, o.Responses.Map())
	return s.example(b, method, o, body)
}

// writeParameters lists the parameters of a request, without those that the overview explains for all endpoints: the
// names in the path, and those of blocking queries.
func writeParameters(b *strings.Builder, all openapi3.Parameters) {
	start := "\nQuery parameters:\n\n"
	for _, p := range all {
		if p.Value.In == "path" || p.Value.Name == "index" || p.Value.Name == "wait" {
			continue
		}
		fmt.Fprintf(b, "%s- `%s` (%s): %s\n", start, p.Value.Name, schemaKind(p.Value.Schema), meaning(p.Value.Description, p.Value.Schema))
		start = ""
	}
}

// isNoun matches a description that says no more than the type: "the network".
var isNoun = regexp.MustCompile(`^the \w+$`)

// writeResponses lists the responses that have a meaning of their own, and the statuses of the other errors.
func writeResponses(b *strings.Builder, responses map[string]*openapi3.ResponseRef) {
	var errs []string
	start := "\nResponses:\n\n"
	for _, status := range slices.Sorted(maps.Keys(responses)) {
		response := responses[status].Value
		if *response.Description == "what is wrong" {
			if status != "default" {
				errs = append(errs, status)
			}
			continue
		}
		var kinds []string
		for _, media := range slices.Sorted(maps.Keys(response.Content)) {
			kind := schemaKind(response.Content[media].Schema)
			if media != "application/json" {
				kind = "`" + media + "`"
			}
			kinds = append(kinds, kind)
		}
		fmt.Fprintf(b, "%s- `%s`: %s", start, status, strings.Join(kinds, " or "))
		if says := *response.Description; !isNoun.MatchString(says) {
			b.WriteString(", " + says)
		}
		b.WriteString("\n")
		start = ""
	}
	if len(errs) > 0 {
		fmt.Fprintf(b, "- Errors: `%s`\n", strings.Join(errs, "`, `"))
	}
}

// example writes a request and its answer, which the document must allow.
func (s *source) example(b *strings.Builder, method string, o *openapi3.Operation, body *openapi3.SchemaRef) error {
	e, ok := apiExamples[o.OperationID]
	if !ok {
		return errors.New("there is none")
	}
	command := "curl -s"
	if method != "GET" {
		command += " -X " + method
	}
	if body != nil {
		if err := allows(body, e.body); err != nil {
			return fmt.Errorf("request: %w", err)
		}
		command += " -d '" + e.body + "'"
	}
	address := "http://127.0.0.1:5366" + e.path
	if strings.Contains(address, "?") {
		address = "'" + address + "'"
	}
	command += " " + address
	mark := "" // it is run by TestDocumentationCommands
	switch o.OperationID {
	case "monitor": // which has no end
		mark = generatedBy
	case "trace":
		mark = " norun=\"TestTrace runs it\""
	case "changeSwitch":
		mark = " norun=\"TestSwitchHalfway runs it\""
	}
	fmt.Fprintf(b, "\n```sh%s\n%s\n```\n", mark, command)
	media := o.Responses.Value("200").Value.Content.Get("application/json")
	if media == nil {
		return nil
	}
	answer, err := s.file("e2e/cmd/reference/testdata/api/" + o.OperationID + ".json")
	if err != nil {
		return err
	}
	if shown := "\n```json" + generatedBy + "\n" + answer; strings.TrimSpace(answer) != "{}" && !strings.Contains(b.String(), shown) {
		b.WriteString(shown + "```\n") // once for each page: two endpoints may answer alike
	}
	return allows(media.Schema, answer)
}

func allows(schema *openapi3.SchemaRef, text string) error {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	return schema.Value.VisitJSON(v)
}

// schemaKind returns a link to a type of the document, or a simple kind such as "string".
func schemaKind(s *openapi3.SchemaRef) string {
	name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
	switch {
	case s.Ref != "":
		return fmt.Sprintf("[%s](types.mdx#%s)", name, strings.ToLower(name))
	case s.Value.Type.Is("array"):
		return "list of " + schemaKind(s.Value.Items)
	case s.Value.Type.Is("object") && s.Value.AdditionalProperties.Schema != nil:
		return "object of " + schemaKind(s.Value.AdditionalProperties.Schema)
	case s.Value.Type.Is("object") && len(s.Value.Properties) == 0 && s.Value.AdditionalProperties.Has != nil && !*s.Value.AdditionalProperties.Has:
		return "`{}`"
	}
	return s.Value.Type.Slice()[0]
}

// meaning returns the description of a field or parameter, with its limits.
func meaning(description string, s *openapi3.SchemaRef) string {
	description = strings.Join(strings.Fields(description), " ")
	if description == "" && s.Ref == "" {
		description = s.Value.Description
	}
	list := []string{description}
	add := func(format string, v any) { list = append(list, fmt.Sprintf(format, v)) }
	if s.Ref == "" {
		if len(s.Value.Enum) > 0 {
			add("one of `%s`", strings.Trim(strings.Join(strings.Fields(fmt.Sprintln(s.Value.Enum...)), "`, `"), "[]"))
		}
		if s.Value.Default != nil {
			add("default `%v`", s.Value.Default)
		}
		if s.Value.Min != nil && *s.Value.Min != 0 {
			add("at least %v", *s.Value.Min)
		}
		if s.Value.Max != nil {
			add("at most %v", *s.Value.Max)
		}
		if s.Value.Example != nil {
			add("for example `%v`", s.Value.Example)
		}
	}
	text := strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == "" }), "; ")
	return strings.NewReplacer("|", `\|`, "{", `\{`, "<", `\<`).Replace(text)
}

func typesPage(doc *openapi3.T) (string, error) {
	var b strings.Builder
	b.WriteString("---\ntitle: Types\ndescription: The types of request and response bodies, field by field.\n---\n\n" +
		"A field with a `?` may be absent. All other fields are always present, and a list is never null.\n" +
		"Releases may add fields, but do not rename or remove them. `GET /v1/openapi.yaml` has the same types.\n")
	schemas := doc.Components.Schemas
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		s := schemas[name].Value
		fmt.Fprintf(&b, "\n## %s\n\n", name)
		if len(s.Properties) == 0 {
			fmt.Fprintf(&b, "%s. %s\n", strings.Join(s.Type.Slice(), ", "), meaning("", schemas[name]))
			continue
		}
		if s.Description != "" {
			b.WriteString(s.Description + ".\n\n")
		}
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			optional := "?"
			if slices.Contains(s.Required, field) {
				optional = ""
			}
			kind, text := schemaKind(s.Properties[field]), meaning("", s.Properties[field])
			if text == "" && !strings.Contains(kind, "types.mdx") {
				return "", fmt.Errorf("api/openapi.yaml does not say what %s of %s is", field, name)
			}
			fmt.Fprintf(&b, "- `%s`%s (%s)", field, optional, kind)
			if text != "" {
				b.WriteString(": " + text)
			}
			b.WriteString("\n")
		}
	}
	return b.String(), nil
}
