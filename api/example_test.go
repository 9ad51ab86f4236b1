package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lenonet/leno/api"
)

// agent returns a server in place of a running agent that knows one network.
func agent() *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/network/default/leases", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"leases":[
			{"subnet":"10.5.34.0/24","node":"host-a","public_ips":["192.0.2.34"],"held":true},
			{"subnet":"10.5.77.0/24","node":"host-b","public_ips":["192.0.2.77"],"held":false}],
			"skipped":[]}`)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"code":404,"error":"network \"blue\" is not defined, there is: default"}`)
	})
	return httptest.NewServer(mux)
}

func Example() {
	server := agent()
	defer server.Close()

	// On a host, api.Config{} is enough: the agent listens on api.DefaultAddress.
	client, err := api.New(api.Config{Address: server.URL})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	list, err := client.Leases(context.Background(), "default")
	if err != nil {
		panic(err)
	}
	for _, l := range list.Leases {
		fmt.Println(l.Subnet, l.Node, l.PublicIPs[0], "held:", l.Held)
	}
	// Output:
	// 10.5.34.0/24 host-a 192.0.2.34 held: true
	// 10.5.77.0/24 host-b 192.0.2.77 held: false
}

func ExampleError() {
	server := agent()
	defer server.Close()
	client, err := api.New(api.Config{Address: server.URL})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	_, err = client.Network(context.Background(), "blue")
	var refused *api.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.Code, refused.Message)
	}
	// Output:
	// 404 network "blue" is not defined, there is: default
}

// A blocking read continues from the index of the last response.
func ExampleRead() {
	version := 7 // as the agent would count
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") == fmt.Sprint(version) {
			version++ // a real agent responds after a change, or when wait is over
		}
		w.Header().Set("X-Leno-Index", fmt.Sprint(version))
		fmt.Fprintf(w, `{"peers":[{"node":"host-b","held":%t}]}`, version%2 == 1)
	}))
	defer server.Close()
	client, err := api.New(api.Config{Address: server.URL})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	since := api.Read{Wait: time.Minute} // the first read, without an index, does not wait
	for range 3 {
		list, err := client.Peers(context.Background(), "default", since)
		if err != nil {
			panic(err) // a long-running program would wait a moment and read again
		}
		if list.Index == since.Index {
			continue // wait is over, and nothing has changed
		}
		since.Index = list.Index // another index, higher or not: it has no other meaning
		fmt.Println(list.Peers[0].Node, "held:", list.Peers[0].Held)
	}
	// Output:
	// host-b held: true
	// host-b held: false
	// host-b held: true
}
