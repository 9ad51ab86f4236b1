package cli

import "testing"

// TestSubnetArgs: a subnet may also be given as the key that a store has for it, in flannel's form, too.
func TestSubnetArgs(t *testing.T) {
	for text, want := range map[string]string{
		"10.5.34.0/24": "10.5.34.0/24",
		"10.5.34.0-24": "10.5.34.0/24",
		"/coreos.com/network/subnets/10.5.34.0-24": "10.5.34.0/24",
		"10.5.34.0-24&fd00:5:0:22::-64":            "10.5.34.0/24",
		"0.0.0.0-0&fd00:5:0:22::-64":               "fd00:5:0:22::/64",
		"10.5.34.7-24":                             "",
		"10.5.34.0-33":                             "",
		"10.5.34.0":                                "",
		"-":                                        "",
		"&":                                        "",
	} {
		network, got, err := SubnetArgs([]string{"blue", text})
		if (err == nil) != (want != "") || err == nil && (network != "blue" || got.String() != want) {
			t.Errorf("%s: %s %s, %v", text, network, got, err)
		}
	}
}
