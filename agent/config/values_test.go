package config

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestValuesInForce checks that every setting is there, and no secret.
func TestValuesInForce(t *testing.T) {
	c := Defaults()
	c.Lease.TTL = 2 * time.Minute
	c.Consul.Token = "5ecret-a"
	c.Etcd.Password = "5ecret-e"
	c.Consul.Address = "https://user:5ecret-b@consul.test:8501"
	c.Telemetry.StatsdAddress = "udp://h:8125/?api_key=5ecret-c&x=y"
	c.Networks = []Network{{Name: "blue", Backend: &Backend{Type: "wireguard", Options: json.RawMessage(`{"psk": "5ecret-\"d", "psk_file": "/etc/psk", "port":51820}`)}, SubnetFile: "/run/x"}}
	var lines []string
	for _, v := range Values(c) {
		lines = append(lines, v.Name+" = "+v.Value)
	}
	text := strings.Join(lines, "\n")
	if strings.Contains(text, "5ecret") {
		t.Errorf("a secret is shown:\n%s", text)
	}
	for _, want := range []string{"consul.token = set", "etcd.password = set",
		`consul.address = "https://(secret)@consul.test:8501"`, `lease.ttl = "2m"`,
		"api_key=(secret)&x=y", `"port":51820`, `network.blue.subnet_file = "/run/x"`, `"psk": "(secret)"`, `"psk_file": "/etc/psk"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if len(lines) != len(Settings()) { // one network
		t.Errorf("%d values of %d settings", len(lines), len(Settings()))
	}
	c.Consul.Token = ""
	if v := Values(c); !strings.Contains(text, "consul.token = set") || v[0].Name == "" {
		t.Error(v)
	}
}
