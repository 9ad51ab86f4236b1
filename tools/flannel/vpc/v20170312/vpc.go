// Package v20170312 stands in for the client of a cloud that flannel links and the tests do not use. The module proxy
// does not keep the module. Every request fails.
package v20170312

import "errors"

var errUnsupported = errors.New("this flanneld has no client for Tencent VPC")

// A Client fails at every request.
type Client struct{}

// These are the parameters and results that flannel names.
type (
	Filter struct {
		Name   *string
		Values []*string
	}
	Route struct {
		RouteId                                                 *uint64
		DestinationCidrBlock, GatewayType, GatewayId, RouteType *string
		Enabled                                                 *bool
	}
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
	}
	DescribeRouteTablesRequest  struct{ Filters []*Filter }
	DescribeRouteTablesResponse struct {
		Response *struct{ RouteTableSet []*RouteTable }
	}
	RoutesRequest struct {
		RouteTableId *string
		Routes       []*Route
	}
)

// NewClientWithSecretId returns a Client.
func NewClientWithSecretId(_, _, _ string) (*Client, error) { return &Client{}, nil }

// NewDescribeRouteTablesRequest returns an empty request.
func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}

// NewCreateRoutesRequest returns an empty request.
func NewCreateRoutesRequest() *RoutesRequest { return &RoutesRequest{} }

// NewDeleteRoutesRequest returns an empty request.
func NewDeleteRoutesRequest() *RoutesRequest { return &RoutesRequest{} }

// DescribeRouteTables fails.
func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errUnsupported
}

// CreateRoutes fails.
func (*Client) CreateRoutes(*RoutesRequest) (any, error) { return nil, errUnsupported }

// DeleteRoutes fails.
func (*Client) DeleteRoutes(*RoutesRequest) (any, error) { return nil, errUnsupported }
