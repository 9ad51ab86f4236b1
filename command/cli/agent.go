package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/trusted"
	"github.com/lenonet/leno/registry/consul/transport"
)

// CallTimeout bounds all calls of one command to the agent. It is longer than Consul takes to
// report that it has no leader (9 to 12 s).
const CallTimeout = 30 * time.Second

// AgentFlags are the flags of every command that talks to the agent.
type AgentFlags struct {
	Meta Meta
	set  *flag.FlagSet

	patience time.Duration // after which a command says what it waits for
	isSaid   bool          // it has

	local                                     string // the address of the agent on this host, "" before it is known
	address, token, tokenFile                 string
	caCert, clientCert, clientKey, serverName string
}

func NewAgentFlags(m Meta) *AgentFlags { return &AgentFlags{Meta: m, patience: 5 * time.Second} }

// Register declares the flags.
func (f *AgentFlags) Register(fs *flag.FlagSet) {
	f.set = fs
	fs.StringVar(&f.address, "address", "",
		"`address` of the agent: host:port, http(s)://host:port or unix:///path; https if certificates are given; "+
			"LENO_ADDRESS, default unix://"+config.DefaultSocket+", or "+api.DefaultAddress+" if no agent listens there")
	fs.StringVar(&f.token, "token", "", "Consul ACL `token` to use for writes; LENO_TOKEN, CONSUL_HTTP_TOKEN")
	fs.StringVar(&f.tokenFile, "token-file", "", "`file` to read the token from; LENO_TOKEN_FILE, CONSUL_HTTP_TOKEN_FILE")
	fs.StringVar(&f.caCert, "ca-cert", "", "PEM `file` of the authority that signed the agent's certificate; LENO_CA_CERT")
	fs.StringVar(&f.clientCert, "client-cert", "", "PEM `file` of the certificate to show the agent; LENO_CLIENT_CERT")
	fs.StringVar(&f.clientKey, "client-key", "", "PEM `file` of its key; LENO_CLIENT_KEY")
	fs.StringVar(&f.serverName, "tls-server-name", "",
		"`name` that the agent's certificate must contain; LENO_TLS_SERVER_NAME")
}

// value returns the flag's value if it was given, or the value of the first environment variable
// that is set.
func (f *AgentFlags) value(name, value string, env ...string) string {
	return f.setting(name, value, env...).value
}

// setting is a value and the flag or environment variable that it comes from, such as "-ca-cert".
// The zero setting has no value.
type setting struct{ value, source string }

func (f *AgentFlags) setting(name, value string, env ...string) setting {
	if f.Given(name) {
		if value == "" {
			return setting{}
		}
		return setting{value, "-" + name}
	}
	for _, e := range env {
		if v := f.Meta.Getenv(e); v != "" {
			return setting{v, e}
		}
	}
	return setting{}
}

// read returns the content of the file that the setting names, which must be a regular file, as
// configuration files must be.
func (s setting) read() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), files.ReadTimeout)
	defer cancel()
	data, err := files.Read(ctx, s.value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.source, err)
	}
	return data, nil
}

// Given reports whether the flag of that name was given. It is false if the flags are not declared.
func (f *AgentFlags) Given(name string) bool { return f.set != nil && IsGiven(f.set, name) }

// Open builds the client.
func (f *AgentFlags) Open() (*api.Client, error) {
	if f.Given("token") && f.Given("token-file") {
		return nil, UsageErrorf("-token and -token-file cannot be used together")
	}
	conf, err := f.tls()
	if err != nil {
		return nil, err
	}
	read := sync.OnceValues(func() (string, error) { // the file may be a pipe
		token, err := f.Token()
		if err == nil && token != "" {
			err = f.checkListener()
		}
		return token, err
	})
	client, err := api.New(api.Config{Address: f.Address(), ReadToken: read, TLS: conf})
	if err != nil {
		return nil, UsageErrorf("%s", err)
	}
	return client, nil
}

