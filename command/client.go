package command

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
	"strings"
	"syscall"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/consul"
)

// callTimeout bounds all calls of one command to the agent. It is longer than Consul takes to
// report that it has no leader (9 to 12 s).
const callTimeout = 30 * time.Second

// agentFlags are the flags of every command that talks to the agent.
type agentFlags struct {
	meta Meta
	set  *flag.FlagSet

	address, token, tokenFile                 string
	caCert, clientCert, clientKey, serverName string
}

func (f *agentFlags) register(fs *flag.FlagSet) {
	f.set = fs
	fs.StringVar(&f.address, "address", "", "`address` of the agent: host:port, http(s)://host:port or unix:///path; https where certificates are named; LENO_ADDRESS, default "+api.DefaultAddress)
	fs.StringVar(&f.token, "token", "", "Consul ACL `token` that writes are made with; LENO_TOKEN, CONSUL_HTTP_TOKEN")
	fs.StringVar(&f.tokenFile, "token-file", "", "`file` to read the token from; LENO_TOKEN_FILE, CONSUL_HTTP_TOKEN_FILE")
	fs.StringVar(&f.caCert, "ca-cert", "", "PEM `file` of the authority that signed the agent's certificate; LENO_CA_CERT")
	fs.StringVar(&f.clientCert, "client-cert", "", "PEM `file` of the certificate to show the agent; LENO_CLIENT_CERT")
	fs.StringVar(&f.clientKey, "client-key", "", "PEM `file` of its key; LENO_CLIENT_KEY")
	fs.StringVar(&f.serverName, "tls-server-name", "", "`name` that the agent's certificate has to carry; LENO_TLS_SERVER_NAME")
}

// value returns the flag's value if it was given, or the value of the first environment variable
// that is set.
func (f *agentFlags) value(name, value string, env ...string) string {
	return f.setting(name, value, env...).value
}

// setting is a value and the flag or environment variable that it comes from, such as "-ca-cert".
// The zero setting has no value.
type setting struct{ value, source string }

func (f *agentFlags) setting(name, value string, env ...string) setting {
	if f.given(name) {
		if value == "" {
			return setting{}
		}
		return setting{value, "-" + name}
	}
	for _, e := range env {
		if v := f.meta.Getenv(e); v != "" {
			return setting{v, e}
		}
	}
	return setting{}
}

// read returns the content of the file that the setting names, which must be a regular file, as
// configuration files must be.
func (s setting) read() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), config.ReadTimeout)
	defer cancel()
	data, err := config.ReadFile(ctx, s.value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.source, err)
	}
	return data, nil
}

func (f *agentFlags) given(name string) bool {
	given := false
	if f.set != nil {
		f.set.Visit(func(fl *flag.Flag) { given = given || fl.Name == name })
	}
	return given
}

// open builds the client.
func (f *agentFlags) open() (*api.Client, error) {
	token, err := f.resolveToken()
	if err != nil {
		return nil, err
	}
	conf, err := f.tls()
	if err != nil {
		return nil, err
	}
	client, err := api.New(api.Config{Address: f.where(), Token: token, TLS: conf})
	if err != nil {
		return nil, usageErrorWithFix(withFlag("address", api.DefaultAddress), "%s", err)
	}
	return client, nil
}

// where returns the agent's address. If certificates are given and the address has no scheme, it
// uses https: plain http would send the token in the clear.
func (f *agentFlags) where() string {
	address := f.value("address", f.address, "LENO_ADDRESS")
	if address == "" {
		address = api.DefaultAddress
	}
	if _, _, err := net.SplitHostPort(address); err == nil && !strings.Contains(address, "://") && f.certificates() != (certificates{}) {
		return "https://" + address
	}
	return address
}

// certificates are the TLS settings from the flags or the environment.
type certificates struct{ ca, cert, key, name setting }

