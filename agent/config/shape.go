package config

import "github.com/hashicorp/hcl/v2"

// The shape of the files, as HCL sees them. Every value stays an attribute with its place until it has been read, so
// that any error can refer to it.

type fileShape struct {
	NodeName       *hcl.Attribute `hcl:"node_name,optional"`
	DataDir        *hcl.Attribute `hcl:"data_dir,optional"`
	LogLevel       *hcl.Attribute `hcl:"log_level,optional"`
	LogJSON        *hcl.Attribute `hcl:"log_json,optional"`
	LogFile        *hcl.Attribute `hcl:"log_file,optional"`
	LogRotateBytes *hcl.Attribute `hcl:"log_rotate_bytes,optional"`
	LogRotateAfter *hcl.Attribute `hcl:"log_rotate_duration,optional"`
	LogRotateMax   *hcl.Attribute `hcl:"log_rotate_max_files,optional"`
	EnableDebug    *hcl.Attribute `hcl:"enable_debug,optional"`

	Consul     *consulShape     `hcl:"consul,block"`
	Etcd       *etcdShape       `hcl:"etcd,block"`
	Kubernetes *kubernetesShape `hcl:"kubernetes,block"`
	Lease      *leaseShape      `hcl:"lease,block"`
	Underlay   *underlayShape   `hcl:"underlay,block"`
	Firewall   *firewallShape   `hcl:"firewall,block"`
	HTTP       *httpShape       `hcl:"http,block"`
	Telemetry  *telemetryShape  `hcl:"telemetry,block"`

	WatchNetworks   *hcl.Attribute `hcl:"watch_networks,optional"`
	AllowedNetworks *hcl.Attribute `hcl:"allowed_networks,optional"`

	Networks []*networkShape `hcl:"network,block"`
}

type consulShape struct {
	Place hcl.Range `hcl:",def_range"`

	Address    *hcl.Attribute `hcl:"address,optional"`
	Token      *hcl.Attribute `hcl:"token,optional"`
	TokenFile  *hcl.Attribute `hcl:"token_file,optional"`
	KVPrefix   *hcl.Attribute `hcl:"kv_prefix,optional"`
	Service    *hcl.Attribute `hcl:"service,optional"`
	Datacenter *hcl.Attribute `hcl:"datacenter,optional"`
	Namespace  *hcl.Attribute `hcl:"namespace,optional"`
	Partition  *hcl.Attribute `hcl:"partition,optional"`

	Login *loginShape     `hcl:"login,block"`
	TLS   *clientTLSShape `hcl:"tls,block"`
}

type loginShape struct {
	Place hcl.Range `hcl:",def_range"`

	AuthMethod      *hcl.Attribute `hcl:"auth_method,optional"`
	BearerTokenFile *hcl.Attribute `hcl:"bearer_token_file,optional"`
	Meta            *hcl.Attribute `hcl:"meta,optional"`
}

type etcdShape struct {
	Place hcl.Range `hcl:",def_range"`

	Endpoints    *hcl.Attribute `hcl:"endpoints,optional"`
	Prefix       *hcl.Attribute `hcl:"prefix,optional"`
	Network      *hcl.Attribute `hcl:"network,optional"`
	Username     *hcl.Attribute `hcl:"username,optional"`
	Password     *hcl.Attribute `hcl:"password,optional"`
	PasswordFile *hcl.Attribute `hcl:"password_file,optional"`

	TLS *clientTLSShape `hcl:"tls,block"`
}

type kubernetesShape struct {
	Place hcl.Range `hcl:",def_range"`

	Kubeconfig       *hcl.Attribute `hcl:"kubeconfig,optional"`
	NodeName         *hcl.Attribute `hcl:"node_name,optional"`
	Network          *hcl.Attribute `hcl:"network,optional"`
	NetConf          *hcl.Attribute `hcl:"net_conf,optional"`
	ConfigMap        *hcl.Attribute `hcl:"config_map,optional"`
	AnnotationPrefix *hcl.Attribute `hcl:"annotation_prefix,optional"`
}

