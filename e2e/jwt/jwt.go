// Package jwt signs JSON Web Tokens for tests, as a program does that gives its workloads an identity.
package jwt

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
)

// An Issuer signs JWTs.
type Issuer struct{ key *ecdsa.PrivateKey }

// New returns an issuer with a key of its own.
func New(tb testing.TB) Issuer {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return Issuer{key}
}

// PublicKey returns the key that verifies the JWTs, in the PEM format.
func (i Issuer) PublicKey(tb testing.TB) string {
	tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(&i.key.PublicKey)
	if err != nil {
		tb.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// Sign returns a JWT (RFC 7519) that is valid for a time: with the issuer "test", the audience "consul.io", the claim
// role "leno", and the claims of change.
func (i Issuer) Sign(tb testing.TB, valid time.Duration, change map[string]any) string {
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

// AuthMethod returns the configuration of an auth method of Consul for JWTs of the issuer.
func (i Issuer) AuthMethod(tb testing.TB) map[string]any {
	return map[string]any{
		"BoundAudiences":       []string{"consul.io"},
		"BoundIssuer":          "test",
		"JWTSupportedAlgs":     []string{"ES256"},
		"JWTValidationPubKeys": []string{i.PublicKey(tb)},
		"ClaimMappings":        map[string]string{"role": "role"},
	}
}
