package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/term"
)

// escape ends the connection: Ctrl-].
const escape = 0x1d

// console connects the terminal with a machine's serial console until Ctrl-] or the machine's end.
func console(ctx context.Context, path string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if term.IsTerminal(0) {
		before, err := term.MakeRaw(0)
		if err != nil {
			return err
		}
		defer term.Restore(0, before)
	}
	fmt.Fprint(os.Stderr, "connected; Ctrl-] leaves\r\n")
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	ended := make(chan error, 2)
	go func() { // ends with the program: a read from a terminal cannot be interrupted
		ended <- send(conn, os.Stdin)
	}()
	go func() {
		_, err := io.Copy(os.Stdout, conn)
		ended <- err
	}()
	return <-ended
}

// send copies input up to the first Ctrl-].
func send(to io.Writer, from io.Reader) error {
	buffer := make([]byte, 256)
	for {
		n, err := from.Read(buffer)
		typed, _, left := bytes.Cut(buffer[:n], []byte{escape})
		if _, err := to.Write(typed); err != nil {
			return err
		}
		if left || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
