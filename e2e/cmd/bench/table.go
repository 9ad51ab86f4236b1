package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"
)

// A grid is a table: rows of cells, starting with the head.
type grid [][]string

// align writes the grid in aligned columns.
func (g grid) align(out io.Writer) error {
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for i, row := range g {
		line := strings.Join(row, "\t")
		if i == 0 {
			line = strings.ToUpper(line[:1]) + line[1:]
		}
		fmt.Fprintln(w, line)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// figures returns the medians and ranges of all contenders, with the aims.
func (r *result) figures() grid {
	head := []string{"what"}
	for _, c := range r.Contenders {
		head = append(head, fmt.Sprintf("%s, MTU %d", c.Name, c.MTU))
	}
	if len(r.Aims) > 0 {
		head = append(head, "aim")
	}
	g := grid{head}
	for _, f := range r.Figures {
		row := []string{f.Name + ", " + f.Unit}
		for _, c := range r.Contenders {
			row = append(row, f.cell(c.Values[f.Key]))
		}
		if len(r.Aims) > 0 {
			row = append(row, r.aimsOf(f))
		}
		g = append(g, row)
	}
	return g
}

// cell formats a figure of a contender.
func (f figure) cell(s *series) string {
	if s == nil {
		return "–"
	}
	text := fmt.Sprintf("%.*f", f.digits, s.Median)
	if len(s.Rounds) > 1 {
		text += fmt.Sprintf(" (%.*f–%.*f)", f.digits, s.Min, f.digits, s.Max)
	}
	return text
}

// ratios returns the ratios of the medians to those of one contender, for figures where a ratio is
// meaningful. It returns nil without that contender.
func (r *result) ratios(name string, to func(*series) float64) grid {
	if r.contender(name) == nil {
		return nil
	}
	head := []string{"in relation to " + name}
	for _, c := range r.Contenders {
		head = append(head, c.Name)
	}
	g := grid{head}
	for _, f := range r.Figures {
		// Loss percentages may be 0, and the agents' CPU time is almost 0 when the kernel forwards
		// the packets.
		if f.Unit == "%" || f.agent {
			continue
		}
		row := []string{f.Name}
		for _, c := range r.Contenders {
			row = append(row, fmt.Sprintf("%.2f", to(c.Values[f.Key])))
		}
		g = append(g, row)
	}
	return g
}

// grids returns all tables.
func (r *result) grids() (out []grid) {
	out = append(out, r.figures())
	for _, g := range []grid{
		r.ratios(vxlan, func(s *series) float64 { return s.ToVXLAN }),
		r.ratios(raw, func(s *series) float64 { return s.ToRaw }),
	} {
		if g != nil {
			out = append(out, g)
		}
	}
	return out
}

// table writes the result for a terminal.
func (r *result) table(out io.Writer) error {
	if err := r.Machine.Write(out); err != nil {
		return err
	}
	fmt.Fprintf(out, "rounds: %d; each throughput: %d s; pings: %d; medians and ranges\n", r.Rounds, r.Seconds, r.Pings)
	for _, g := range r.grids() {
		fmt.Fprintln(out)
		if err := g.align(out); err != nil {
			return err
		}
	}
	for _, c := range r.Contenders {
		if c.Command != "" {
			fmt.Fprintf(out, "\n%s: %s\n", c.Name, c.Command)
		}
	}
	return nil
}

// markdown writes the result for a page: the machine, then the same tables.
func (r *result) markdown(out io.Writer) error {
	_, err := fmt.Fprintf(out, "These figures are of %s, on a machine with %d CPUs, Linux %s, %s, %s, %s. "+
		"Rounds: %d, each throughput: %d s, pings: %d; load average %s before, %s after. "+
		"Medians, and the range of all rounds:\n",
		r.Date, r.CPUs, release(r.Kernel), r.Go, r.Leno, r.Consul, r.Rounds, r.Seconds, r.Pings, r.LoadBefore, r.LoadAfter)
	if err != nil {
		return err
	}
	for _, g := range r.grids() {
		fmt.Fprintln(out)
		for i, row := range g {
			fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(out, "|%s\n", strings.Repeat("---|", len(row)))
			}
		}
	}
	return nil
}

// release returns a kernel's version without additions of its distribution.
func release(kernel string) string {
	return cmp.Or(regexp.MustCompile(`^\d+\.\d+`).FindString(kernel), kernel)
}
