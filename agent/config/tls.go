package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/lenonet/leno/agent/files"
)

// Read reads the files of a tls block, as far as they are set. wrong has an error for each option, such as "key_file",
// whose file cannot be used.
func (t TLS) Read(ctx context.Context) (pair tls.Certificate, authorities *x509.CertPool, wrong map[string]error) {
	wrong = map[string]error{}
	read := func(option, path string) []byte {
		if path == "" {
			return nil
		}
		data, err := files.Read(ctx, path)
		if err != nil {
			wrong[option] = err
		}
		return data
	}
	cert, key, ca := read("cert_file", t.CertFile), read("key_file", t.KeyFile), read("ca_file", t.CAFile)
	if t.CertFile != "" && t.KeyFile != "" && wrong["cert_file"] == nil && wrong["key_file"] == nil {
		var err error
		if pair, err = tls.X509KeyPair(cert, key); err != nil {
			wrong["key_file"] = fmt.Errorf("%s does not match cert_file %s: %w", t.KeyFile, t.CertFile, err)
		}
	}
	if t.CAFile != "" && wrong["ca_file"] == nil {
		authorities = x509.NewCertPool()
		if !authorities.AppendCertsFromPEM(ca) {
			wrong["ca_file"] = fmt.Errorf("%s: no certificate in it", t.CAFile)
		}
	}
	return pair, authorities, wrong
}