// OpenOther builds a client of the agent on another host, with the same certificates and without the token: only the
// agent on this host is trusted with it. Its answers have so many bytes and objects at most.
func (f *AgentFlags) OpenOther(address string, maxBody int64, maxObjects int) (*api.Client, error) {
	conf, err := f.tls()
	if err != nil {
		return nil, err
	}
	if conf != nil && !strings.Contains(address, "://") {
		address = "https://" + address
	}
	client, err := api.New(api.Config{Address: address, TLS: conf, MaxBody: maxBody, MaxObjects: maxObjects})
	if err != nil {
		return nil, UsageErrorf("%s", err)
	}
	return client, nil
}

// checkListener returns an error if the token would be sent to a user of this host who may not run an agent. Any user
// can listen at the address while no agent runs.
func (f *AgentFlags) checkListener() error {
	address := strings.TrimPrefix(f.Address(), "http://")
	_, portText, err := net.SplitHostPort(address)
	if err != nil || !f.IsLocal() { // a server with TLS proves who it is
		return nil
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil // which api.New reports
	}
	users := trustedUsers()
	for _, user := range trusted.Listeners(uint16(port)) {
		if !slices.Contains(users, user) {
			return fmt.Errorf("the token is not sent to %s: user %d listens there, and an agent runs as root or as the owner "+
				"of %s; stop that program, or give the agent's address with -address", address, user,
				filepath.Dir(config.DefaultSubnetFile("x")))
		}
	}
	return nil
}

// Address returns the agent's address. If certificates are given and the address has no scheme, it
// uses https: plain http would send the token in the clear.
func (f *AgentFlags) Address() string {
	address := f.value("address", f.address, "LENO_ADDRESS")
	if address == "" {
		return f.localAddress()
	}
	if _, _, err := net.SplitHostPort(address); err == nil && !strings.Contains(address, "://") &&
		f.certificates() != (certificates{}) {
		return "https://" + address
	}
	return address
}

// localAddress returns the address of the agent on this host: its socket, which works without the host's firewall and
// table of connections. If no trusted agent listens there, or certificates are given, it is the default address.
func (f *AgentFlags) localAddress() string {
	switch {
	case f.local != "":
	case f.certificates() != (certificates{}):
		f.local = "https://" + api.DefaultAddress
	case trusted.CheckSocket(config.DefaultSocket, trustedUsers()...) == nil:
		f.local = "unix://" + config.DefaultSocket
	default:
		f.local = api.DefaultAddress
	}
	return f.local
}

// trustedUsers returns the users who may run an agent on this host.
func trustedUsers() []int { return trusted.Users(filepath.Dir(config.DefaultSocket)) }

// IsLocal reports whether the agent's address is on this host.
func (f *AgentFlags) IsLocal() bool {
	address := f.Address()
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	if _, rest, found := strings.Cut(address, "://"); found {
		address = rest
	}
	address, _, _ = strings.Cut(address, "/")
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// certificates are the TLS settings from the flags or the environment.
type certificates struct{ ca, cert, key, name setting }

func (f *AgentFlags) certificates() certificates {
	return certificates{
		ca:   f.setting("ca-cert", f.caCert, "LENO_CA_CERT"),
		cert: f.setting("client-cert", f.clientCert, "LENO_CLIENT_CERT"),
		key:  f.setting("client-key", f.clientKey, "LENO_CLIENT_KEY"),
		name: f.setting("tls-server-name", f.serverName, "LENO_TLS_SERVER_NAME"),
	}
}

// Token returns the first token of: flags, LENO_*, CONSUL_HTTP_*.
func (f *AgentFlags) Token() (string, error) {
	if f.Given("token") {
		return f.token, nil
	}
	if f.Given("token-file") {
		return readToken(setting{f.tokenFile, "-token-file"})
	}
	for _, name := range []string{"LENO_TOKEN", "CONSUL_HTTP_TOKEN"} {
		if token := f.Meta.Getenv(name); token != "" {
			return token, nil
		}
		if path := f.Meta.Getenv(name + "_FILE"); path != "" {
			return readToken(setting{path, name + "_FILE"})
		}
	}
	return "", nil
}

func readToken(file setting) (string, error) {
	data, err := file.read()
	if err != nil {
		return "", err
	}
	token, err := transport.ParseToken(data)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", file.source, file.value, err)
	}
	return token, nil
}

