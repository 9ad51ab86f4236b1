package config

import (
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const examplePath = "../../config.hcl.example"

// compare treats addresses as values and JSON as text.
func compare() cmp.Options {
	return cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b json.RawMessage) bool { return string(a) == string(b) })}
}

func TestExampleLoads(t *testing.T) {
	want := Config{
		DataDir: "/var/lib/leno",
		Log:     Log{Level: "INFO"},
		Consul:  Consul{KVPrefix: "leno", Service: "leno"},
		Lease: Lease{TTL: 2 * time.Minute, RenewMargin: 80 * time.Second, Hold: 24 * time.Hour,
			OnLost: OnLostRenumber},
		Firewall:        Firewall{Type: FirewallAuto, Resync: 20 * time.Second, RandomFully: true},
		HTTP:            HTTP{Address: "127.0.0.1:5366", Socket: "/run/leno/leno.sock"},
		Telemetry:       Telemetry{PrometheusRetention: time.Hour},
		AllowedNetworks: []string{"*"},
		ProbeInterval:   10 * time.Second,
		Networks: []Network{{
			Name: "default",
			Pools: []Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24,
				Min: netip.MustParseAddr("10.5.1.0"), Max: netip.MustParseAddr("10.5.255.0")}},
			Backend:    &Backend{Type: "vxlan", Options: json.RawMessage(vxlanDefaults)},
			Forward:    true,
			SubnetFile: "/run/leno/default.env",
		}},
		Files:        []string{examplePath},
		NetworkFiles: map[string]string{"default": examplePath},
	}
	got, err := Load([]string{examplePath}, registryOptions())
	if err != nil {
		t.Fatalf("load the example:\n%v", err)
	}
	if diff := cmp.Diff(want, got, compare()); diff != "" {
		t.Errorf("the example's values differ (-want +got):\n%s", diff)
	}
}

// withCommentedStores returns the example with the etcd and kubernetes blocks that it has as comments, without tls.
func withCommentedStores(src []byte) []byte {
	commented := regexp.MustCompile(`(?m)^# (etcd \{|kubernetes \{|  .*= .*|\})$`)
	return commented.ReplaceAll(src, []byte("$1"))
}

// without returns src without the block of a store.
func without(src []byte, block string) []byte {
	return regexp.MustCompile(`(?ms)^`+block+` \{.*?^\}\n`).ReplaceAll(src, nil)
}

// TestExampleStores checks the commented blocks of the example: they are the defaults, and cannot be used together.
func TestExampleStores(t *testing.T) {
	src, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	full := withCommentedStores(src)
	for _, removed := range []string{"none", "consul", "etcd", "kubernetes"} {
		_, err = Parse(without(full, removed), "example.hcl", registryOptions())
		if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "Two stores") {
			t.Errorf("with several stores, without %s:\n%v", removed, err)
		}
	}
	got, err := Parse(without(without(full, "consul"), "kubernetes"), "example.hcl", registryOptions())
	if err != nil {
		t.Fatalf("with the etcd block alone:\n%v", err)
	}
	if diff := cmp.Diff(defaultEtcd(), got.Etcd); diff != "" {
		t.Errorf("the etcd block differs from the defaults (-default +example):\n%s", diff)
	}
	got, err = Parse(without(without(full, "consul"), "etcd"), "example.hcl", registryOptions())
	if err != nil {
		t.Fatalf("with the kubernetes block alone:\n%v", err)
	}
	if diff := cmp.Diff(defaultKubernetes(), got.Kubernetes); diff != "" {
		t.Errorf("the kubernetes block differs from the defaults (-default +example):\n%s", diff)
	}
	if !reflect.DeepEqual(got.Consul, Consul{}) || got.Store() != StoreKubernetes {
		t.Errorf("with the kubernetes block alone, the store is %s, %+v", got.Store(), got.Consul)
	}
}
