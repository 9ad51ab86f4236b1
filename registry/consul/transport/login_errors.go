package transport

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
)

// loginError is the error of a login that Consul did not grant. Refusals are *registry.LoginError. Other errors say
// that Consul cannot be used.
func loginError(method registry.Login, bearer string, err error) error {
	var status *StatusError
	if !errors.As(err, &status) {
		return fmt.Errorf("consul login: %w", Classify(err))
	}
	said := &StatusError{Code: status.Code, Body: strings.ReplaceAll(status.Body, bearer, "(JWT)")}
	remedy := loginRemedy(method, said)
	if remedy == "" {
		return fmt.Errorf("consul login: %w", Classify(said))
	}
	return &registry.LoginError{
		Err:    fmt.Errorf("consul login with auth method %q: %w", method.AuthMethod, said),
		Remedy: remedy,
	}
}

// jwtRefusals are parts of what Consul says about a JWT that it does not accept, always with status 500.
func jwtRefusals() []string {
	return []string{
		"error validating claims", "error parsing token", "error verifying token", "failed to unmarshal claims",
		"no known key", "missing jwt", "no issue time", "claim", "go-jose", "fetching keys",
	}
}

// loginRemedy returns what to do about Consul's answer to a login, or "" if it is no refusal.
func loginRemedy(method registry.Login, said *StatusError) string {
	has := func(part string) bool { return strings.Contains(said.Body, part) }
	switch {
	case said.Code == http.StatusUnauthorized: // ACL support disabled
		return "enable ACLs in Consul, or remove the login block (consul.login)"
	case has("ACL not found"), has("auth method not found"):
		return fmt.Sprintf("create the auth method %q in Consul, or correct consul.login.auth_method", method.AuthMethod)
	case has("Permission denied"):
		return fmt.Sprintf("add a binding rule that fits the claims of the JWT "+
			"(`consul acl binding-rule list -method %s` shows the rules)", method.AuthMethod)
	case has("is expired"):
		return fmt.Sprintf("replace the expired JWT in %s: a running agent reads it again by itself",
			method.BearerTokenFile)
	case slices.ContainsFunc(jwtRefusals(), has):
		return fmt.Sprintf("see that the auth method %q accepts the issuer, the audience and the key of the JWT in %s "+
			"(`consul acl auth-method read -name %s`)", method.AuthMethod, method.BearerTokenFile, method.AuthMethod)
	case said.Code == http.StatusForbidden, said.Code == http.StatusBadRequest, said.Code == http.StatusNotFound:
		return "correct the login block (consul.login)"
	}
	return ""
}
