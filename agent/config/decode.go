package config

import "strings"

// read applies one file's attributes to the configuration.
func (l *loader) read(f *fileShape) {
	c := &l.cfg
	l.text(f.NodeName, &c.NodeName, CheckNodeName)
	l.text(f.DataDir, &c.DataDir, checkAbsolute)

	l.text(f.LogLevel, &c.Log.Level, checkLevel)
	c.Log.Level = strings.ToUpper(c.Log.Level)
	l.flag(f.LogJSON, &c.Log.JSON)
	l.text(f.LogFile, &c.Log.File, optional(checkAbsolute))
	l.count(f.LogRotateBytes, &c.Log.RotateBytes)
	l.duration(f.LogRotateAfter, &c.Log.RotateDuration)
	l.count(f.LogRotateMax, &c.Log.RotateMaxFiles)
	l.flag(f.EnableDebug, &c.EnableDebug)

	l.flag(f.WatchNetworks, &c.WatchNetworks)
	l.texts(f.AllowedNetworks, &c.AllowedNetworks, checkPattern)

	l.readConsul(f.Consul)
	l.readEtcd(f.Etcd)
	l.readKubernetes(f.Kubernetes)
	l.readLease(f.Lease)
	l.readUnderlay(f.Underlay)
	l.readFirewall(f.Firewall)
	l.readHTTP(f.HTTP)
	l.readTelemetry(f.Telemetry)
	for _, n := range f.Networks {
		l.readNetwork(n)
	}
}

func (l *loader) readConsul(s *consulShape) {
	if s == nil {
		return
	}
	if l.consul == nil {
		l.consul = &s.Place
	}
	c := &l.cfg.Consul
	l.text(s.Address, &c.Address, optional(checkConsulAddress))
	l.text(s.Token, &c.Token, checkToken)
	l.text(s.TokenFile, &c.TokenFile)
	l.text(s.KVPrefix, &c.KVPrefix, checkKVPrefix)
	l.text(s.Service, &c.Service, checkService)
	l.text(s.Datacenter, &c.Datacenter)
	l.text(s.Namespace, &c.Namespace)
	l.text(s.Partition, &c.Partition)
	l.readLogin(s.Login, &c.Login)
	l.readClientTLS(s.TLS, &c.TLS)
}

func (l *loader) readLogin(s *loginShape, c *Login) {
	if s == nil {
		return
	}
	if l.login == nil {
		l.login = &s.Place
	}
	l.text(s.AuthMethod, &c.AuthMethod)
	l.text(s.BearerTokenFile, &c.BearerTokenFile, checkBearerTokenFile)
	l.textMap(s.Meta, &c.Meta)
}

// readEtcd reads a block that makes etcd the store, even if it is empty.
func (l *loader) readEtcd(s *etcdShape) {
	if s == nil {
		return
	}
	c := &l.cfg.Etcd
	if l.etcd == nil {
		l.etcd = &s.Place
		*c = defaultEtcd()
	}
	before := len(l.diags)
	l.texts(s.Endpoints, &c.Endpoints, checkEndpoint)
	l.endpointsRefused = l.endpointsRefused || len(l.diags) > before
	if len(c.Endpoints) == 0 {
		l.at(s.Endpoints, "the list is empty: name at least one server, such as \"https://10.0.0.1:2379\"")
		c.Endpoints = defaultEtcd().Endpoints
	}
	l.text(s.Prefix, &c.Prefix, checkEtcdPrefix)
	l.text(s.Network, &c.Network, l.checkNetworkName)
	l.text(s.Username, &c.Username, checkUsername)
	l.text(s.Password, &c.Password, checkPassword)
	l.text(s.PasswordFile, &c.PasswordFile)
	l.readClientTLS(s.TLS, &c.TLS)
}

// readKubernetes reads a block that makes Kubernetes the store, even if it is empty.
func (l *loader) readKubernetes(s *kubernetesShape) {
	if s == nil {
		return
	}
	c := &l.cfg.Kubernetes
	if l.kubernetes == nil {
		l.kubernetes = &s.Place
		*c = defaultKubernetes()
	}
	l.text(s.Kubeconfig, &c.Kubeconfig)
	l.text(s.NodeName, &c.NodeName, optional(checkKubernetesName))
	l.text(s.Network, &c.Network, l.checkNetworkName)
	l.text(s.NetConf, &c.NetConf, checkNetConf)
	l.text(s.ConfigMap, &c.ConfigMap, optional(checkConfigMap))
	l.text(s.AnnotationPrefix, &c.AnnotationPrefix, checkKubernetesName)
}

func (l *loader) readClientTLS(s *clientTLSShape, t *TLS) {
	if s == nil {
		return
	}
	l.text(s.CAFile, &t.CAFile)
	l.text(s.CertFile, &t.CertFile)
	l.text(s.KeyFile, &t.KeyFile)
	l.text(s.ServerName, &t.ServerName)
}

func (l *loader) readLease(s *leaseShape) {
	if s == nil {
		return
	}
	c := &l.cfg.Lease
	l.duration(s.TTL, &c.TTL)
	l.duration(s.RenewMargin, &c.RenewMargin)
	l.duration(s.Hold, &c.Hold)
	l.text(s.OnLost, &c.OnLost, oneOf(choices()["lease.on_lost"]...))
	l.flag(s.ReleaseOnStop, &c.ReleaseOnStop)
	l.flag(s.StartFromSaved, &c.StartFromSaved)
}

func (l *loader) readUnderlay(s *underlayShape) {
	if s == nil {
		return
	}
	c := &l.cfg.Underlay
	l.texts(s.Interfaces, &c.Interfaces, checkInterface)
	l.texts(s.InterfaceRegex, &c.InterfaceRegex, checkRegex)
	l.addr(s.CanReach, &c.CanReach)
	l.text(s.PublicIP, &c.PublicIP, checkPublicIP(false))
	l.text(s.PublicIPv6, &c.PublicIPv6, checkPublicIP(true))
	l.ports(s.PublicPorts, &c.PublicPorts)
}

func (l *loader) readFirewall(s *firewallShape) {
	if s == nil {
		return
	}
	c := &l.cfg.Firewall
	l.text(s.Type, &c.Type, oneOf(choices()["firewall.type"]...))
	l.duration(s.Resync, &c.Resync)
	l.flag(s.RandomFully, &c.RandomFully)
}

func (l *loader) readHTTP(s *httpShape) {
	if s == nil {
		return
	}
	c := &l.cfg.HTTP
	l.text(s.Address, &c.Address, checkListenAddress)
	l.text(s.Socket, &c.Socket, optional(checkSocket))
	l.texts(s.AllowedHosts, &c.AllowedHosts, checkHostPattern)
	if t := s.TLS; t != nil {
		l.text(t.CAFile, &c.TLS.CAFile)
		l.text(t.CertFile, &c.TLS.CertFile)
		l.text(t.KeyFile, &c.TLS.KeyFile)
	}
}

func (l *loader) readTelemetry(s *telemetryShape) {
	if s == nil {
		return
	}
	c := &l.cfg.Telemetry
	l.duration(s.PrometheusRetention, &c.PrometheusRetention)
	l.text(s.StatsdAddress, &c.StatsdAddress, optional(checkHostPort))
	l.text(s.DogstatsdAddress, &c.DogstatsdAddress, optional(checkHostPort))
	l.flag(s.DisableHostname, &c.DisableHostname)
}
