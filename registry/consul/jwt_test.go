package consul

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// An issuer signs the JWTs that hosts log in with.
type issuer struct{ key *ecdsa.PrivateKey }

func newIssuer(tb testing.TB) issuer {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return issuer{key}
}

// publicKey returns the key that verifies the JWTs, in the PEM format.
func (i issuer) publicKey(tb testing.TB) string {
	tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(&i.key.PublicKey)
	if err != nil {
		tb.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// sign returns a JWT (RFC 7519) that is valid for a time, with the claims that the test's auth methods want and those
// of change.
func (i issuer) sign(tb testing.TB, valid time.Duration, change map[string]any) string {
	tb.Helper()
	now := time.Now()
	claims := map[string]any{
		"iss": "test", "aud": "consul.io", "sub": "leno", "role": "leno",
		"iat": now.Add(-time.Hour).Unix(), "nbf": now.Add(-time.Hour).Unix(), "exp": now.Add(valid).Unix(),
	}
	maps.Copy(claims, change)
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			tb.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(map[string]string{"alg": "ES256", "typ": "JWT"}) + "." + part(claims)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, digest[:])
	if err != nil {
		tb.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// addAuthMethod creates an auth method for the issuer's JWTs, and a policy with rules for those whose claim role is
// "leno". A maxTTL of 0 means tokens that do not expire.
func (s *server) addAuthMethod(tb testing.TB, i issuer, name, rules string, maxTTL time.Duration) {
	tb.Helper()
	acl := s.admin.ACL()
	method := &api.ACLAuthMethod{Name: name, Type: "jwt", MaxTokenTTL: maxTTL, Config: map[string]any{
		"BoundAudiences":       []string{"consul.io"},
		"BoundIssuer":          "test",
		"JWTSupportedAlgs":     []string{"ES256"},
		"JWTValidationPubKeys": []string{i.publicKey(tb)},
		"ClaimMappings":        map[string]string{"role": "role"},
	}}
	if _, _, err := acl.AuthMethodCreate(method, nil); err != nil {
		tb.Fatal(err)
	}
	policy, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	role, _, err := acl.RoleCreate(&api.ACLRole{Name: name, Policies: []*api.ACLRolePolicyLink{{ID: policy.ID}}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	rule := &api.ACLBindingRule{
		AuthMethod: name,
		BindType:   api.BindingRuleBindTypeRole,
		BindName:   role.Name,
		Selector:   `value.role == "leno"`,
	}
	if _, _, err := acl.BindingRuleCreate(rule, nil); err != nil {
		tb.Fatal(err)
	}
}