func (f *agentFlags) certificates() certificates {
	return certificates{
		ca:   f.setting("ca-cert", f.caCert, "LENO_CA_CERT"),
		cert: f.setting("client-cert", f.clientCert, "LENO_CLIENT_CERT"),
		key:  f.setting("client-key", f.clientKey, "LENO_CLIENT_KEY"),
		name: f.setting("tls-server-name", f.serverName, "LENO_TLS_SERVER_NAME"),
	}
}

// resolveToken returns the first token of: flags, LENO_*, CONSUL_HTTP_*.
func (f *agentFlags) resolveToken() (string, error) {
	if f.given("token") {
		if f.given("token-file") {
			return "", usageErrorWithFix(withoutFlags("token"), "-token and -token-file exclude each other")
		}
		return f.token, nil
	}
	if f.given("token-file") {
		return readToken(setting{f.tokenFile, "-token-file"})
	}
	for _, name := range []string{"LENO_TOKEN", "CONSUL_HTTP_TOKEN"} {
		if token := f.meta.Getenv(name); token != "" {
			return token, nil
		}
		if path := f.meta.Getenv(name + "_FILE"); path != "" {
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
	token, err := consul.ParseToken(data)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", file.source, file.value, err)
	}
	return token, nil
}

// tls returns nil when no TLS option is given.
func (f *agentFlags) tls() (*tls.Config, error) {
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
		return nil, usageErrorWithFix(withoutFlags("client-cert", "client-key"), "-client-cert and -client-key belong together")
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
			return nil, fmt.Errorf("%s %s with %s %s: %w", given.cert.source, given.cert.value, given.key.source, given.key.value, err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// call opens the client and runs fn with a bounded context. It adds an explanation to the error of
// an agent that does not respond.
func (f *agentFlags) call(ctx context.Context, fn func(context.Context, *api.Client) error) error {
	return f.callWithin(ctx, callTimeout, fn)
}

// callWithin is call with another time limit.
func (f *agentFlags) callWithin(ctx context.Context, limit time.Duration, fn func(context.Context, *api.Client) error) error {
	client, err := f.open()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = fn(ctx, client)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the agent at %s did not answer within %s: %w", f.where(), limit, err)
	}
	return f.explain(err)
}

// plainToTLS is the response of Go's server, which the agent uses, to a plain HTTP request on a
// TLS port.
const plainToTLS = "HTTP request to an HTTPS server"

// explain adds advice to the error of an agent that does not respond.
func (f *agentFlags) explain(err error) error {
	var unknown x509.UnknownAuthorityError
	var otherName x509.HostnameError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%w (-ca-cert and LENO_CA_CERT name the authority that signed the certificate of the agent at %s)", err, f.where())
	case errors.As(err, &otherName):
		return fmt.Errorf("%w (-tls-server-name and LENO_TLS_SERVER_NAME say which name it has to carry)", err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("the agent at %s listens without TLS: %w (http:// in the address asks it so)", f.where(), err)
	case err != nil && strings.Contains(err.Error(), plainToTLS):
		return fmt.Errorf("the agent at %s listens with TLS: %w (https:// in the address asks it so)", f.where(), err)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) && strings.HasPrefix(f.where(), "unix:") {
		return fmt.Errorf("no agent answers at %s: %w (is `leno agent` running? -address and LENO_ADDRESS say where)", f.where(), err)
	}
	return err
}

// onNetwork turns a function on a network into a call. It uses the given network, or the default
// one when none is given.
func onNetwork(given string, fn func(ctx context.Context, c *api.Client, name string) error) func(context.Context, *api.Client) error {
	return func(ctx context.Context, c *api.Client) error {
		name, err := network(ctx, c, given)
		if err != nil {
			return err
		}
		return fn(ctx, c, name)
	}
}

// ofNetwork turns a function that reads a network into a reader. It resolves the network only
// once.
func ofNetwork[T any](given string, read func(ctx context.Context, c *api.Client, name string, since api.Read) (T, uint64, error)) reader[T] {
	return func(ctx context.Context, c *api.Client, since api.Read) (T, uint64, error) {
		name, err := network(ctx, c, given)
		if err != nil {
			var none T
			return none, 0, err
		}
		given = name
		return read(ctx, c, name, since)
	}
}

// network returns the network to work on: the given one, or the only one the agent takes part in,
// or the only one that exists.
func network(ctx context.Context, client *api.Client, given string) (string, error) {
	if given != "" {
		return given, nil
	}
	list, err := client.Networks(ctx)
	if err != nil {
		return "", err
	}
	var all, joined []string
	for _, n := range list.Networks {
		all = append(all, n.Name)
		if n.Local != nil {
			joined = append(joined, n.Name)
		}
	}
	switch {
	case len(joined) == 1:
		return joined[0], nil
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return "", fmt.Errorf("there is no network yet; `leno network apply` defines one")
	}
	return "", usageErrorWithFix(withFirstArg(all[0]), "there are several networks, name one: %s", strings.Join(all, ", "))
}

// subnetArgs parses "[NETWORK] SUBNET".
func subnetArgs(args []string) (network string, subnet netip.Prefix, err error) {
	before, text := args[:len(args)-1], args[len(args)-1]
	if len(args) == 2 {
		network = args[0]
	}
	subnet, ok := parseSubnet(text)
	switch {
	case ok:
	case len(args) == 2:
		if _, swapped := parseSubnet(network); swapped {
			return "", netip.Prefix{}, usageErrorWithFix(withArgs(text, network), "the network comes before the subnet")
		}
		return "", netip.Prefix{}, usageErrorWithFix(withArgs(network, exampleSubnet), "%q is not a subnet such as %s", text, exampleSubnet)
	default:
		if a, err := netip.ParseAddr(text); err == nil {
			likely := netip.PrefixFrom(a, likelyLength(a)).Masked()
			return "", netip.Prefix{}, usageErrorWithFix(withArgs(likely.String()), "%s is an address, not a subnet such as %s", a, likely)
		}
		if len(before) == 0 && !strings.ContainsAny(text, "./:") { // only the network was given
			return "", netip.Prefix{}, usageErrorWithFix(withArgs(text, exampleSubnet), "%q is not a subnet such as %s", text, exampleSubnet)
		}
		return "", netip.Prefix{}, usageErrorWithFix(withArgs(exampleSubnet), "%q is not a subnet such as %s", text, exampleSubnet)
	}
	if whole := subnet.Masked(); subnet != whole {
		return "", netip.Prefix{}, usageErrorWithFix(withArgs(append(before[:len(before):len(before)], whole.String())...),
			"%s has host bits set, did you mean %s?", subnet, whole)
	}
	return network, subnet, nil
}

const exampleSubnet = "10.5.34.0/24"

// likelyLength returns the default prefix length of a subnet.
func likelyLength(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

// parseSubnet accepts the usual notation and that of keys in Consul and of paths, for example
// 10.5.34.0-24.
func parseSubnet(text string) (netip.Prefix, bool) {
	subnet, err := netip.ParsePrefix(text)
	if i := strings.LastIndexByte(text, '-'); err != nil && i >= 0 {
		subnet, err = netip.ParsePrefix(text[:i] + "/" + text[i+1:])
	}
	return subnet, err == nil
}

// firstArg returns the optional first argument.
func firstArg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// Values of -format.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// formatFlag is -format.
type formatFlag struct {
	meta    Meta
	value   string
	noColor bool
}

func (f *formatFlag) register(fs *flag.FlagSet) {
	fs.BoolVar(&f.noColor, "no-color", false, "no colours; they are on a terminal only, and never with NO_COLOR or TERM=dumb")
	fs.StringVar(&f.value, "format", "", "output `format`, table or json; LENO_FORMAT, default table")
}

// json reports whether JSON is wanted.
func (f *formatFlag) json() (bool, error) {
	name, value := "-format", f.value
	if value == "" {
		name, value = "LENO_FORMAT", f.meta.Getenv("LENO_FORMAT")
	}
	switch value {
	case "", formatTable:
		return false, nil
	case formatJSON:
		return true, nil
	}
	return false, wrongValue("format", value, fmt.Sprintf("%s: %q is neither %s nor %s", name, value, formatTable, formatJSON), formatTable, formatJSON)
}