type clientTLSShape struct {
	CAFile     *hcl.Attribute `hcl:"ca_file,optional"`
	CertFile   *hcl.Attribute `hcl:"cert_file,optional"`
	KeyFile    *hcl.Attribute `hcl:"key_file,optional"`
	ServerName *hcl.Attribute `hcl:"server_name,optional"`
}

// listenerTLSShape has no server_name: a listener verifies no server's name.
type listenerTLSShape struct {
	CAFile   *hcl.Attribute `hcl:"ca_file,optional"`
	CertFile *hcl.Attribute `hcl:"cert_file,optional"`
	KeyFile  *hcl.Attribute `hcl:"key_file,optional"`
}

type leaseShape struct {
	TTL           *hcl.Attribute `hcl:"ttl,optional"`
	RenewMargin   *hcl.Attribute `hcl:"renew_margin,optional"`
	Hold          *hcl.Attribute `hcl:"hold,optional"`
	OnLost        *hcl.Attribute `hcl:"on_lost,optional"`
	ReleaseOnStop *hcl.Attribute `hcl:"release_on_stop,optional"`

	StartFromSaved *hcl.Attribute `hcl:"start_from_saved,optional"`
}

type underlayShape struct {
	Interfaces     *hcl.Attribute `hcl:"interfaces,optional"`
	InterfaceRegex *hcl.Attribute `hcl:"interface_regex,optional"`
	CanReach       *hcl.Attribute `hcl:"can_reach,optional"`
	PublicIP       *hcl.Attribute `hcl:"public_ip,optional"`
	PublicIPv6     *hcl.Attribute `hcl:"public_ipv6,optional"`
	PublicPorts    *hcl.Attribute `hcl:"public_ports,optional"`
}

type firewallShape struct {
	Type        *hcl.Attribute `hcl:"type,optional"`
	Resync      *hcl.Attribute `hcl:"resync,optional"`
	RandomFully *hcl.Attribute `hcl:"random_fully,optional"`
}

type httpShape struct {
	Address      *hcl.Attribute    `hcl:"address,optional"`
	Socket       *hcl.Attribute    `hcl:"socket,optional"`
	AllowedHosts *hcl.Attribute    `hcl:"allowed_hosts,optional"`
	TLS          *listenerTLSShape `hcl:"tls,block"`
}

type telemetryShape struct {
	PrometheusRetention *hcl.Attribute `hcl:"prometheus_retention,optional"`
	StatsdAddress       *hcl.Attribute `hcl:"statsd_address,optional"`
	DogstatsdAddress    *hcl.Attribute `hcl:"dogstatsd_address,optional"`
	DisableHostname     *hcl.Attribute `hcl:"disable_hostname,optional"`
}

type networkShape struct {
	Name  string    `hcl:"name,label"`
	Named hcl.Range `hcl:"name,label_range"`
	Place hcl.Range `hcl:",def_range"`

	IPv4    *poolShape    `hcl:"ipv4,block"`
	IPv6    *poolShape    `hcl:"ipv6,block"`
	Backend *backendShape `hcl:"backend,block"`

	Encryption   *hcl.Attribute `hcl:"encryption,optional"`
	IPMasq       *hcl.Attribute `hcl:"ip_masq,optional"`
	Forward      *hcl.Attribute `hcl:"forward,optional"`
	RulePriority *hcl.Attribute `hcl:"routing_rule_priority,optional"`
	SubnetFile   *hcl.Attribute `hcl:"subnet_file,optional"`
}

type poolShape struct {
	Place hcl.Range `hcl:",def_range"`

	Prefix    *hcl.Attribute `hcl:"prefix,optional"`
	SubnetLen *hcl.Attribute `hcl:"subnet_len,optional"`
	Min       *hcl.Attribute `hcl:"min,optional"`
	Max       *hcl.Attribute `hcl:"max,optional"`
}

type backendShape struct {
	Type  string    `hcl:"type,label"`
	Named hcl.Range `hcl:"type,label_range"`
	Place hcl.Range `hcl:",def_range"`
	Body  hcl.Body  `hcl:",remain"`
}
