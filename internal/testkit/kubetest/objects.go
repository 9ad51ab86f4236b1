package kubetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// YAML is the body of a request in YAML.
type YAML string

// request makes one request with all rights. A string is sent as a merge patch.
func (s *Server) request(method, path string, body any) ([]byte, error) {
	kind := "application/json"
	var data []byte
	switch b := body.(type) {
	case nil:
	case YAML:
		data, kind = []byte(b), "application/yaml"
	case string:
		data, kind = []byte(b), "application/merge-patch+json"
	default:
		var err error
		if data, err = json.Marshal(b); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequest(method, s.URL()+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+AdminToken)
	req.Header.Set("Content-Type", kind)
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode > 299 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, out)
	}
	return out, err
}

// Do makes one request with all rights and returns the answer, for example Do(tb, "DELETE", "/api/v1/nodes/a", nil). A
// body that is a string is sent as a merge patch, YAML as such, and another one as JSON.
func (s *Server) Do(tb testing.TB, method, path string, body any) []byte {
	tb.Helper()
	out, err := s.request(method, path, body)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// AddNode creates a Node with annotations, and with podCIDRs if there are any.
func (s *Server) AddNode(tb testing.TB, name string, annotations map[string]string, podCIDRs ...string) {
	tb.Helper()
	spec := map[string]any{}
	if len(podCIDRs) > 0 {
		spec["podCIDR"], spec["podCIDRs"] = podCIDRs[0], podCIDRs
	}
	s.Do(tb, "POST", "/api/v1/nodes", map[string]any{
		"apiVersion": "v1",
		"kind":       "Node",
		"metadata":   map[string]any{"name": name, "annotations": annotations},
		"spec":       spec,
	})
}

// Annotate changes annotations of a Node. Nil removes one.
func (s *Server) Annotate(tb testing.TB, name string, changes map[string]any) {
	tb.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": changes}})
	if err != nil {
		tb.Fatal(err)
	}
	s.Do(tb, "PATCH", "/api/v1/nodes/"+name, string(patch))
}

// Annotations returns the annotations of a Node.
func (s *Server) Annotations(tb testing.TB, name string) map[string]string {
	tb.Helper()
	var o struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(s.Do(tb, "GET", "/api/v1/nodes/"+name, nil), &o); err != nil {
		tb.Fatal(err)
	}
	return o.Metadata.Annotations
}

// DeleteNode deletes a Node.
func (s *Server) DeleteNode(tb testing.TB, name string) {
	tb.Helper()
	s.Do(tb, "DELETE", "/api/v1/nodes/"+name, nil)
}

const rbac = "rbac.authorization.k8s.io"

// Apply creates the objects in a YAML file, and the namespace kube-flannel that they are in.
func (s *Server) Apply(tb testing.TB, file string) {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	s.Do(tb, "POST", "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "kube-flannel"}})
	paths := map[string]string{
		"ServiceAccount":     "/api/v1/namespaces/kube-flannel/serviceaccounts",
		"ClusterRole":        "/apis/" + rbac + "/v1/clusterroles",
		"ClusterRoleBinding": "/apis/" + rbac + "/v1/clusterrolebindings",
		"Role":               "/apis/" + rbac + "/v1/namespaces/kube-flannel/roles",
		"RoleBinding":        "/apis/" + rbac + "/v1/namespaces/kube-flannel/rolebindings",
		"ConfigMap":          "/api/v1/namespaces/kube-flannel/configmaps",
		"DaemonSet":          "/apis/apps/v1/namespaces/kube-flannel/daemonsets",
	}
	for object := range strings.SplitSeq(string(text), "\n---\n") {
		_, kind, _ := strings.Cut(object, "\nkind: ")
		kind, _, _ = strings.Cut(kind, "\n")
		s.Do(tb, "POST", paths[kind]+"?fieldValidation=Strict", YAML(object))
	}
}

// Allow grants UserToken the rights of a ClusterRole.
func (s *Server) Allow(tb testing.TB, role string) {
	tb.Helper()
	s.Do(tb, "POST", "/apis/"+rbac+"/v1/clusterrolebindings", binding("ClusterRole", role))
}

// AllowIn grants UserToken the rights of a Role in a namespace.
func (s *Server) AllowIn(tb testing.TB, namespace, role string) {
	tb.Helper()
	s.Do(tb, "POST", "/apis/"+rbac+"/v1/namespaces/"+namespace+"/rolebindings", binding("Role", role))
}

// Deny takes back what Allow has granted.
func (s *Server) Deny(tb testing.TB, role string) {
	tb.Helper()
	s.Do(tb, "DELETE", "/apis/"+rbac+"/v1/clusterrolebindings/test-"+role, nil)
}

func binding(kind, role string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": "test-" + role},
		"roleRef":  map[string]any{"apiGroup": rbac, "kind": kind, "name": role},
		"subjects": []any{map[string]any{"apiGroup": rbac, "kind": "User", "name": userName}},
	}
}
