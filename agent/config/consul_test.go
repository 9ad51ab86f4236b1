package config

import (
	"testing"
)

// TestConsulTLS checks that a tls block, even an empty one, makes the connection to Consul use TLS or is an error.
func TestConsulTLS(t *testing.T) {
	unused := func(address string) string {
		return address + " uses no TLS, but the consul block has a tls block: write https:// in address or remove the tls block."
	}
	for name, tt := range map[string]struct{ src, env, want, err string }{
		"no tls block":                     {src: `address = "c:1"`, want: "c:1"},
		"an empty one":                     {src: "address = \"c:1\"\ntls {}", want: "https://c:1"},
		"an option":                        {src: "address = \"c:1\"\ntls { server_name = \"n\" }", want: "https://c:1"},
		"an empty option":                  {src: "address = \"c:1\"\ntls { server_name = \"\" }", want: "https://c:1"},
		"https":                            {src: "address = \"https://c:1\"\ntls {}", want: "https://c:1"},
		"the default":                      {src: "tls {}", want: "https://127.0.0.1:8500"},
		"of the environment":               {src: "tls {}", env: "e:2", want: "https://e:2"},
		"https of it":                      {src: "tls {}", env: "https://e:2", want: "https://e:2"},
		"without TLS":                      {src: "", env: "http://e:2", want: "http://e:2"},
		"http":                             {src: "address = \"http://c:1\"\ntls {}", err: `a.hcl:2: Invalid value for "address": ` + unused("http://c:1")},
		"http with an option":              {src: "address = \"http://c:1\"\ntls { server_name = \"n\" }", err: `a.hcl:2: Invalid value for "address": ` + unused("http://c:1")},
		"unix":                             {src: "address = \"unix:///c\"\ntls {}", err: `a.hcl:2: Invalid value for "address": ` + unused("unix:///c")},
		"http of it, and an empty address": {src: "address = \"\"\ntls {}", env: "http://u:secret@e:2", err: `a.hcl:2: Invalid value for "address": ` + unused("http://(secret)@e:2")},
		"http of the environment":          {src: "tls {}", env: "http://u:secret@e:2", err: "a.hcl:2: Invalid tls block: " + unused("http://(secret)@e:2")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CONSUL_HTTP_ADDR", tt.env)
			c, err := Parse([]byte("consul {\n"+tt.src+"\n}\n"), "a.hcl", registryOptions())
			switch {
			case tt.err != "" && (err == nil || err.Error() != tt.err):
				t.Errorf("got  %v\nwant %s", err, tt.err)
			case tt.err == "" && (err != nil || c.Consul.ServerAddress() != tt.want):
				t.Errorf("%q, %v, want %q", c.Consul.ServerAddress(), err, tt.want)
			}
		})
	}
}
