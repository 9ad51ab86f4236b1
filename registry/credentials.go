package registry

import "maps"

// Credentials tell which token a client of a store uses. At most one field is set. If none is, the client uses the
// token of the environment.
type Credentials struct {
	Token     string
	TokenFile string
	Login     Login
}

// IsSet reports whether a client with the credentials has a token or gets one.
func (c Credentials) IsSet() bool { return c.Token+c.TokenFile != "" || c.Login.IsSet() }

// A Login tells how a client gets a token of its own from the store: with a JWT, from an auth method.
type Login struct {
	AuthMethod      string            // "" for no login
	BearerTokenFile string            // the file that contains the JWT; it is read at each login
	Meta            map[string]string // appears in the description of the token
}

// IsSet reports whether the client logs in.
func (l Login) IsSet() bool { return l.AuthMethod != "" }

// Equal reports whether two logins are the same.
func (l Login) Equal(other Login) bool {
	return l.AuthMethod == other.AuthMethod && l.BearerTokenFile == other.BearerTokenFile &&
		maps.Equal(l.Meta, other.Meta)
}
