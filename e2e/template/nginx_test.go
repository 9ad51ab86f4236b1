package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// nginxConfig configures a server from which allowed clients can read a file.
const nginxConfig = `user root;
worker_processes 1;
pid %[1]s/nginx.pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  keepalive_timeout 0;
  server {
    listen 80;
    listen [::]:80;
    include leno-allow.conf;
    root %[1]s/pages;
  }
}
`

// installNginx puts an nginx on the host's PATH that uses the configuration of the rendering whose
// command runs it.
func (w *world) installNginx(h *lab.Host) {
	w.t.Helper()
	nginx, err := lab.FindNginx()
	w.must(err)
	bin := filepath.Join(h.Dir, "bin")
	w.must(os.MkdirAll(bin, 0o755))
	script := fmt.Sprintf("#!/bin/sh\nexec %s -c \"$NGINX_DIR/etc/nginx/nginx.conf\" -e stderr \"$@\"\n", nginx)
	w.must(programs.Write(filepath.Join(bin, "nginx"), []byte(script)))
}

// serve starts nginx with the rendered list.
func (r *rendering) serve() {
	r.w.t.Helper()
	h := r.w.Hosts[0]
	for _, dir := range []string{"etc/nginx", "pages"} {
		r.w.must(os.MkdirAll(filepath.Join(r.dir, dir), 0o755))
	}
	r.w.must(os.WriteFile(filepath.Join(r.dir, "etc/nginx/nginx.conf"), fmt.Appendf(nil, nginxConfig, r.dir), 0o644))
	r.w.must(os.WriteFile(filepath.Join(r.dir, "pages/index.html"), []byte("open\n"), 0o644))
	_, err := h.Start("env", "NGINX_DIR="+r.dir, filepath.Join(h.Dir, "bin/nginx"), "-g", "daemon off;")
	r.w.must(err)
}

// sound makes nginx check the list.
func (r *rendering) sound() error {
	_, err := r.w.Hosts[0].Exec(r.w.ctx, "env", "NGINX_DIR="+r.dir, filepath.Join(r.w.Hosts[0].Dir, "bin/nginx"), "-t", "-q")
	return err
}

// asked blocks until nginx responds with the status.
func (r *rendering) asked(from *lab.Namespace, to netip.Addr, status int) {
	r.w.t.Helper()
	r.eventually(fmt.Sprintf("status %d from %s for %s", status, to, from.Name), func() error {
		ctx, cancel := context.WithTimeout(r.w.ctx, 2*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(to, 80).String(), nil)
		if err != nil {
			return err
		}
		answer, err := from.HTTP().Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			return err
		}
		if answer.StatusCode != status {
			return errors.New(answer.Status)
		}
		return nil
	})
}