// tls returns nil when no TLS option is given.
func (f *AgentFlags) tls() (*tls.Config, error) {
	given := f.certificates()
	if given == (certificates{}) {
		return nil, nil
	}
	conf := &tls.Config{ServerName: given.name.value}
	if given.ca.value != "" {
		pem, err := given.ca.read()
		if err != nil {
			return nil, err
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in %s", given.ca.source, given.ca.value)
		}
	}
	if (given.cert.value == "") != (given.key.value == "") {
		return nil, UsageErrorf("-client-cert and -client-key must be given together")
	}
	if given.cert.value != "" {
		cert, err := given.cert.read()
		if err != nil {
			return nil, err
		}
		key, err := given.key.read()
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s %s with %s %s: %w", given.cert.source, given.cert.value, given.key.source,
				given.key.value, err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// A Call uses the agent's API.
type Call func(ctx context.Context, c *api.Client) error

// Call opens the client and runs fn with a bounded context. It adds an explanation to the error of
// an agent that does not respond.
func (f *AgentFlags) Call(ctx context.Context, fn Call) error {
	return f.CallWithin(ctx, CallTimeout, "for the agent at "+f.Address()+" to answer", fn)
}

// CallWithin is like Call, with another time limit. waits completes the sentence "waiting …" about what takes long;
// with "" the command stays silent.
func (f *AgentFlags) CallWithin(ctx context.Context, limit time.Duration, waits string, fn Call) error {
	client, err := f.Open()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := f.explainWait(waits)
	err = fn(ctx, client)
	stop()
	if ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the agent at %s did not answer within %s: %w", f.Address(), limit, err)
	}
	return f.Explain(err)
}

// explainWait prints on standard error what a command waits for if it takes long, once. The function that it returns
// ends that.
func (f *AgentFlags) explainWait(waits string) (stop func()) {
	if waits == "" || f.isSaid || f.Meta.Stderr == nil {
		return func() {}
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ended:
		case <-time.After(f.patience):
			f.isSaid = true
			WriteNote(f.Meta.Stderr, "", "waiting "+waits)
		}
	}()
	return func() { close(ended); <-done }
}

// plainToTLS is the response of Go's server, which the agent uses, to a plain HTTP request on a
// TLS port.
const plainToTLS = "HTTP request to an HTTPS server"

// Explain adds advice to the error of an agent that does not respond.
func (f *AgentFlags) Explain(err error) error {
	var unknown x509.UnknownAuthorityError
	var otherName x509.HostnameError
	var connecting *net.OpError
	switch {
	case errors.As(err, &connecting) && connecting.Op == "dial" && connecting.Timeout():
		return fmt.Errorf("connecting to the agent at %s took longer than %s: %w (packets to it are lost: look for a "+
			"firewall and, if it is on this host, for \"nf_conntrack: table full\" in dmesg)", f.Address(), api.ConnectTimeout,
			err)
	case errors.As(err, &unknown):
		return fmt.Errorf("%w (-ca-cert and LENO_CA_CERT name the authority that signed the certificate of the agent at %s)",
			err, f.Address())
	case errors.As(err, &otherName):
		return fmt.Errorf("%w (-tls-server-name and LENO_TLS_SERVER_NAME set the name to expect)", err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("the agent at %s listens without TLS: %w (use http:// in the address)", f.Address(), err)
	case err != nil && strings.Contains(err.Error(), plainToTLS):
		return fmt.Errorf("the agent at %s listens with TLS: %w (use https:// in the address)", f.Address(), err)
	}
	if connecting != nil && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)) {
		return fmt.Errorf("no agent answers at %s: %w (is `leno agent` running? -address and LENO_ADDRESS set its address)",
			f.Address(), err)
	}
	return err
}
